"""The subscriptions of the policy node: each message goes to the intake, nothing else happens.

Joint states come far faster than they are used. Where there are cameras they are polled: right
before each picture is stored, which is read together with the joints of its time, and by a timer,
so that they do not grow old. Not polled is what its arrival dates, and what is read as it is just
now (``align: latest``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from traceback import format_exc
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray

from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.observation_intake import ObservationIntake
from sparkrt_ros.nodes.policy_health import lost_text
from sparkrt_ros.nodes.polled import FASTEST_POLL_HZ, PolledSubscription, poll_rate_hz
from sparkrt_ros.nodes.silent_topics import Link, input_link, patience_s
from sparkrt_ros.nodes.throttle import ThrottledLog

Arrived = Callable[[str, Any, int, bool], None]

_CAMERA_MESSAGES = {'image': Image, 'compressed_image': CompressedImage}
_STATE_MESSAGES = {'joint_state': JointState, 'float64_multi_array': Float64MultiArray}


class PolicyInputs:
    """Subscribes to every stream of ``intake`` until ``destroy``.

    arrived: called after each message, with the name of its stream, itself, the time, and whether
    it was stored. failures: messages that raised what nobody expected; counted as bad ones too.
    hurry: whether each message is waited for by somebody.
    """

    def __init__(
        self,
        node: Node,
        intake: ObservationIntake,
        events: qos.QosEvents,
        *,
        arrived: Arrived,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lost: dict[str, int] = {}
        self.failures = 0
        self._log = ThrottledLog(node.get_logger(), period_s=10.0)
        self._node = node
        self._arrived = arrived
        streams = (*intake.cameras.values(), *intake.state_streams.values())
        self._counts = {stream.name: 0 for stream in streams}
        self._timings = {stream.name: stream.timing for stream in streams}
        self._subscriptions: dict[str, Subscription[Any]] = {}
        self._polled: list[tuple[PolledSubscription, Callable[[Any, int], None]]] = []
        self._hurry = hurry
        self._rate_hz = poll_rate_hz(s.timing.max_age_s for s in intake.state_streams.values())
        for camera in intake.cameras.values():
            kind = _CAMERA_MESSAGES[camera.type]
            store = partial(self._take_picture, camera.name, intake.image)
            self._subscribe(camera.name, kind, camera.topic, store, qos.CAMERA, events)
        for stream in intake.state_streams.values():
            kind = _STATE_MESSAGES[stream.type]
            if intake.cameras and stream.timing.by_header_alone and stream.timing.align == 'asof':
                take = partial(self._take, stream.name, intake.joints)
                polled = PolledSubscription(node, kind, stream.topic, qos.STATE_BATCH)
                self._polled.append((polled, take))
                self._subscriptions[stream.name] = polled.subscription
                continue
            store = partial(self._take_joints, stream.name, intake.joints)
            # What is reported only when it changes must not be lost while the executor is busy.
            profile = qos.STATE_BATCH if stream.timing.align == 'hold' else qos.STATE
            self._subscribe(stream.name, kind, stream.topic, store, profile, events)
        self._timer: Any = None
        if self._polled:
            steady = Clock(clock_type=ClockType.STEADY_TIME)
            self._timer = node.create_timer(1.0 / self._rate_hz, self._poll_in_time, clock=steady)

    def unmatched(self) -> list[str]:
        """Topics that nobody publishes compatibly."""
        subscriptions = self._subscriptions.values()
        return [s.topic_name for s in subscriptions if s.get_publisher_count() == 0]

    def links(self) -> list[Link]:
        """Every topic, for whoever finds out why one is silent."""
        return [
            input_link(
                subscription,
                count=self._counts[name],
                patience_s=patience_s(self._timings[name], count=self._counts[name]),
            )
            for name, subscription in self._subscriptions.items()
        ]

    def _poll(self, now_ns: int) -> None:
        """Take the joint states that have arrived."""
        for subscription, take in self._polled:
            for message in subscription.take():
                take(message, now_ns)

    def _poll_in_time(self) -> None:
        self._poll(self._now_ns())
        period_ns = round(1e9 / (FASTEST_POLL_HZ if self._hurry() else self._rate_hz))
        if self._timer.timer_period_ns != period_ns:
            self._timer.timer_period_ns = period_ns

    def destroy(self) -> None:
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
        self._polled.clear()
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _take_picture(self, name: str, store: Callable[..., bool], message: Any) -> None:
        now_ns = self._now_ns()
        self._poll(now_ns)
        self._take(name, store, message, now_ns)

    def _take_joints(self, name: str, store: Callable[..., bool], message: Any) -> None:
        self._take(name, store, message, self._now_ns())

    def _take(self, name: str, store: Callable[..., bool], message: Any, now_ns: int) -> None:
        self._counts[name] += 1
        stored = False
        try:
            stored = store(name, message, now_ns=now_ns)
        except Exception:  # a message that surprises must not end the process
            self.failures += 1
            self._log.error(('failed', name), f'{name}: message dropped:\n{format_exc().rstrip()}')
        self._arrived(name, message, now_ns, stored)

    def _subscribe(
        self,
        name: str,
        kind: type,
        topic: str,
        callback: Callable[[Any], None],
        profile: Any,
        events: qos.QosEvents,
    ) -> None:
        callbacks: SubscriptionEventCallbacks = events.for_subscription(topic)
        if profile is qos.CAMERA:
            # Of joint states, which come far faster than they are used, a few may be lost.
            callbacks.message_lost = partial(self._note_lost, topic)
        try:
            subscription = self._node.create_subscription(
                kind, topic, callback, profile, event_callbacks=callbacks
            )
        except UnsupportedEventTypeError:
            callbacks.message_lost = None  # not every middleware can tell
            subscription = self._node.create_subscription(
                kind, topic, callback, profile, event_callbacks=callbacks
            )
        self._subscriptions[name] = subscription

    def _note_lost(self, topic: str, event: Any) -> None:
        self.lost[topic] = event.total_count
        self._log.warning(topic, lost_text({topic: event.total_count}))

"""The measured pose of the robot, from the contract's joint topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node

from sparkrt_ros.convert.contract import STATE_TYPES, RobotContract, StateStream
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.pose_merger import PoseMerger
from sparkrt_ros.nodes.silent_topics import Link, input_link, patience_s
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.nodes.streamer_trace import StreamerTrace
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.runtime.errors import MessageError

# A pose is looked for this often within the time it may be old.
POLLS_PER_AGE = 5.0
SLOWEST_POLL_HZ = 50.0
FASTEST_HZ = 500.0


class PolledGroup(CallbackGroup):
    """Keeps the executor away from subscriptions that are polled.

    Drivers publish joints at up to 1 kHz. Each wake-up of an rclpy executor costs more than the
    message, and the control thread has to wait for the interpreter meanwhile.
    """

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return True

    def ending_execution(self, entity: Any) -> None:
        pass


class PoseSource:
    """Subscribes to the contract's joint topics and feeds a PoseMerger, many messages at once."""

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        deliver: Callable[[Pose], None],
        *,
        trace: StreamerTrace,
    ) -> None:
        self._node = node
        self._trace = trace
        self._log = ThrottledLog(node.get_logger())
        self._group = PolledGroup()
        self._counts = {stream.name: 0 for stream in contract.state_streams}
        self._timings = {stream.name: stream.timing for stream in contract.state_streams}
        self.merger = PoseMerger(contract, deliver)
        self._subscriptions = {
            stream.name: self._subscribe(stream) for stream in contract.state_streams
        }
        ages_s = [stream.max_age_s for stream in contract.state_streams]
        self._rate_hz = min(
            max(POLLS_PER_AGE / min(ages_s, default=1.0), SLOWEST_POLL_HZ), FASTEST_HZ
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1.0 / self._rate_hz, self.poll, clock=steady)
        self.set_rate()

    def set_rate(self) -> None:
        """Poll as fast as may be while somebody waits for the trace of each message."""
        rate_hz = FASTEST_HZ if self._trace.enabled else self._rate_hz
        self._timer.timer_period_ns = round(1e9 / rate_hz)

    def poll(self) -> None:
        """Take every message that has arrived."""
        news = False
        for name, subscription in self._subscriptions.items():
            while taken := subscription.handle.take_message(subscription.msg_type, False):  # noqa: FBT003
                news = self._take(name, taken[0]) or news
        if news:
            self.merger.deliver(self._now_ns())
        self._trace.publish()

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

    def unmatched(self) -> tuple[str, ...]:
        """Topics that nobody publishes."""
        subscriptions = self._subscriptions.values()
        return tuple(s.topic_name for s in subscriptions if s.get_publisher_count() == 0)

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions = {}

    def _take(self, name: str, message: Any) -> bool:
        now_ns = self._now_ns()
        self._counts[name] += 1
        self._trace.joints(name, message, now_ns=now_ns)
        try:
            self.merger.update(name, message, now_ns=now_ns)
        except MessageError as error:
            self._log.warning(name, f'message dropped: {error}')
            return False
        except Exception as error:  # no message may end the process that holds the arm
            self._log.error(name, f'message dropped: {type(error).__name__}: {error}')
            return False
        return True

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _subscribe(self, stream: StateStream) -> Any:
        # No events: each message would wake the executor for them, and there is nothing to tell,
        # since a best-effort, volatile subscription fits every publisher.
        return self._node.create_subscription(
            message_class(STATE_TYPES[stream.type]),
            stream.topic,
            lambda _: None,
            qos.STATE,
            callback_group=self._group,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )

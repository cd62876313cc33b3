"""The measured pose of the robot, from the contract's joint topics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from rclpy.node import Node

from sparkrt_ros.convert.contract import STATE_TYPES, RobotContract, StateStream
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.beat import Beat
from sparkrt_ros.nodes.polled import FASTEST_POLL_HZ, PolledSubscription, poll_rate_hz
from sparkrt_ros.nodes.pose_merger import PoseMerger
from sparkrt_ros.nodes.silent_topics import Link, input_link, patience_s
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.nodes.streamer_trace import StreamerTrace
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.runtime.errors import MessageError


class PoseSource:
    """Subscribes to the contract's joint topics and feeds a PoseMerger, many messages at once."""

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        deliver: Callable[[Pose], None],
        *,
        beat: Beat,
        trace: StreamerTrace,
    ) -> None:
        self._node = node
        self._contract = contract
        self._trace = trace
        self._polling = threading.Lock()
        self._log = ThrottledLog(node.get_logger())
        self._timings = {stream.name: stream.timing for stream in contract.state_streams}
        self.merger = PoseMerger(contract, deliver)
        self._subscriptions = {
            stream.name: self._subscribe(stream) for stream in contract.state_streams
        }
        # Where arrival dates a message, it must be looked at in the order of arrival.
        self._wanted = {
            stream.name: self._names(stream)
            for stream in contract.state_streams
            if stream.timing.by_header_alone
        }
        self._rate_hz = poll_rate_hz(stream.max_age_s for stream in contract.state_streams)
        self._task = beat.every(self._rate_hz, self.poll, shared=True)
        self.set_rate()

    def set_rate(self) -> None:
        """Poll as fast as may be while somebody waits for the trace of each message."""
        self._task.rate_hz = FASTEST_POLL_HZ if self._trace.enabled else self._rate_hz

    def poll(self) -> None:
        """Take every message that has arrived; from any thread."""
        with self._polling:
            self._poll()

    def _poll(self) -> None:
        news = False
        for name, subscription in self._subscriptions.items():
            try:
                news = self._read(name, subscription) or news
            except Exception as error:  # bytes that are no message must not end the control loop
                self._log.error(name, f'message dropped: {type(error).__name__}: {error}')
        if news:
            self.merger.deliver(self._now_ns())
        self._trace.publish()

    def _read(self, name: str, subscription: PolledSubscription) -> bool:
        """Take what has come of one topic; whether there was any good message."""
        if name in self._wanted and not self._trace.enabled:
            return self._take_newest(name, subscription.newest_first())
        taken = [self._take(name, message) for message in subscription.take()]
        return any(taken)

    def _take_newest(self, name: str, newest_first: Iterable[Any]) -> bool:
        """Take good messages until all joints of a topic have come; whether there was any."""
        wanted, covered = self._wanted[name], set[str]()
        for message in newest_first:
            names = set(getattr(message, 'name', wanted))
            if names <= covered or not self._take(name, message):
                continue
            covered |= names
            if covered >= wanted:
                break
        return bool(covered)

    def links(self) -> list[Link]:
        """Every topic, for whoever finds out why one is silent."""
        return [
            input_link(
                subscription.subscription,
                count=subscription.count,
                patience_s=patience_s(self._timings[name], count=subscription.count),
            )
            for name, subscription in self._subscriptions.items()
        ]

    def unmatched(self) -> tuple[str, ...]:
        """Topics that nobody publishes."""
        subscriptions = self._subscriptions.values()
        return tuple(s.topic_name for s in subscriptions if s.get_publisher_count() == 0)

    def close(self) -> None:
        self._task.cancel()
        for subscription in self._subscriptions.values():
            subscription.destroy()
        self._subscriptions = {}

    def _take(self, name: str, message: Any) -> bool:
        now_ns = self._now_ns()
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

    def _names(self, stream: StateStream) -> frozenset[str]:
        """What its messages call the joints that the pose needs of it."""
        joints = self._contract.stream_joints(stream)
        names = dict(zip(joints, stream.message_names or joints, strict=True))
        return frozenset(names[joint] for joint in joints if joint in self.merger.joints)

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _subscribe(self, stream: StateStream) -> PolledSubscription:
        # No events, since a best-effort, volatile subscription fits every publisher.
        return PolledSubscription(
            self._node, message_class(STATE_TYPES[stream.type]), stream.topic, qos.STATE_BATCH
        )

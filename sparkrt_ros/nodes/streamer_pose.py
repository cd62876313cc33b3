"""The measured pose of the robot, from the contract's joint topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rclpy.node import Node

from sparkrt_ros.convert.contract import STATE_TYPES, RobotContract, StateStream
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.beat import Beat
from sparkrt_ros.nodes.polled import FASTEST_POLL_HZ, PolledSubscription, poll_rate_hz
from sparkrt_ros.nodes.pose_merger import PoseMerger
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
        self._trace = trace
        self._log = ThrottledLog(node.get_logger())
        self.merger = PoseMerger(contract, deliver)
        self._subscriptions = {
            stream.name: self._subscribe(stream) for stream in contract.state_streams
        }
        self._rate_hz = poll_rate_hz(stream.max_age_s for stream in contract.state_streams)
        self._task = beat.every(self._rate_hz, self.poll)
        self.set_rate()

    def set_rate(self) -> None:
        """Poll as fast as may be while somebody waits for the trace of each message."""
        self._task.rate_hz = FASTEST_POLL_HZ if self._trace.enabled else self._rate_hz

    def poll(self) -> None:
        """Take every message that has arrived."""
        news = False
        for name, subscription in self._subscriptions.items():
            if self._trace.enabled:
                taken = [self._take(name, message) for message in subscription.take()]
            else:
                # Of one publisher's joints the newest good message is all that matters.
                lists = by_names(subscription.take())
                taken = [any(self._take(name, m) for m in newest_first) for newest_first in lists]
            news = news or any(taken)
        if news:
            self.merger.deliver(self._now_ns())
        self._trace.publish()

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

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _subscribe(self, stream: StateStream) -> PolledSubscription:
        # No events, since a best-effort, volatile subscription fits every publisher.
        return PolledSubscription(
            self._node, message_class(STATE_TYPES[stream.type]), stream.topic, qos.STATE
        )


def by_names(messages: Iterable[Any]) -> list[list[Any]]:
    """The messages that name the same joints, each such list from the newest stamp to the oldest.

    Messages without names or stamps count as of one layout and one time.
    """
    lists: dict[tuple[str, ...], list[Any]] = {}
    for message in messages:
        lists.setdefault(tuple(getattr(message, 'name', ())), []).append(message)
    for found in lists.values():
        found.reverse()  # sorting keeps the order of equal stamps: the last to arrive comes first
        found.sort(key=_time, reverse=True)
    return list(lists.values())


def _time(message: Any) -> tuple[int, int]:
    header = getattr(message, 'header', None)
    return (0, 0) if header is None else (header.stamp.sec, header.stamp.nanosec)

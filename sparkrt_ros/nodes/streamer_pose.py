"""The measured pose of the robot, merged from the contract's joint topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node

from sparkrt_ros.convert.contract import STATE_TYPES, RobotContract, StateStream
from sparkrt_ros.convert.joints import JointMerger
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

FOREVER_NS = 2**62
# A pose is looked for this often within the time it may be old.
POLLS_PER_AGE = 5.0
SLOWEST_POLL_HZ = 50.0
FASTEST_HZ = 500.0


class PoseMerger:
    """Turns joint messages into poses in action order. ROS-free; one thread.

    deliver: called with each new pose.
    """

    def __init__(self, contract: RobotContract, deliver: Callable[[Pose], None]) -> None:
        self._merger = JointMerger.for_measured_action(contract)
        self._deliver = deliver
        self._topics = ', '.join(stream.topic for stream in contract.state_streams)
        self._size = len(contract.action)
        names = [entry.joint for entry in self._merger.entries]
        self._columns = np.array([contract.action.index(name) for name in names], dtype=np.intp)
        limits_s = [_limit_s(contract, name) for name in names]
        self._limits_ns = np.minimum(np.array(limits_s, dtype=np.float64) * 1e9, FOREVER_NS / 2)
        self._last_ns = 0
        self.bad_messages = 0

    @property
    def needed(self) -> bool:
        """False where no joint is commanded by position and measured."""
        return self._columns.size > 0

    def update(self, stream: str, message: Any, *, now_ns: int) -> None:
        """Take a message. Raises MessageError, counted, if it cannot be used."""
        if now_ns < self._last_ns:
            self._merger.reset()  # it would take nothing older than what it has
        self._last_ns = now_ns
        try:
            self._merger.update(message, received_ns=now_ns, stream=stream)
        except MessageError:
            self.bad_messages += 1
            raise

    def deliver(self, now_ns: int) -> None:
        """Pass on the pose, if every joint has been seen."""
        snapshot = self._merger.latest(now_ns)
        if snapshot is None:
            return
        values = np.full(self._size, np.nan)
        values[self._columns] = snapshot.values
        fresh_until_ns = (snapshot.stamps_ns + self._limits_ns).min(initial=FOREVER_NS)
        self._deliver(Pose(values=values, fresh_until_ns=int(fresh_until_ns)))

    def problem(self, now_ns: int) -> str:
        """Which joints are missing or too old, '' while the pose is good."""
        try:
            self._merger.snapshot(now_ns)
        except StaleObservation as error:
            return f'{error.where} on {self._topics}: {error.found}; expected {error.expected}'
        return ''


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
    ) -> None:
        self._node = node
        self._log = ThrottledLog(node.get_logger())
        self._group = PolledGroup()
        self.merger = PoseMerger(contract, deliver)
        self._subscriptions = {
            stream.name: self._subscribe(stream) for stream in contract.state_streams
        }
        ages_s = [stream.max_age_s for stream in contract.state_streams]
        rate_hz = min(max(POLLS_PER_AGE / min(ages_s, default=1.0), SLOWEST_POLL_HZ), FASTEST_HZ)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1.0 / rate_hz, self.poll, clock=steady)

    def poll(self) -> None:
        """Take every message that has arrived."""
        news = False
        for name, subscription in self._subscriptions.items():
            while taken := subscription.handle.take_message(subscription.msg_type, False):  # noqa: FBT003
                news = self._take(name, taken[0]) or news
        if news:
            self.merger.deliver(self._now_ns())

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions = {}

    def _take(self, name: str, message: Any) -> bool:
        try:
            self.merger.update(name, message, now_ns=self._now_ns())
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


def _limit_s(contract: RobotContract, joint: str) -> float:
    """How old a value of ``joint`` may be: the most patient stream that reports it decides."""
    return max(
        float('inf') if stream.timing.align == 'hold' else stream.max_age_s
        for stream in contract.state_streams
        if joint in contract.stream_joints(stream)
    )

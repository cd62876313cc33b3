"""From joint messages to the measured pose in action order. ROS-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.convert.joints import JointMerger
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

FOREVER_NS = 2**62


class PoseMerger:
    """Turns joint messages into poses in action order. One thread.

    deliver: called with each new pose. joints: those that it takes from messages. oldest_ns: when
    the oldest value in the newest pose was taken; None: there is none.
    """

    def __init__(self, contract: RobotContract, deliver: Callable[[Pose], None]) -> None:
        self._merger = JointMerger.for_measured_action(contract)
        self._deliver = deliver
        self._topics = ', '.join(stream.topic for stream in contract.state_streams)
        self._size = len(contract.action)
        names = [entry.joint for entry in self._merger.entries]
        self.joints = frozenset(names)
        self._columns = np.array([contract.action.index(name) for name in names], dtype=np.intp)
        limits_s = [_limit_s(contract, name) for name in names]
        self._limits_ns = np.minimum(np.array(limits_s, dtype=np.float64) * 1e9, FOREVER_NS / 2)
        self._last_ns = 0
        self.oldest_ns: int | None = None
        self.poses = 0
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
        self.oldest_ns = int(snapshot.stamps_ns.min(initial=now_ns))
        self.poses += 1
        self._deliver(Pose(values=values, fresh_until_ns=int(fresh_until_ns), number=self.poses))

    def problem(self, now_ns: int) -> str:
        """Which joints are missing or too old, '' while the pose is good."""
        try:
            self._merger.snapshot(now_ns)
        except StaleObservation as error:
            return f'{error.where} on {self._topics}: {error.found}; expected {error.expected}'
        return ''


def _limit_s(contract: RobotContract, joint: str) -> float:
    """How old a value of ``joint`` may be: the most patient stream that reports it decides."""
    return max(
        float('inf') if stream.timing.align == 'hold' else stream.max_age_s
        for stream in contract.state_streams
        if joint in contract.stream_joints(stream)
    )

"""Prepared ticks whose commands may still be on their way. No ROS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sparkrt_ros.nodes.streamer_values import Outlet, Sent
from sparkrt_ros.nodes.streamer_witness import Witness


@dataclass(slots=True)
class Tick:
    """One that was worked out for ``now_ns``.

    pose_number: of the pose it saw, 0: none. sends: it leads to a command, as far as is known.
    witness: who was to be told of it then.
    """

    now_ns: int
    pose_number: int
    sends: bool
    witness: Witness | None


class UnderWay:
    """Ticks in order, until it is known what became of each. Used under the core's lock.

    settled: told of each in turn, and of its command; None: it had none, or it was taken back.
    """

    def __init__(self, outlet: Outlet, *, settled: Callable[[Tick, Sent | None], None]) -> None:
        self._outlet = outlet
        self._settled = settled
        self._ticks: deque[Tick] = deque()

    def add(self, tick: Tick, *, due_ns: int) -> None:
        """Let what the outlet has prepared for ``tick``, if anything, be sent when it is due."""
        if tick.sends:
            self._outlet.schedule(due_ns)
        self._ticks.append(tick)

    def settle(self) -> None:
        """Send what is due, and tell of what has been sent."""
        sent = deque(self._outlet.settle())
        while self._ticks and (sent or not self._ticks[0].sends):
            tick = self._ticks.popleft()
            self._settled(tick, sent.popleft() if tick.sends else None)

    def withdraw(self) -> int:
        """Send no more of it; how many commands have left that were not told of, nor will be."""
        if not any(tick.sends for tick in self._ticks):
            return 0
        left = len(self._outlet.cancel())
        for tick in self._ticks:
            tick.sends = False
        return left

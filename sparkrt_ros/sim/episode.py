"""Judges the episodes of the embedded robot and reports them."""

from __future__ import annotations

from typing import Any

from sparkrt_ros.sim.task import PickPlace


class Episode:
    """The running episode of ``task``.

    Its clock starts with the first command, so that nobody loses time to a policy that still
    loads. It is done at the first success or at the time limit, and then stays as it was.
    """

    def __init__(self, task: PickPlace, *, time_limit_s: float) -> None:
        self._task = task
        self._time_limit_s = time_limit_s
        self._started_s: float | None = None
        self._elapsed_s = 0.0
        self.done = False
        self.success = False

    def commanded(self) -> None:
        """A command arrived."""
        if self._started_s is None:
            self._started_s = self._task.elapsed_s

    def update(self) -> bool:
        """Judge the present state; True when the episode just ended."""
        if self.done or self._started_s is None:
            return False
        self._elapsed_s = self._task.elapsed_s - self._started_s
        self.success = self._task.success
        self.done = self.success or self._elapsed_s >= self._time_limit_s
        return self.done

    def report(self) -> dict[str, Any]:
        """Plain values, ready for JSON; positions in metres in the arm's base frame."""
        cube = self._task.cube
        return {
            'seed': self._task.seed,
            'elapsed_s': round(self._elapsed_s, 3),
            'time_limit_s': self._time_limit_s,
            'done': self.done,
            'success': self.success,
            'held': cube.held,
            'cube_m': [round(float(value), 4) for value in cube.position_m],
            'target_m': [round(float(value), 4) for value in cube.tray_m],
        }

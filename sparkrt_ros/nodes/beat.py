"""One timer for everything that the ROS thread does again and again.

Each wake-up of an rclpy executor, with what it waits for, costs several times what such a task
does; tasks of different rates that share wake-ups cost little more than the fastest of them.

And whoever else wants the interpreter waits meanwhile. A control thread that is at rest until its
next deadline therefore says so, and what is due is done then, not when the next tick is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

# Without a word from the control thread for so many beats the timer goes on by itself.
PATIENCE = 3


class Task:
    """Runs at ``rate_hz`` on average; at each beat at most once."""

    def __init__(self, beat: Beat, act: Callable[[], None], rate_hz: float) -> None:
        self._beat = beat
        self._act = act
        self._rate_hz = rate_hz
        self._due_s = 0.0

    @property
    def rate_hz(self) -> float:
        return self._rate_hz

    @rate_hz.setter
    def rate_hz(self, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        self._beat.fit()

    def cancel(self) -> None:
        """Run no more."""
        self._beat.remove(self)

    @property
    def due_s(self) -> float:
        return self._due_s

    def run_if_due(self, now_s: float, *, slack_s: float) -> None:
        """``slack_s``: so much too early is in time, so that the fastest misses no beat."""
        if now_s < self._due_s - slack_s:
            return
        # What was missed is not made up for.
        self._due_s = max(self._due_s + 1.0 / self._rate_hz, now_s)
        self._act()


class Beat:
    """Goes at the rate of its fastest task, also while simulated time stands still. ROS thread.

    clock_s: a steady clock.
    """

    def __init__(self, node: Node, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._tasks: tuple[Task, ...] = ()
        self._fastest_s = self._soonest_s = float('inf')
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1.0, self.beat, clock=steady)
        self._timer.cancel()
        self._nudge = node.create_guard_condition(self._nudged)

    def every(self, rate_hz: float, act: Callable[[], None]) -> Task:
        """Call ``act`` at ``rate_hz`` from now on."""
        task = Task(self, act, rate_hz)
        self._tasks += (task,)
        self.fit()
        return task

    def remove(self, task: Task) -> None:
        self._tasks = tuple(kept for kept in self._tasks if kept is not task)
        self.fit()

    def fit(self) -> None:
        """Go as fast as the fastest task."""
        if not self._tasks:
            self._fastest_s = self._soonest_s = float('inf')
            self._timer.cancel()
            return
        self._fastest_s = 1.0 / max(task.rate_hz for task in self._tasks)
        self._soonest_s = 0.0
        self._timer.timer_period_ns = round(1e9 * self._fastest_s)
        if self._timer.is_canceled():
            self._timer.reset()

    def waits(self, period_s: float) -> bool:
        """From the control thread, which rests every ``period_s``: whether something is due.

        What is slower than the fastest task cannot set its pace.
        """
        if not self._tasks or period_s > self._fastest_s:
            return False
        return self._clock_s() >= self._soonest_s - self._slack_s

    def at_rest(self) -> None:
        """From the control thread: the ROS thread is in nobody's way now. Does not block."""
        self._nudge.trigger()

    def beat(self) -> None:
        """Run what is due; called by the timer where nobody else does."""
        period_ns = round(1e9 * self._fastest_s)
        if self._tasks and self._timer.timer_period_ns != period_ns:
            self._timer.timer_period_ns = period_ns
        self._run()

    def _nudged(self) -> None:
        if not self._tasks:
            return
        self._timer.timer_period_ns = round(1e9 * PATIENCE * self._fastest_s)
        self._timer.reset()
        self._run()

    def _run(self) -> None:
        now_s = self._clock_s()
        for task in self._tasks:
            task.run_if_due(now_s, slack_s=self._slack_s)
        self._soonest_s = min((task.due_s for task in self._tasks), default=float('inf'))

    @property
    def _slack_s(self) -> float:
        return 0.5 * self._fastest_s

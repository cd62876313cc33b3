"""One timer for everything that the ROS thread does again and again.

Each wake-up of an rclpy executor, with what it waits for, costs several times what such a task
does; tasks of different rates that share wake-ups cost little more than the fastest of them.

And whoever else wants the interpreter waits meanwhile. A control thread that is at rest until its
next deadline therefore says so: it does the small tasks that are due itself, without a wake-up of
anybody, and the ROS thread does the others then, not when the next tick is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

Act = Callable[[], None]

# Without a word from the control thread for so many beats the ROS thread goes on by itself.
PATIENCE = 3
# A multiple of a period that was computed may lie this far [periods] below itself.
ROUNDING = 1e-4


class Task:
    """Runs at ``rate_hz`` on average; at each beat at most once."""

    def __init__(self, beat: Beat, act: Act, rate_hz: float) -> None:
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
        # At the next multiple of the period, so that tasks of equal or half the rate share their
        # beats. What was missed is not made up for.
        multiple = math.floor(max(self._due_s, now_s) * self._rate_hz + ROUNDING) + 1
        self._due_s = multiple / self._rate_hz
        self._act()


class Tasks:
    """Those that one thread does. fastest_s: the period of the fastest; inf: there is none."""

    def __init__(self) -> None:
        self._tasks: tuple[Task, ...] = ()
        self.fastest_s = self._soonest_s = float('inf')

    def add(self, task: Task) -> None:
        self._tasks += (task,)

    def remove(self, task: Task) -> None:
        self._tasks = tuple(kept for kept in self._tasks if kept is not task)

    def fit(self) -> None:
        """Note how fast they are now, and look at all of them the next time."""
        self.fastest_s = min((1.0 / task.rate_hz for task in self._tasks), default=float('inf'))
        self._soonest_s = 0.0 if self._tasks else float('inf')

    def due(self, now_s: float, *, slack_s: float) -> bool:
        """Whether there is something to do."""
        return now_s >= self._soonest_s - slack_s if self._tasks else False

    def run(self, now_s: float, *, slack_s: float) -> None:
        """Do what is due."""
        for task in self._tasks:
            task.run_if_due(now_s, slack_s=slack_s)
        self._soonest_s = min((task.due_s for task in self._tasks), default=float('inf'))


class Beat:
    """Goes at the rate of its fastest task, also while simulated time stands still.

    Everything but what says otherwise is called by the ROS thread.
    shield: what each task is wrapped in.
    clock_s: a steady clock.
    """

    def __init__(
        self,
        node: Node,
        *,
        shield: Callable[[Act], Act] = lambda act: act,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shield = shield
        self._clock_s = clock_s
        self._own, self._shared = Tasks(), Tasks()
        self._sharing = threading.Lock()
        self._carried_until_s = 0.0
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1.0, self.beat, clock=steady)
        self._timer.cancel()
        self._nudge = node.create_guard_condition(self._nudged)

    def every(self, rate_hz: float, act: Act, *, shared: bool = False) -> Task:
        """Call ``act`` at ``rate_hz`` from now on.

        shared: a control thread may do it as well, one thread at a time. It should take little.
        """
        task = Task(self, self._shield(act), rate_hz)
        (self._shared if shared else self._own).add(task)
        self.fit()
        return task

    def remove(self, task: Task) -> None:
        self._own.remove(task)
        self._shared.remove(task)
        self.fit()

    def fit(self) -> None:
        """Go as fast as the fastest task."""
        self._own.fit()
        self._shared.fit()
        self._set_pace()

    def waits(self, period_s: float) -> bool:
        """From the control thread, which rests every ``period_s``: whether something is due.

        If so, :meth:`at_rest` is to be called. One that rests less often than the fastest task is
        due cannot set the pace, and is never told of any.
        """
        fastest_s = self._fastest_s
        if period_s > fastest_s or fastest_s == float('inf'):
            return False
        now_s = self._clock_s()
        self._carried_until_s = now_s + PATIENCE * fastest_s
        return self._due(self._shared, now_s) or self._due(self._own, now_s)

    def at_rest(self) -> None:
        """From the control thread: do what is shared, and wake the ROS thread for the others."""
        now_s = self._clock_s()
        if self._due(self._shared, now_s):
            self._run_shared(now_s)
        if self._due(self._own, now_s):
            self._nudge.trigger()

    def let_go(self) -> None:
        """From any thread: the control thread rests no more, so the ROS thread does everything."""
        self._carried_until_s = 0.0
        self._nudge.trigger()

    def beat(self) -> None:
        """Run what is due; called by the timer where nobody else does."""
        self._set_pace()
        self._run()

    def _nudged(self) -> None:
        self._set_pace()
        if not self._timer.is_canceled():
            self._timer.reset()
        self._run()

    @property
    def _carried(self) -> bool:
        return self._clock_s() < self._carried_until_s

    @property
    def _fastest_s(self) -> float:
        return min(self._own.fastest_s, self._shared.fastest_s)

    @property
    def _slack_s(self) -> float:
        """The same for all, so that those of the control thread and the others share beats too."""
        return 0.5 * self._fastest_s

    def _due(self, tasks: Tasks, now_s: float) -> bool:
        return tasks.due(now_s, slack_s=self._slack_s)

    def _set_pace(self) -> None:
        """Of the timer, which waits for a while where the control thread should come."""
        fastest_s = self._fastest_s
        if fastest_s == float('inf'):
            self._timer.cancel()
            return
        period_ns = round(1e9 * fastest_s * (PATIENCE if self._carried else 1))
        if self._timer.timer_period_ns != period_ns:
            self._timer.timer_period_ns = period_ns
        if self._timer.is_canceled():
            self._timer.reset()

    def _run(self) -> None:
        now_s = self._clock_s()
        self._own.run(now_s, slack_s=self._slack_s)
        if not self._carried:
            self._run_shared(now_s)

    def _run_shared(self, now_s: float) -> None:
        if not self._sharing.acquire(blocking=False):
            return  # somebody is at it
        try:
            self._shared.run(now_s, slack_s=self._slack_s)
        finally:
            self._sharing.release()

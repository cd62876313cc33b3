"""A periodic thread with deadlines of its own, for the one loop that must not wait for others.

What keeps its period steady, apart from never blocking in the tick:

* Deadlines are absolute, so a late tick does not delay the next. A period missed as a whole is
  skipped and counted: a burst of commands would move the robot faster than intended.
* A pacer may bring a tick forward by up to half a period, when there is something to answer at
  once; the deadlines go on from there. So periods get shorter by it, never longer.
* SCHED_FIFO where the system permits it, for this thread and, one below, for the thread that
  shares the interpreter with it: a thread that holds the interpreter while other processes keep
  it from running would hold up this one. On 2 cores with 8 runnable processes that made the p99.9
  of a 5 ms period 5.9 instead of 8 to 33 ms.
* Without it, short turns, which come sooner: ``set_time_slice`` of :mod:`.scheduling`.
* What is to be sent is prepared before it is due, so that little can come between a deadline and
  its command.
* The collector of cyclic garbage visits every object of the process, 5 to 15 ms with rclpy and
  numpy loaded. ``settle_process`` of :mod:`.scheduling` moves what exists into a generation that
  is never visited; the collector stays on, since messages and futures of the ROS thread do form
  cycles.
* A thread that wants the interpreter waits for up to one switch interval, 5 ms by default;
  ``settle_process`` makes that 0.5 ms.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparkrt_ros.nodes.scheduling import REALTIME_REMEDY, set_realtime, set_time_slice
from sparkrt_ros.runtime.errors import ConfigError

# How long a sleeping loop may take to notice that it should end.
STOP_LATENCY_S = 0.05
KEPT_PERIODS = 16384
# From a deadline until work on the next may begin, for others that share the interpreter.
REST_NS = 1_000_000
# What is so late lets work begin earlier from then on, by half of what it was late, within these
# bounds; and what is not, later again: one late command in 2000 at least keeps the balance.
LATE_NS = 300_000
LEAST_MORE_NS, MOST_MORE_NS = 250_000, 1_000_000
LESS_NS = LEAST_MORE_NS // 2000


class Pacer(Protocol):
    """A clock the loop can sleep on; times in int nanoseconds."""

    def now_ns(self) -> int: ...

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int | None = None
    ) -> bool:
        """Return at the deadline, or before it when ``stop`` is set or time went backwards.

        True: earlier, but not before ``earliest_ns``, since there is something to answer at once.
        """

    def close(self) -> None:
        """Let go of the clock."""


class MonotonicPacer:
    """The monotonic clock of the system; changes of the wall clock do not touch it."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int | None = None
    ) -> bool:
        while not stop.is_set():
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0.0:
                break
            # More exact than Event.wait, which cannot be had without a lock and a wake-up.
            time.sleep(min(left_s, STOP_LATENCY_S))
        return False

    def close(self) -> None:
        pass


class RosClockPacer:
    """A node's clock, for simulated time: sleeps while /clock stands still."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._jumped = threading.Event()
        self._handle = wake_with_clock(clock, self._jumped.set)
        self._last_ns = self.now_ns()

    def now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int | None = None
    ) -> bool:
        while not stop.is_set():
            # Before it was at the end of the sleep before: it may go back during a tick as well.
            last_ns, self._last_ns = self._last_ns, self.now_ns()
            if self._last_ns >= deadline_ns or self._last_ns < last_ns:
                break
            self._jumped.wait(STOP_LATENCY_S)
            self._jumped.clear()
        return False

    def close(self) -> None:
        self._handle.unregister()


def wake_with_clock(clock: Any, wake: Callable[[], None]) -> Any:
    """Call ``wake`` whenever simulated time moves, until ``unregister`` of what is returned."""
    from rclpy.clock import JumpThreshold
    from rclpy.duration import Duration

    threshold = JumpThreshold(
        min_forward=Duration(nanoseconds=1),
        min_backward=Duration(nanoseconds=-1),
        on_clock_change=True,
    )
    return clock.create_jump_callback(threshold, post_callback=lambda _: wake())


@dataclass(frozen=True, kw_only=True)
class Periods:
    """Time between the starts of two ticks, the last KEPT_PERIODS of them; max since the start."""

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    p999_s: float = 0.0
    max_s: float = 0.0


class PeriodRing:
    """The newest periods; one thread adds, any other may ask for the percentiles."""

    def __init__(self, *, capacity: int = KEPT_PERIODS) -> None:
        self._ring_ns: npt.NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)
        self._count = 0
        self._max_ns = 0

    def add(self, period_ns: int) -> None:
        self._ring_ns[self._count % self._ring_ns.size] = period_ns
        self._count += 1
        if period_ns > self._max_ns:
            self._max_ns = period_ns

    def clear(self) -> None:
        self._count = 0
        self._max_ns = 0

    def summary(self) -> Periods:
        count = self._count
        if count == 0:
            return Periods()
        size = min(count, self._ring_ns.size)
        # As np.percentile with method 'higher' does, which takes five times as long.
        ranks = [math.ceil(share * (size - 1)) for share in (0.5, 0.99, 0.999)]
        p50, p99, p999 = np.partition(self._ring_ns[:size], ranks)[ranks] / 1e9
        return Periods(
            count=count,
            p50_s=float(p50),
            p99_s=float(p99),
            p999_s=float(p999),
            max_s=self._max_ns / 1e9,
        )


class Lead:
    """How long before a deadline work on it begins: longer while it comes late all the same.

    A longer one costs nothing but that what arrives meanwhile has to wait for a later tick.
    most_ahead: so many deadlines may lie before it, its own included. With 1, no work begins
    before the deadline ahead has passed.
    """

    def __init__(self, least_ns: int, *, most_ahead: int = 1) -> None:
        self._least_ns = least_ns
        self._more_ns = 0
        self.most_ahead = most_ahead

    def of(self, period_ns: int, *, realtime: bool) -> int:
        if realtime:
            return min(self._least_ns // 2, period_ns // 3)
        least_ns = min(self._least_ns, period_ns // 3)
        most_ns = least_ns
        if period_ns >= 2 * REST_NS:  # whoever asks for a higher rate asks for quick answers
            most_ns = max(least_ns, min(2 * self._least_ns, self.most_ahead * period_ns - REST_NS))
        self._more_ns = min(self._more_ns, most_ns - least_ns)
        return least_ns + self._more_ns

    def note(self, late_ns: int) -> None:
        """So late was the last one."""
        if late_ns > LATE_NS:
            self._more_ns += min(max(late_ns // 2, LEAST_MORE_NS), MOST_MORE_NS)
        else:
            self._more_ns = max(0, self._more_ns - LESS_NS)


class ControlLoop:
    """Calls ``tick()`` at ``rate_hz`` on its own thread until stopped.

    on_error: called once, on the loop's thread, with what a tick raised; the loop then ends, so
        that nothing is sent by a defect. It can be started again.
    on_warning: called with a sentence when the priority is not permitted; the loop runs without.
    priority: of SCHED_FIFO, 1 to 99; 0 leaves scheduling alone.
    period_s: from one deadline to the next. elapsed_s: what a command may move in the tick under
        way: a period, or the time since the last tick, where this one was brought forward.
    ahead_ns: tick so long before each deadline, at most a third of a period, for what takes longer
        than it may be late; half of that with a real-time priority, and more while it is late
        nevertheless. :meth:`note` is then to be told when it took place.
    lead: how long before really; its most_ahead may be changed while the loop runs.
    due_ns: the deadline of the tick under way, by the pacer's clock, or when it began, where that
        was later or it was brought forward (early).
    jump_ns: a deadline missed by more than this was jumped over by the clock, as simulated time
        does when it starts; the loop goes on from there, and no period was missed. None: never.
    Raises ConfigError for an impossible rate or priority.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        *,
        rate_hz: float,
        pacer: Pacer,
        on_error: Callable[[Exception], None],
        on_warning: Callable[[str], object],
        ahead_ns: int = 0,
        most_ahead: int = 1,
        priority: int = 0,
        jump_ns: int | None = None,
    ) -> None:
        self._tick = tick
        self.lead = Lead(ahead_ns, most_ahead=most_ahead)
        self._pacer = pacer
        self._on_error = on_error
        self._on_warning = on_warning
        self._set_priority = 0
        self.priority = priority
        self._jump_ns = jump_ns
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._periods = PeriodRing()
        self._noted_ns: int | None = None
        self.overruns = 0
        self.realtime = self.early = False
        self.rate_hz = rate_hz

    @property
    def rate_hz(self) -> float:
        """May be changed while the loop runs; holds from the next deadline on."""
        return self._rate_hz

    @rate_hz.setter
    def rate_hz(self, rate_hz: float) -> None:
        check_rate(rate_hz)
        self._rate_hz = rate_hz
        if not self.running:
            self.period_s = self.elapsed_s = 1.0 / rate_hz
            self.due_ns = 0

    @property
    def priority(self) -> int:
        """May be changed while the loop runs; the thread takes it between two ticks."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        if not 0 <= priority <= 99:
            raise ConfigError(
                'control.realtime_priority', found=str(priority), expected='0, or 1 to 99'
            )
        self._priority = priority

    @property
    def thread(self) -> threading.Thread | None:
        return self._thread

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def note(self, at_ns: int | None, *, late_ns: int = 0) -> None:
        """When what the next tick in turn led to took place; None: to nothing. For ahead_ns.

        late_ns: after it was due.
        """
        self.lead.note(late_ns)
        if at_ns is not None and self._noted_ns is not None:
            self._periods.add(at_ns - self._noted_ns)
        self._noted_ns = at_ns

    def periods(self) -> Periods:
        return self._periods.summary()

    def start(self) -> None:
        """Start the thread; does nothing while it runs."""
        if self.running:
            return
        self._stop.clear()
        self._periods.clear()
        self._noted_ns = None
        self.overruns = 0
        self._thread = threading.Thread(target=self._run, name='control', daemon=True)
        self._thread.start()

    def stop(self, *, timeout_s: float = 2.0) -> bool:
        """End the thread and wait for it; False if a tick still runs after ``timeout_s``."""
        self._stop.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        self._set_priority = 0
        self.realtime = False
        set_time_slice()
        self._take_priority()
        try:
            self._loop()
        except Exception as error:
            self._on_error(error)

    def _loop(self) -> None:
        rate_hz, period_ns = self._take_rate()
        deadline_ns = self._pacer.now_ns()
        last_ns = None
        while True:
            earliest_ns = deadline_ns - period_ns // 2
            ahead_ns = self.lead.of(period_ns, realtime=self.realtime)
            early = self.early = self._pacer.sleep_until(
                deadline_ns - ahead_ns, self._stop, earliest_ns=earliest_ns
            )
            if self._stop.is_set():
                return
            begin_ns = self._pacer.now_ns()
            if ahead_ns and not early:
                begin_ns = max(begin_ns, deadline_ns)
            self.elapsed_s, self.due_ns = self.period_s, begin_ns
            if self._clock_jumped(begin_ns, last_ns, deadline_ns):
                deadline_ns = begin_ns  # go on from where time is
            elif last_ns is not None:
                if not ahead_ns:
                    self._periods.add(begin_ns - last_ns)
                if early:
                    self.elapsed_s = (begin_ns - last_ns) / 1e9
                    deadline_ns = begin_ns
            last_ns = begin_ns
            self._tick()
            self._take_priority()
            if rate_hz != self._rate_hz:
                rate_hz, period_ns = self._take_rate()
                self._periods.clear()
            deadline_ns = self._next_deadline(deadline_ns, period_ns)

    def _take_rate(self) -> tuple[float, int]:
        rate_hz = self._rate_hz
        self.period_s = 1.0 / rate_hz
        return rate_hz, round(1e9 / rate_hz)

    def _clock_jumped(self, begin_ns: int, last_ns: int | None, deadline_ns: int) -> bool:
        if last_ns is not None and begin_ns < last_ns:
            return True
        return self._jump_ns is not None and begin_ns - deadline_ns > self._jump_ns

    def _next_deadline(self, deadline_ns: int, period_ns: int) -> int:
        next_ns = deadline_ns + period_ns
        late_ns = self._pacer.now_ns() - next_ns
        missed = late_ns // period_ns
        if self._jump_ns is not None and late_ns > self._jump_ns:
            return next_ns  # the clock jumped; the loop will see
        if missed > 0:
            self.overruns += missed
            next_ns += missed * period_ns
        return next_ns

    def _take_priority(self) -> None:
        """The scheduling this thread should have, if it has another."""
        priority = self._priority
        if priority == self._set_priority:
            return
        self._set_priority = priority
        refusal = set_realtime(priority)
        self.realtime = priority > 0 and not refusal
        if refusal:
            self._on_warning(
                f'SCHED_FIFO priority {priority} is not permitted ({refusal}); the control '
                f'loop runs without; remedy: {REALTIME_REMEDY}'
            )


def check_rate(rate_hz: float) -> None:
    """Raise ConfigError for a rate [Hz] that no loop can have."""
    if not 0.1 <= rate_hz <= 10_000.0:
        raise ConfigError(
            'control rate', found=f'{rate_hz} Hz', expected='between 0.1 and 10000 Hz'
        )

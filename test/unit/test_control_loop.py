"""The periodic thread: deadlines without drift, skipped periods, live rate, quick safe ends."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from sparkrt_ros.nodes import control_loop, scheduling
from sparkrt_ros.nodes.control_loop import (
    LATE_NS,
    LEAST_MORE_NS,
    LESS_NS,
    REST_NS,
    ControlLoop,
    Lead,
    MonotonicPacer,
    PeriodRing,
    Periods,
    RosClockPacer,
)
from sparkrt_ros.runtime.errors import ConfigError

MS = 1_000_000


class ScriptedPacer:
    """A clock that stands still except where the loop sleeps or a tick takes time."""

    def __init__(self, *, ticks: int, finished: threading.Event) -> None:
        self.time_ns = 0
        self.news_ns: list[int] = []
        self._left = ticks
        self._finished = finished

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int = 0
    ) -> bool:
        if self._left == 0:
            self._finished.set()
            stop.wait()
            return False
        self._left -= 1
        if self.news_ns and self.news_ns[0] < deadline_ns:
            self.time_ns = max(self.time_ns, self.news_ns.pop(0), min(earliest_ns, deadline_ns))
            return self.time_ns < deadline_ns
        self.time_ns = max(self.time_ns, deadline_ns)
        return False


class Scripted:
    """Runs a loop over ScriptedPacer; ``work`` is what each tick does with the clock."""

    def __init__(self, work, *, ticks: int, rate_hz: float = 100.0, **options) -> None:
        self.begins_ns: list[int] = []
        self.errors: list[Exception] = []
        self.warnings: list[str] = []
        self.finished = threading.Event()
        self.pacer = ScriptedPacer(ticks=ticks, finished=self.finished)
        self._work = work
        self.loop = ControlLoop(
            self._tick,
            rate_hz=rate_hz,
            pacer=self.pacer,
            on_error=self._failed,
            on_warning=self.warnings.append,
            **options,
        )

    @property
    def left_ns(self) -> int:
        """Until the tick under way is due."""
        return self.loop.due_ns - self.pacer.time_ns

    def _tick(self) -> None:
        self.begins_ns.append(self.pacer.time_ns)
        self._work(self, len(self.begins_ns) - 1)

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.finished.set()

    def run(self) -> Scripted:
        self.loop.start()
        assert self.finished.wait(10.0)
        assert self.loop.stop()
        return self


def takes(*durations_ms: float):
    """The n-th tick takes the n-th duration; later ones none."""

    def work(scripted: Scripted, tick: int) -> None:
        if tick < len(durations_ms):
            scripted.pacer.time_ns += round(durations_ms[tick] * MS)

    return work


def test_ticks_begin_at_absolute_deadlines_whatever_they_take():
    ran = Scripted(takes(3, 9, 0, 5), ticks=6).run()
    assert ran.begins_ns == [0, 10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS]
    assert ran.loop.overruns == 0


def test_a_tick_late_by_less_than_a_period_is_run_at_once_and_the_next_is_on_time():
    ran = Scripted(takes(14), ticks=4).run()
    assert ran.begins_ns == [0, 14 * MS, 20 * MS, 30 * MS]
    assert ran.loop.overruns == 0


def test_whole_missed_periods_are_skipped_and_counted_never_made_up_for():
    ran = Scripted(takes(0, 37), ticks=5).run()
    assert ran.begins_ns == [0, 10 * MS, 47 * MS, 50 * MS, 60 * MS]
    assert ran.loop.overruns == 2


def test_the_rate_changes_while_it_runs():
    periods_s = []

    def work(scripted: Scripted, tick: int) -> None:
        if tick == 2:
            scripted.loop.rate_hz = 200.0
        periods_s.append(scripted.loop.period_s)

    ran = Scripted(work, ticks=6).run()
    assert periods_s == [0.01, 0.01, 0.01, 0.005, 0.005, 0.005], 'as long as they really were'
    assert ran.begins_ns == [0, 10 * MS, 20 * MS, 25 * MS, 30 * MS, 35 * MS]
    assert ran.loop.periods().max_s == 0.005, 'periods of the old rate are forgotten'


def with_news(*times_ms: float, ticks: int = 6, work=lambda *_: None) -> Scripted:
    """A loop at 100 Hz; something to answer at once comes at these times."""
    elapsed_s: list[float] = []

    def note(scripted: Scripted, tick: int) -> None:
        elapsed_s.append(scripted.loop.elapsed_s)
        work(scripted, tick)

    scripted = Scripted(note, ticks=ticks)
    scripted.pacer.news_ns = [round(time_ms * MS) for time_ms in times_ms]
    scripted.elapsed_s = elapsed_s  # type: ignore[attr-defined]
    return scripted.run()


def test_news_bring_a_tick_forward_and_the_deadlines_go_on_from_there():
    ran = with_news(17)
    assert ran.begins_ns == [0, 10 * MS, 17 * MS, 27 * MS, 37 * MS, 47 * MS]
    assert ran.elapsed_s == pytest.approx([0.01, 0.01, 0.007, 0.01, 0.01, 0.01])
    assert ran.loop.periods().max_s == 0.01
    assert ran.loop.overruns == 0


def test_news_wait_for_half_a_period_after_the_last_tick():
    ran = with_news(11, 25.5, ticks=5)
    assert ran.begins_ns == [0, 10 * MS, 15 * MS, 25 * MS, 30 * MS]
    assert ran.elapsed_s == pytest.approx([0.01, 0.01, 0.005, 0.01, 0.005])


def test_news_at_every_moment_at_most_double_the_rate():
    ran = with_news(*range(100), ticks=12)
    assert np.diff(ran.begins_ns).min() == 5 * MS


def test_a_tick_that_is_late_anyway_is_as_long_as_a_period():
    ran = with_news(11, work=takes(0, 12), ticks=4)
    assert ran.begins_ns == [0, 10 * MS, 22 * MS, 30 * MS]
    assert ran.elapsed_s == [0.01] * 4


def test_a_backward_jump_of_time_goes_on_from_the_new_time():
    def work(scripted: Scripted, tick: int) -> None:
        if tick == 2:
            scripted.pacer.time_ns = -500 * MS
            scripted.pacer.sleep_until = early  # type: ignore[method-assign]

    def early(deadline_ns: int, stop: threading.Event, *, earliest_ns: int) -> None:
        del ran.pacer.sleep_until  # the clock's own wait returns at once when time goes back

    ran = Scripted(work, ticks=5)
    ran.run()
    assert ran.begins_ns == [0, 10 * MS, 20 * MS, -500 * MS, -490 * MS, -480 * MS]
    assert ran.loop.overruns == 0


class StandingClock:
    """A node's clock under simulated time, which moves when it is told to."""

    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns

    def now(self) -> SimpleNamespace:
        return SimpleNamespace(nanoseconds=self.time_ns)

    def create_jump_callback(self, *_, **__) -> SimpleNamespace:
        return SimpleNamespace(unregister=lambda: None)


@pytest.mark.parametrize('when', ['before the sleep', 'during the sleep'])
def test_a_sleep_in_simulated_time_ends_when_that_has_gone_back(when):
    pytest.importorskip('rclpy')
    clock, stop = StandingClock(10_000 * MS), threading.Event()
    pacer = RosClockPacer(clock)
    clock.time_ns += 10 * MS
    assert not pacer.sleep_until(clock.time_ns, stop)
    back = threading.Timer(
        0.0 if when == 'before the sleep' else 0.02, clock.__setattr__, ('time_ns', MS)
    )
    back.start()
    if when == 'before the sleep':
        back.join()  # a tick takes time, and it is then that the clock is set back
    pacer.sleep_until(10_020 * MS, stop)
    back.join()
    assert pacer.now_ns() == MS
    late = threading.Timer(0.02, clock.__setattr__, ('time_ns', 11 * MS))
    late.start()
    pacer.sleep_until(11 * MS, stop)
    assert pacer.now_ns() == 11 * MS, 'it goes on from the new time'


def test_simulated_time_that_begins_or_jumps_ahead_is_no_missed_period():
    epoch_ns = 1_700_000_000_000_000_000

    def work(scripted: Scripted, tick: int) -> None:
        if tick in (1, 4):
            scripted.pacer.time_ns += epoch_ns + 3 * MS

    ran = Scripted(work, ticks=7, jump_ns=1000 * MS).run()
    jumps = [0, 0, 1, 1, 1, 2, 2]
    offsets = [0, 10, 13, 23, 33, 36, 46]
    expected = [n * epoch_ns + ms * MS for n, ms in zip(jumps, offsets, strict=True)]
    assert ran.begins_ns == expected, 'the periods begin anew where time is'
    assert ran.loop.overruns == 0
    assert ran.loop.periods().max_s == pytest.approx(0.01)


def test_real_time_that_was_missed_is_missed_however_much_it_was():
    ran = Scripted(takes(0, 5000), ticks=4).run()
    assert ran.loop.overruns == 499


def test_what_a_tick_raises_ends_the_loop_and_is_handed_over_once():
    def work(scripted: Scripted, tick: int) -> None:
        if tick == 3:
            raise RuntimeError('defect')

    ran = Scripted(work, ticks=10).run()
    assert [str(error) for error in ran.errors] == ['defect']
    assert len(ran.begins_ns) == 4
    assert not ran.loop.running


def test_it_starts_again_after_an_end_with_counters_at_0():
    ran = Scripted(takes(0, 37), ticks=4).run()
    assert ran.loop.overruns == 2
    ran.finished.clear()
    ran.pacer._left = 2
    ran.run()
    assert len(ran.begins_ns) == 6
    assert (ran.loop.overruns, ran.loop.periods().count) == (0, 1)


def test_it_ends_at_once_however_long_its_period():
    ticked = threading.Event()
    loop = real_loop(ticked.set, rate_hz=0.1)
    loop.start()
    assert ticked.wait(5.0)
    begin = time.monotonic()
    assert loop.stop()
    assert time.monotonic() - begin < 1.0
    assert loop.stop(), 'a second stop is harmless'


def test_stop_reports_a_tick_that_hangs():
    entered, release = threading.Event(), threading.Event()

    def tick() -> None:
        entered.set()
        release.wait(10.0)

    loop = real_loop(tick, rate_hz=100.0)
    loop.start()
    assert entered.wait(5.0)
    assert not loop.stop(timeout_s=0.05)
    release.set()
    assert loop.stop()


def test_stop_from_within_the_tick_does_not_wait_for_itself():
    stopped = threading.Event()

    def tick() -> None:
        assert loop.stop()
        stopped.set()

    loop = real_loop(tick, rate_hz=100.0)
    loop.start()
    assert stopped.wait(5.0)


def test_on_the_real_clock_the_mean_period_is_exact():
    count, done = 0, threading.Event()

    def tick() -> None:
        nonlocal count
        count += 1
        if count == 101:
            done.set()

    loop = real_loop(tick, rate_hz=250.0)
    begin_ns = time.monotonic_ns()
    loop.start()
    assert done.wait(10.0)
    taken_s = (time.monotonic_ns() - begin_ns) / 1e9
    loop.stop()
    assert taken_s >= 0.4 - 1e-3, '100 periods of 4 ms, not one early'
    assert loop.periods().p50_s == pytest.approx(0.004, abs=0.001)


def test_refused_real_time_priority_is_a_warning_with_its_remedy(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(scheduling.os, 'sched_setscheduler', refuse)
    ticked, warnings = threading.Event(), []
    loop = real_loop(ticked.set, rate_hz=100.0, priority=50, on_warning=warnings.append)
    loop.start()
    assert ticked.wait(5.0), 'the loop runs all the same'
    loop.stop()
    assert not loop.realtime
    assert len(warnings) == 1
    assert 'priority 50 is not permitted' in warnings[0]
    assert '/etc/security/limits.d' in warnings[0]


def test_real_time_priority_is_set_for_the_loops_thread_alone_where_permitted():
    seen: list[int] = []
    ticked = threading.Event()

    def tick() -> None:
        seen.append(os.sched_getscheduler(0))
        ticked.set()

    warnings: list[str] = []
    loop = real_loop(tick, rate_hz=100.0, priority=10, on_warning=warnings.append)
    loop.start()
    assert ticked.wait(5.0)
    loop.stop()
    assert (seen[0] == os.SCHED_FIFO) == (warnings == []) == loop.realtime
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize(('rate_hz', 'priority'), [(0.0, 0), (float('nan'), 0), (1e6, 0)])
def test_impossible_rates_are_refused(rate_hz, priority):
    with pytest.raises(ConfigError, match='control rate'):
        real_loop(lambda: None, rate_hz=rate_hz, priority=priority)


@pytest.mark.parametrize('priority', [-1, 100])
def test_impossible_priorities_are_refused(priority):
    with pytest.raises(ConfigError, match='realtime_priority'):
        real_loop(lambda: None, rate_hz=10.0, priority=priority)


def test_percentiles_are_of_the_newest_periods_and_the_maximum_of_all():
    ring = PeriodRing(capacity=1000)
    assert ring.summary() == Periods()
    ring.add(90 * MS)
    for period_ms in np.random.default_rng(0).permutation(np.arange(1, 1001)):
        ring.add(int(period_ms) * 10_000)
    summary = ring.summary()
    assert summary.count == 1001
    assert summary.p50_s == pytest.approx(0.00501)
    assert summary.p99_s == pytest.approx(0.00991, abs=1.1e-5)
    assert summary.p999_s == pytest.approx(0.01)
    assert summary.max_s == 0.09


def test_a_loop_that_works_ahead_ticks_before_each_deadline_and_says_how_long():
    left_ns = []
    run = Scripted(lambda run, _: left_ns.append(run.left_ns), ticks=4, ahead_ns=2 * MS).run()
    assert run.begins_ns == [0, 8 * MS, 18 * MS, 28 * MS]
    assert left_ns == [0, 2 * MS, 2 * MS, 2 * MS], 'the first is due at once'


def test_it_works_ahead_for_a_third_of_a_period_at_most():
    left_ns = []
    Scripted(
        lambda run, _: left_ns.append(run.left_ns), ticks=3, rate_hz=500.0, ahead_ns=2 * MS
    ).run()
    assert left_ns[1:] == [2 * MS // 3, 2 * MS // 3]


def test_what_comes_ahead_too_late_is_due_at_once():
    left_ns = []

    def work(run, number) -> None:
        left_ns.append(run.left_ns)
        run.pacer.time_ns += (9 * MS, 11 * MS, 0, 0)[number]

    Scripted(work, ticks=4, ahead_ns=3 * MS).run()
    assert left_ns == [0, 1 * MS, 0, 3 * MS]


def test_a_tick_that_is_brought_forward_is_due_at_once_also_where_it_works_ahead():
    seen = []

    def work(run, _) -> None:
        seen.append((run.pacer.time_ns, run.left_ns, run.loop.elapsed_s))

    run = Scripted(work, ticks=3, ahead_ns=2 * MS)
    begin_ns = run.pacer.time_ns
    run.pacer.news_ns = [begin_ns + 6 * MS]
    run.run()
    assert [(at - begin_ns, left, pytest.approx(s)) for at, left, s in seen] == [
        (0, 0, 0.01),
        (6 * MS, 0, 0.006),
        (14 * MS, 2 * MS, 0.01),
    ]


def test_periods_of_a_loop_that_works_ahead_are_those_it_is_told():
    run = Scripted(
        lambda run, number: run.loop.note((None, 5, 15, None, 40, 52)[number]),
        ticks=6,
        ahead_ns=MS,
    ).run()
    periods = run.loop.periods()
    assert periods.count == 2, 'none over a pause'
    assert periods.max_s == pytest.approx(12e-9)


LEAST_NS = 5 * MS


def late(lead: Lead, count: int) -> Lead:
    for _ in range(count):
        lead.note(LATE_NS + 1)
    return lead


@pytest.mark.parametrize(
    ('rate_hz', 'calm_ms', 'busy_ms'),
    [
        (20, 5, 10),
        (50, 5, 10),
        (100, 10 / 3, 9),
        (200, 5 / 3, 4),
        (500, 2 / 3, 1),
        (1000, 1 / 3, 1 / 3),
    ],
)
def test_work_begins_earlier_where_it_comes_late_and_leaves_others_their_time(
    rate_hz, calm_ms, busy_ms
):
    lead, period_ns = Lead(LEAST_NS), MS * 1000 // rate_hz
    assert lead.of(period_ns, realtime=False) == pytest.approx(calm_ms * MS, abs=1)
    late(lead, 100)
    assert lead.of(period_ns, realtime=False) == pytest.approx(busy_ms * MS, abs=1)


@pytest.mark.parametrize(
    ('rate_hz', 'most_ahead', 'busy_ms'),
    [(50, 2, 10), (100, 2, 10), (200, 2, 9), (200, 3, 10), (500, 2, 3), (1000, 2, 1 / 3)],
)
def test_where_commands_may_wait_work_begins_before_the_one_ahead_is_due(
    rate_hz, most_ahead, busy_ms
):
    lead, period_ns = late(Lead(LEAST_NS, most_ahead=most_ahead), 100), MS * 1000 // rate_hz
    assert lead.of(period_ns, realtime=False) == pytest.approx(busy_ms * MS, abs=1)
    lead.most_ahead = 1
    assert lead.of(period_ns, realtime=False) <= max(period_ns - REST_NS, period_ns // 3)


@pytest.mark.parametrize(('late_ms', 'more_ms'), [(0.4, 0.25), (1, 0.5), (2, 1), (40, 1)])
def test_a_lead_grows_by_half_of_what_was_late_within_bounds(late_ms, more_ms):
    lead = Lead(LEAST_NS)
    lead.note(round(late_ms * MS))
    assert lead.of(20 * MS, realtime=False) == LEAST_NS + more_ms * MS


def test_a_lead_grows_step_by_step_and_goes_back_where_nothing_is_late():
    lead = late(Lead(LEAST_NS), 2)
    assert lead.of(20 * MS, realtime=False) == LEAST_NS + 2 * LEAST_MORE_NS
    for _ in range(1000):
        lead.note(LATE_NS)
    assert lead.of(20 * MS, realtime=False) == LEAST_NS + 2 * LEAST_MORE_NS - 1000 * LESS_NS
    for _ in range(10_000):
        lead.note(0)
    assert lead.of(20 * MS, realtime=False) == LEAST_NS


def test_what_a_lead_grew_beyond_its_bound_is_forgotten():
    lead = late(Lead(LEAST_NS), 1000)
    lead.of(20 * MS, realtime=False)
    for _ in range(LEAST_MORE_NS // LESS_NS):
        lead.note(0)
    assert lead.of(20 * MS, realtime=False) <= 2 * LEAST_NS - LEAST_MORE_NS + LESS_NS


def test_a_lead_with_a_real_time_priority_stays_short():
    lead = late(Lead(LEAST_NS), 100)
    assert lead.of(20 * MS, realtime=True) == LEAST_NS // 2
    assert lead.of(3 * MS, realtime=True) == MS


def test_a_loop_whose_work_takes_place_late_works_further_ahead():
    left_ns = []

    def work(run, number) -> None:
        left_ns.append(run.left_ns)
        run.loop.note(number * 10, late_ns=LATE_NS + 1 if number in (1, 2) else 0)

    Scripted(work, ticks=5, ahead_ns=2 * MS).run()
    assert left_ns[:4] == [0, 2 * MS, 2 * MS + LEAST_MORE_NS, 2 * MS + 2 * LEAST_MORE_NS]
    assert left_ns[4] == 2 * MS + 2 * LEAST_MORE_NS - LESS_NS


def test_a_loop_that_works_further_ahead_than_a_period_keeps_its_rate():
    left_ns = []

    def work(run, number) -> None:
        left_ns.append(run.left_ns)
        run.loop.note(number * 10, late_ns=3 * MS)

    run = Scripted(work, ticks=20, rate_hz=200.0, ahead_ns=5 * MS, most_ahead=3).run()
    assert left_ns[-1] == 10 * MS, 'two periods'
    deadlines_ns = np.add(run.begins_ns, left_ns)
    assert set(np.diff(deadlines_ns)) == {5 * MS}
    assert run.loop.overruns == 0


def test_news_bring_no_tick_forward_that_begins_early_anyway():
    left_ns = []

    def work(run, number) -> None:
        left_ns.append(run.left_ns)
        run.loop.note(number * 10, late_ns=3 * MS)
        assert not run.loop.early

    run = Scripted(work, ticks=30, rate_hz=200.0, ahead_ns=5 * MS, most_ahead=3)
    run.pacer.news_ns = [100 * MS, 111 * MS]
    run.run()
    deadlines_ns = np.add(run.begins_ns, left_ns)
    assert set(np.diff(deadlines_ns)) == {5 * MS}


def real_loop(tick, *, rate_hz: float, priority: int = 0, on_warning=None) -> ControlLoop:
    def failed(error: Exception) -> None:
        raise error

    return ControlLoop(
        tick,
        rate_hz=rate_hz,
        pacer=MonotonicPacer(),
        on_error=failed,
        on_warning=on_warning or failed,
        priority=priority,
    )


def test_a_priority_that_changes_is_taken_by_the_running_thread(monkeypatch):
    asked = []
    taken = threading.Condition()

    def set_realtime(priority):
        with taken:
            asked.append((priority, threading.current_thread().name))
            taken.notify_all()
        return ''

    monkeypatch.setattr(control_loop, 'set_realtime', set_realtime)
    loop = real_loop(lambda: None, rate_hz=200.0)
    loop.start()
    for priority in (20, 0):
        loop.priority = priority
        with taken:
            assert taken.wait_for(lambda p=priority: asked and asked[-1][0] == p, 5.0)
    loop.stop()
    assert asked == [(20, 'control'), (0, 'control')]
    assert not loop.realtime
    with pytest.raises(ConfigError, match='realtime_priority'):
        loop.priority = 100

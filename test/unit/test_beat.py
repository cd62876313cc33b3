"""Tasks of different rates share the beats of the fastest of them."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip('rclpy')

from sparkrt_ros.nodes.beat import Beat


class FakeTimer:
    def __init__(self) -> None:
        self.timer_period_ns = 0
        self.stands = False

    def cancel(self) -> None:
        self.stands = True

    def reset(self) -> None:
        self.stands = False

    def is_canceled(self) -> bool:
        return self.stands


class Rig:
    """A beat whose clock and timer are driven by hand."""

    def __init__(self, **options) -> None:
        self.now_s = 100.0
        self.timer = FakeTimer()
        self.beat = Beat(self, clock_s=lambda: self.now_s, **options)  # type: ignore[arg-type]

    def create_guard_condition(self, callback) -> Rig:
        self.nudged = callback
        self.nudges = 0
        return self

    def trigger(self) -> None:
        """The executor runs what a guard condition is for."""
        self.nudges += 1
        self.nudged()

    def tick(self, seconds: float, period_s: float) -> None:
        """A control thread that rests after each of its ticks."""
        for _ in range(round(seconds / period_s)):
            self.now_s += period_s
            if self.beat.waits(period_s):
                self.beat.at_rest()

    def create_timer(self, period_s: float, callback, *, clock) -> FakeTimer:
        return self.timer

    def run(self, seconds: float, *, late_s: float = 0.0) -> None:
        period_s = self.timer.timer_period_ns / 1e9
        begin_s = self.now_s
        for number in range(round(seconds / period_s)):
            self.now_s = begin_s + number * period_s + (late_s if number % 2 else 0.0)
            self.beat.beat()


def counter(counts: list[int]):
    counts.append(0)
    index = len(counts) - 1

    def act() -> None:
        counts[index] += 1

    return act


def test_each_task_runs_at_its_own_rate_and_the_timer_at_the_fastest():
    rig, counts = Rig(), []
    for rate_hz in (50.0, 30.0, 10.0):
        rig.beat.every(rate_hz, counter(counts))
    assert rig.timer.timer_period_ns == 20_000_000
    rig.run(10.0)
    assert counts == [
        pytest.approx(500, abs=1),
        pytest.approx(300, abs=2),
        pytest.approx(100, abs=2),
    ]


def test_beats_that_come_unevenly_lose_nothing():
    rig, counts = Rig(), []
    rig.beat.every(50.0, counter(counts))
    rig.run(2.0, late_s=0.008)
    assert counts == [100]


def test_tasks_of_equal_rates_share_their_wake_ups_whenever_they_began():
    rig, counts = Rig(), []
    rig.beat.every(10.0, counter(counts))
    rig.tick(0.36, 0.02)
    rig.beat.every(10.0, counter(counts))
    rig.beat.every(5.0, counter(counts))
    rig.tick(0.2, 0.02)
    begun, rig.nudges = list(counts), 0
    rig.tick(20.0, 0.02)
    done = [count - before for count, before in zip(counts, begun, strict=True)]
    assert done == [
        pytest.approx(200, abs=1),
        pytest.approx(200, abs=1),
        pytest.approx(100, abs=1),
    ]
    assert rig.nudges == pytest.approx(200, abs=1)


def test_what_was_missed_is_not_made_up_for():
    rig, counts = Rig(), []
    rig.beat.every(50.0, counter(counts))
    rig.run(1.0)
    rig.now_s += 60.0
    rig.run(1.0)
    assert counts == [pytest.approx(100, abs=1)]


def test_the_timer_stands_without_tasks_and_follows_their_rates():
    rig = Rig()
    assert rig.timer.stands
    slow, fast = rig.beat.every(10.0, list), rig.beat.every(50.0, list)
    assert not rig.timer.stands
    fast.cancel()
    assert rig.timer.timer_period_ns == 100_000_000
    slow.rate_hz = 500.0
    assert rig.timer.timer_period_ns == 2_000_000
    slow.cancel()
    assert rig.timer.stands


def test_a_task_may_end_itself():
    rig, counts = Rig(), []
    act = counter(counts)
    task = rig.beat.every(50.0, lambda: (act(), task.cancel()))
    rig.beat.every(50.0, counter(counts))
    rig.run(0.2)
    assert counts == [1, 10]


def test_what_is_due_runs_when_the_control_thread_rests_and_the_timer_waits():
    rig, counts = Rig(), []
    rig.beat.every(30.0, counter(counts))
    rig.beat.every(10.0, counter(counts))
    rig.tick(10.0, 0.02)
    assert counts == [pytest.approx(300, abs=2), pytest.approx(100, abs=2)]
    assert rig.nudges <= 310, 'no wake-up where nothing is due'
    assert rig.timer.timer_period_ns == 100_000_000


def test_a_control_thread_slower_than_the_tasks_does_not_pace_them():
    rig, counts = Rig(), []
    rig.beat.every(30.0, counter(counts))
    rig.tick(1.0, 0.1)
    assert counts == [0]
    assert rig.timer.timer_period_ns == 33_333_333


def test_the_timer_goes_on_once_the_control_thread_is_gone():
    rig, counts = Rig(), []
    rig.beat.every(30.0, counter(counts))
    rig.tick(1.0, 0.02)
    before = counts[0]
    rig.now_s += 0.1
    rig.beat.beat()
    assert counts[0] == before + 1
    assert rig.timer.timer_period_ns == 33_333_333


def test_what_is_shared_is_done_by_the_control_thread_itself():
    rig, counts = Rig(), []
    rig.beat.every(20.0, counter(counts), shared=True)
    rig.beat.every(10.0, counter(counts))
    rig.tick(10.0, 0.02)
    assert counts == [pytest.approx(200, abs=2), pytest.approx(100, abs=2)]
    assert rig.nudges <= 105, 'only for what is not'
    rig.beat.beat()
    assert counts[0] <= 202, 'the timer leaves it to the control thread'


@pytest.mark.parametrize('leave', ['tells', 'vanishes'])
def test_without_a_control_thread_the_ros_thread_does_what_is_shared(leave):
    rig, counts = Rig(), []
    rig.beat.every(20.0, counter(counts), shared=True)
    rig.run(1.0)
    assert counts == [20]
    rig.tick(1.0, 0.02)
    before = counts[0]
    rig.now_s += 0.05
    if leave == 'tells':
        rig.beat.let_go()
        assert counts == [before + 1]
        assert rig.timer.timer_period_ns == 50_000_000
    else:
        rig.beat.beat()
        assert counts == [before], 'it might just be late'
        assert rig.timer.timer_period_ns == 150_000_000
        rig.now_s += 0.15
        rig.beat.beat()
    rig.run(1.0)
    assert counts[0] >= before + 6
    assert rig.timer.timer_period_ns == 50_000_000


def test_two_threads_never_do_what_is_shared_at_once():
    rig, entered, leave, counts = Rig(), threading.Event(), threading.Event(), []

    def act() -> None:
        counts.append(threading.current_thread())
        entered.set()
        assert leave.wait(30.0)

    rig.beat.every(20.0, act, shared=True)
    control = threading.Thread(target=rig.beat.at_rest)
    control.start()
    assert entered.wait(30.0)
    rig.beat.let_go()  # runs what is due, on this thread
    leave.set()
    control.join()
    assert counts == [control]


def test_every_task_is_shielded():
    seen = []

    def shield(act):
        def run() -> None:
            try:
                act()
            except ZeroDivisionError as error:
                seen.append(error)

        return run

    rig = Rig(shield=shield)
    rig.beat.every(20.0, lambda: 1 // 0, shared=True)
    rig.beat.every(20.0, lambda: 1 // 0)
    rig.run(0.05)
    rig.tick(0.1, 0.02)
    assert len(seen) >= 4


def test_without_tasks_a_control_thread_wakes_nobody():
    rig, counts = Rig(), []
    task = rig.beat.every(30.0, counter(counts))
    task.cancel()
    rig.tick(1.0, 0.02)
    assert rig.nudges == 0
    assert counts == [0]

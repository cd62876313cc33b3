"""Durations on a clock that begins at 0, stands still and jumps back."""

from sparkrt_ros.nodes.rising_clock import RisingClock

S = 1_000_000_000


def test_only_time_that_went_forward_counts():
    now_ns = [0]
    clock = RisingClock(lambda: now_ns[0])
    said = []
    for now_s in (0, 1_700_000_000, 1_700_000_003, 1_700_000_003, 5, 6, 8):
        now_ns[0] = now_s * S
        said.append(clock())
    assert said == [0.0, 0.0, 3.0, 3.0, 3.0, 4.0, 6.0]


def test_it_tells_what_it_said_at_a_time_near_by():
    now_ns = [100 * S]
    clock = RisingClock(lambda: now_ns[0])
    clock()
    now_ns[0] = 101 * S
    assert clock() == 1.0
    now_ns[0] = 103 * S
    assert clock.at(101 * S) == 1.0
    assert clock.at(103 * S) == clock() == 3.0

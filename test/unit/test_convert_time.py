"""Stamps, nanoseconds and ages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkrt_ros.convert.contract import StreamTiming
from sparkrt_ros.convert.time import (
    TWO_CLOCKS_S,
    age_s,
    fill_stamp,
    sample_time_ns,
    seconds_to_ns,
    stamp_to_ns,
)
from sparkrt_ros.runtime.errors import MessageError

SECOND = 1_000_000_000


def stamped(time_ns: int) -> SimpleNamespace:
    stamp = SimpleNamespace(sec=0, nanosec=0)
    fill_stamp(stamp, time_ns)
    return SimpleNamespace(header=SimpleNamespace(stamp=stamp))


@given(time_ns=st.integers(-(2**31) * SECOND, (2**31 - 1) * SECOND))
def test_stamps_keep_every_nanosecond(time_ns: int) -> None:
    stamp = SimpleNamespace(sec=0, nanosec=0)
    fill_stamp(stamp, time_ns)
    assert 0 <= stamp.nanosec < SECOND
    assert stamp_to_ns(stamp) == time_ns


def test_ages_are_exact_at_todays_times() -> None:
    now = 1_800_000_000 * SECOND
    assert age_s(now - 1_000, now) == 1e-6
    assert age_s(now + SECOND // 2, now) == -0.5


def test_seconds_are_rounded_not_cut() -> None:
    assert seconds_to_ns(0.1 + 0.2) == 300_000_000
    assert seconds_to_ns(2 / 3) == 666_666_667


class TestSampleTime:
    def test_header_clock_takes_the_stamp(self) -> None:
        timing = StreamTiming(max_age_s=1.0)
        time_ns = sample_time_ns(stamped(5), received_ns=9, timing=timing, topic='t')
        assert time_ns == 5

    def test_receive_clock_never_looks_at_the_header(self) -> None:
        timing = StreamTiming(max_age_s=1.0, clock='receive')
        assert sample_time_ns(object(), received_ns=9, timing=timing, topic='t') == 9

    @pytest.mark.parametrize('sign', [-1, 1])
    def test_far_stamps_are_another_clock_near_ones_are_late(self, sign: int) -> None:
        timing = StreamTiming(max_age_s=1.0)
        now = 1_800_000_000 * SECOND
        limit = round(TWO_CLOCKS_S) * SECOND
        near, far = now + sign * limit, now + sign * (limit + SECOND)
        assert sample_time_ns(stamped(near), received_ns=now, timing=timing, topic='t') == near
        with pytest.raises(MessageError, match='behind' if sign < 0 else 'ahead'):
            sample_time_ns(stamped(far), received_ns=now, timing=timing, topic='t')

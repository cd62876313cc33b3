"""Between rows: exact at rows, never beyond them, no faster than documented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_helpers import DT_NS, DT_S, chunk, sample, timeline

from sparkrt_ros.runtime.chunking.interpolation import CUBIC_SPEED, steepest, tangents

values = st.floats(-10.0, 10.0)
courses = st.lists(values, min_size=1, max_size=9)


def hermite(rows: list[float], place: float) -> float:
    """The documented cubic in plain floats, in the textbook's basis instead of Horner's form."""
    last = len(rows) - 1
    row = min(int(place), last)
    if row == last:
        return rows[last]

    def tangent(index: int) -> float:
        before = rows[index] - rows[index - 1] if index > 0 else rows[1] - rows[0]
        after = rows[index + 1] - rows[index] if index < last else 0.0
        if before * after <= 0.0:
            return 0.0
        size = min(abs(before + after) / 2, 2 * abs(before), 2 * abs(after))
        return size if before > 0 else -size

    x = place - row
    return (
        rows[row] * (1 + 2 * x) * (1 - x) ** 2
        + tangent(row) * x * (1 - x) ** 2
        + rows[row + 1] * x * x * (3 - 2 * x)
        + tangent(row + 1) * x * x * (x - 1)
    )


def play(rows: np.ndarray, *, parts: int = 8, mode: str = 'queue') -> np.ndarray:
    """A chunk alone, cubic, at ``parts`` places between two rows: (n, 2)."""
    held = timeline(mode=mode)
    held.interpolation = 'cubic'
    held.take(chunk(rows, stamp_ns=0), now_ns=0)
    return np.array([sample(held, k * DT_NS // parts) for k in range(len(rows) * parts)])


def two(rows: list[float]) -> np.ndarray:
    """(T, 2): a course, and its mirror image upside down and twice as large."""
    return np.array([[value, -2.0 * value] for value in rows])


@pytest.mark.parametrize('mode', ['queue', 'ensemble', 'average'])
@settings(deadline=None, max_examples=60)
@given(rows=courses)
def test_the_cubic_equals_the_textbook_form_in_every_mode(mode, rows):
    played = play(two(rows), mode=mode)
    wanted = [hermite(rows, k / 8) for k in range(len(played))]
    np.testing.assert_allclose(played[:, 0], wanted, rtol=0, atol=1e-13)
    np.testing.assert_allclose(played[:, 1], -2.0 * np.array(wanted), rtol=0, atol=2e-13)


@settings(deadline=None, max_examples=200)
@given(rows=courses)
def test_the_cubic_stays_between_its_two_rows_and_meets_both_bit_for_bit(rows):
    played = play(two(rows))[:, 0]
    assert played[::8].tolist() == rows
    for index in range(len(rows) - 1):
        low, high = sorted(rows[index : index + 2])
        piece = played[8 * index : 8 * index + 9]
        assert low <= piece.min()
        assert piece.max() <= high


@settings(deadline=None, max_examples=200)
@given(rows=courses)
def test_the_cubic_is_at_most_one_and_a_half_times_as_fast_as_the_largest_step(rows):
    largest = np.abs(np.diff(rows)).max(initial=0.0)
    assert steepest(two(rows), cubic=True)[0] <= CUBIC_SPEED * largest * (1 + 1e-12)
    assert steepest(two(rows), cubic=False)[0] == largest


def test_the_bound_of_the_speed_is_reached_where_a_step_stands_alone():
    assert steepest(np.array([[0.0], [0.0], [1.0], [1.0]]), cubic=True) == [CUBIC_SPEED]


@settings(deadline=None, max_examples=30)
@given(rows=st.lists(values, min_size=2, max_size=5))
def test_the_steepest_place_is_found(rows):
    fine = play(two(rows), parts=300)[:, 0]
    found = steepest(two(rows), cubic=True)[0]
    assert np.abs(np.diff(fine)).max() * 300 == pytest.approx(found, rel=1e-2, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(values, min_size=3, max_size=6))
def test_the_speed_does_not_leap_at_a_row(rows):
    held = timeline()
    held.interpolation = 'cubic'
    held.take(chunk(two(rows), stamp_ns=0), now_ns=0)
    near_ns = DT_NS // 10_000
    for index in range(1, len(rows)):
        at_ns = index * DT_NS
        before, at, after = (
            sample(held, now_ns)[0] for now_ns in (at_ns - near_ns, at_ns, at_ns + near_ns)
        )
        assert (after - at) * 10_000 == pytest.approx((at - before) * 10_000, abs=0.05)


def test_a_steady_course_stays_steady_and_the_last_row_is_held():
    held = timeline()
    held.interpolation = 'cubic'
    held.take(chunk(two([0.0, 1.0, 2.0, 3.0]), stamp_ns=0), now_ns=0)
    assert sample(held, DT_NS + DT_NS // 4) == [1.25, -2.5]
    assert sample(held, 3 * DT_NS + DT_NS // 2) == [3.0, -6.0]
    assert sample(held, 4 * DT_NS) is None


def test_tangents_of_one_row_and_of_a_turn_are_0():
    assert tangents(np.array([[3.0]])).tolist() == [[0.0]]
    assert tangents(np.array([[0.0], [2.0], [0.0]])).tolist() == [[2.0], [0.0], [0.0]]


def test_the_steepest_of_a_single_row_is_0():
    assert steepest(np.array([[5.0, 1.0]]), cubic=True).tolist() == [0.0, 0.0]


def test_the_interpolation_switches_without_a_step():
    rows = two([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    held = timeline()
    held.take(chunk(rows, stamp_ns=0), now_ns=0)
    step_ns = DT_NS // 16
    before = [sample(held, k * step_ns) for k in range(21)][-1]
    held.interpolation = 'cubic'
    after = sample(held, 21 * step_ns)
    assert abs(after[0] - before[0]) <= 1.5 / 16
    assert abs(hermite([0.0, 0.0, 1.0, 1.0], 1.25) - before[0]) > 0.08, 'the courses do differ'
    assert held.inside_rates[0] == pytest.approx(CUBIC_SPEED / DT_S)

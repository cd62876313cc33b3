"""What the report draws and tells: nothing is lost when thinned, nothing made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_report_samples import (
    BAD,
    GOOD,
    LEROBOT,
    LIMITS,
    REFERENCE,
    START_NS,
    arm,
    comparison,
    sample,
    with_commands,
)

from sparkrt_ros.replay.report_commands import errors_of, worst_commands
from sparkrt_ros.replay.report_numbers import (
    broken_at_gaps,
    chunk_times,
    columns,
    cosine,
    differs,
    errors,
    first_rows,
    judged_space,
    milliseconds,
    plain,
    power_of_ten,
    quantity,
    seconds,
    thinned,
    whole_chunk,
)
from sparkrt_ros.replay.report_parts import cell_band, flat, limits_of, thresholds, worst_of
from sparkrt_ros.replay.report_plots import colours, map_scale, short
from sparkrt_ros.replay.report_timeline import lanes_of, present
from sparkrt_ros.report_style import REFERENCE as GREY


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(2, 50))
def test_thinning_keeps_the_extremes_and_the_limit(values: list[float], points: int) -> None:
    x, y = thinned(np.arange(len(values), dtype=float), np.array(values), points=points)
    assert len(x) == len(y) <= max(points, 1)
    assert y.min() == min(values)
    assert y.max() == max(values)
    assert (np.diff(x) >= 0).all()


def test_thinning_keeps_a_gap_and_no_more() -> None:
    values = np.sin(np.arange(1000.0))
    values[400:600] = np.nan
    values[100] = np.nan
    x, y = thinned(np.arange(1000.0), values, points=100)
    assert np.isnan(y[(x >= 400) & (x < 580)]).all()
    assert not np.isnan(y[(x < 400) | (x >= 600)]).any()


def test_a_line_breaks_where_time_leaps_or_goes_back() -> None:
    steps = np.array([0, 1, 2, 3, 30, 31, 32, 5, 6], dtype=float)
    x, y = broken_at_gaps(steps, np.ones(9))
    assert x[np.isnan(y)].tolist() == [30, 5]
    assert np.isnan(y).sum() == 2


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 50))
def test_columns_hold_the_largest_of_every_run(count: int, limit: int) -> None:
    table = np.random.default_rng(count).random((count, 2))
    shown, run = columns(table, limit=limit)
    assert len(shown) <= limit
    assert len(shown) == -(-count // run)
    assert np.array_equal(shown[0], table[:run].max(axis=0))
    assert shown.max() == table.max()


def test_columns_hide_neither_infinity_nor_what_is_known() -> None:
    table = np.array([[np.nan], [1.0], [np.inf], [np.nan], [np.nan], [np.nan]])
    shown, run = columns(table, limit=3)
    assert run == 2
    np.testing.assert_array_equal(shown, [[1.0], [np.inf], [np.nan]])


def test_errors_are_the_largest_of_each_chunk_and_joint_in_model_space() -> None:
    result = sample(chunks=300)
    bad = next(c for c in result.comparisons if c.candidate == BAD)
    found, wanted = (a.normalized.astype(np.float64) for a in (result.arms[2], result.arms[0]))
    np.testing.assert_array_equal(errors(result, bad), np.abs(found - wanted).max(axis=1))
    good = next(c for c in result.comparisons if c.candidate == GOOD)
    assert differs(errors(result, bad))
    assert not differs(errors(result, good))


def test_what_is_not_finite_is_an_infinite_error() -> None:
    result = sample()
    for value in (np.nan, np.inf, -np.inf):
        broken = result.arms[0].actions.copy()
        broken[3, 4, 1] = value
        candidate = arm('broken', broken)
        judged = comparison(candidate, result.arms[0])
        found = errors(replace(result, arms=(result.arms[0], candidate)), judged)
        assert np.argwhere(np.isinf(found)).tolist() == [[3, 1]]
        assert not np.isnan(found).any()


def test_without_model_space_errors_are_in_robot_units() -> None:
    result = sample()
    recorded = arm('recorded', result.arms[0].actions + 0.25, normalized=None)
    judged = comparison(recorded, result.arms[0])
    result = replace(result, arms=(result.arms[0], recorded), comparisons=(judged,))
    assert judged_space(result, judged) == 'robot'
    np.testing.assert_allclose(errors(result, judged), 0.25)


def test_an_arm_that_is_missing_or_of_another_shape_has_no_errors() -> None:
    result = sample()
    bad = next(c for c in result.comparisons if c.candidate == BAD)
    assert errors(replace(result, arms=result.arms[:1]), bad).shape == (0, 3)
    shorter = arm(BAD, result.arms[2].actions[:-1])
    assert errors(replace(result, arms=(result.arms[0], shorter)), bad).shape == (0, 3)


def test_first_rows_are_those_compared_with_the_reference() -> None:
    result = sample()
    overlay = first_rows(result, REFERENCE, points=100)
    assert [curve.label for curve in overlay.values] == [REFERENCE, GOOD, BAD]
    assert [curve.label for curve in overlay.differences] == [GOOD, BAD]
    np.testing.assert_allclose(overlay.values[2].y[1], result.arms[2].actions[:, 0, 1])
    np.testing.assert_allclose(overlay.values[0].x[1], chunk_times(result))
    other = first_rows(result, LEROBOT, points=100)
    assert [curve.label for curve in other.values] == [LEROBOT, REFERENCE]
    np.testing.assert_allclose(other.differences[0].y[0], -1e-7)


def test_values_that_are_not_finite_are_marked_and_break_the_line() -> None:
    result = sample()
    result.arms[2].actions[4, 0, 1] = np.nan
    curve = first_rows(result, REFERENCE, points=100).values[2]
    assert curve.bad[1].tolist() == [chunk_times(result)[4]]
    assert np.isnan(curve.y[1]).tolist() == [i == 4 for i in range(12)]
    assert curve.bad[0].size == 0


def test_the_worst_chunk_is_shown_whole() -> None:
    result = sample()
    judged = replace(result.comparisons[1], worst_chunk=5)
    overlay = whole_chunk(result, judged)
    assert [curve.label for curve in overlay.values] == [REFERENCE, BAD]
    np.testing.assert_allclose(overlay.values[1].y[2], result.arms[2].actions[5, :, 2])
    np.testing.assert_allclose(overlay.values[1].x[2], np.arange(10) * 0.05)


def test_commands_differ_only_where_something_was_recorded() -> None:
    result = with_commands(sample())
    found = errors_of(result, result.comparisons[-1])
    assert found.shape == (12, 3)
    assert np.isnan(found[2]).all()
    # Recorded 1 ms after the tick: the joint has moved on by up to 1 mrad and 2 mrad.
    np.testing.assert_allclose(found[4:10, 0], 0.02, atol=1.1e-3)
    np.testing.assert_allclose(found[4:10, 1], 0.02, atol=2.1e-3)


def test_the_worst_commands_are_those_around_the_chunk() -> None:
    result = with_commands(sample(chunks=40))
    judged = replace(result.comparisons[-1], worst_chunk=20)
    overlay = worst_commands(result, judged, points=5000)
    assert [curve.label for curve in overlay.values] == ['recorded', REFERENCE]
    times = overlay.values[1].x[0]
    start = chunk_times(result)[20]
    assert start - 0.5 <= times.min() < start
    assert times.max() < chunk_times(result)[21] + 0.51


def test_a_joint_recorded_rarely_is_still_a_line() -> None:
    result = with_commands(sample())
    overlay = worst_commands(result, result.comparisons[-1], points=5000)
    rare, often = overlay.values[0].y[2], overlay.values[0].y[0]
    assert np.isfinite(rare).sum() > 3
    assert np.isfinite(often).sum() > 5 * np.isfinite(rare).sum()
    assert overlay.values[0].bad[2].size == 0


def test_a_hue_belongs_to_an_arm_and_grey_to_what_is_compared_with() -> None:
    result = with_commands(sample())
    first, second = colours(result, REFERENCE), colours(result, 'recorded')
    assert first[REFERENCE] == GREY
    assert second['recorded'] == GREY
    assert second[REFERENCE] != GREY
    assert first[BAD] == second[BAD]
    hues = [first[label] for label in (GOOD, BAD, LEROBOT)]
    assert len(set(hues)) == 3


def test_the_scale_of_the_map_is_made_of_whole_decades() -> None:
    table = np.array([[0.0, 3e-4], [np.inf, np.nan], [0.02, 0.0]])
    low, high = map_scale([table])
    assert low == pytest.approx(1e-4)
    assert high == pytest.approx(0.1)
    assert map_scale([np.zeros((3, 2))]) is None
    wide_low, wide_high = map_scale([np.array([[1e-12, 1.0]])])
    assert wide_high / wide_low == pytest.approx(1e6)


def test_limits_follow_from_the_thresholds() -> None:
    judged = sample().comparisons[0]
    assert limits_of(judged, 'max_abs') == {'warn': 0.05, 'fail': 0.1}
    assert limits_of(judged, 'cosine')['warn'] == pytest.approx(0.99995)
    assert limits_of(judged, 'unknown') == {}
    text = thresholds(judged)
    assert 'cosine ≥ 0.9999' in text
    assert 'max |Δ| ≤ 0.1' in text
    assert '50%' in text


@pytest.mark.parametrize(
    ('metric', 'value', 'band'),
    [
        ('max_abs', 0.0, ''),
        ('max_abs', 0.05, ''),
        ('max_abs', 0.06, 'warn'),
        ('max_abs', 0.2, 'fail'),
        ('max_abs', np.inf, 'fail'),
        ('cosine', 1.0, ''),
        ('cosine', 0.99993, 'warn'),
        ('cosine', 0.99, 'fail'),
        ('cosine', np.nan, 'fail'),
        ('nothing', 1.0, ''),
    ],
)
def test_a_cell_is_coloured_beyond_its_threshold(metric: str, value: float, band: str) -> None:
    judged = replace(sample().comparisons[0], thresholds=LIMITS)
    assert cell_band(judged, metric, value) == band


def test_what_is_judged_is_the_worst_chunk() -> None:
    result = sample()
    judged = result.comparisons[1]
    chunks = judged.spaces[0].chunks
    found = worst_of(judged, judged.spaces[0])
    assert found.cosine == min(chunk.cosine for chunk in chunks)
    assert found.max_abs == max(chunk.max_abs for chunk in chunks)
    commands = with_commands(result).comparisons[-1]
    assert worst_of(commands, commands.spaces[0]) == commands.spaces[0].overall


def test_a_span_of_messages_ends_at_a_long_gap() -> None:
    times = np.concatenate([np.arange(0, 2, 0.1), np.arange(5, 6, 0.1)])
    spans = present(times, 10.0)
    assert [round(start, 3) for start, _ in spans] == [0.0, 5.0]
    assert [round(length, 3) for _, length in spans] == [1.9, 0.9]
    assert present(np.empty(0), 10.0) == []
    assert present(np.array([3.0]), 10.0)[0][1] > 0


def test_an_event_belongs_to_its_stream_by_name_or_topic() -> None:
    result = sample()
    lanes = [lanes_of(result, event) for event in result.events]
    assert lanes == [('front',), ('wrist',), ('front',), ('whole bag',), ('front',)]
    for name, wanted in (
        ('elsewhere', ('whole bag',)),
        ('front/image, wrist', ('front', 'wrist')),
        ('image', ('front',)),
        ('ront', ('whole bag',)),
    ):
        assert lanes_of(result, replace(result.events[0], stream=name)) == wanted


def test_times_are_exact_although_stamps_are_large() -> None:
    result = sample()
    moved = [replace(r, taken_ns=START_NS + 3_000_001) for r in result.records[:1]]
    assert chunk_times(replace(result, records=tuple(moved)))[0] == pytest.approx(1e-9, rel=1e-6)


@pytest.mark.parametrize(
    ('text', 'wanted'),
    [
        (plain(0.0), '0'),
        (plain(0.01234), '0.0123'),
        (plain(1.24e-7), '1.2e-7'),
        (plain(float('nan')), 'NaN'),
        (plain(float('-inf')), '−∞'),
        (quantity(1.23e-5, 'rad'), '12.3 µrad'),
        (quantity(0.0, 'rad'), '0 rad'),
        (quantity(0.002, 'rad or m'), '0.002 rad or m'),
        (quantity(5e-4, ''), '5.0e-4'),
        (quantity(2.5, 'm'), '2.5 m'),
        (quantity(1e-20, 'm'), '1.0e-20 m'),
        (quantity(float('inf'), 'rad'), '∞'),
        (power_of_ten(1e-12), '10⁻¹²'),
        (power_of_ten(1.0), '10⁰'),
        (cosine(1.0), '1'),
        (cosine(1.0000000000000002), '1'),
        (cosine(0.99999999), '0.9999999'),
        (cosine(0.25), '0.2500000'),
        (cosine(float('nan')), 'NaN'),
        (seconds(12.34), '12.3 s'),
        (seconds(245.0), '4 min 05 s'),
        (milliseconds(0.00084), '0.84 ms'),
        (milliseconds(2.5), '2.5 s'),
        (short('a' * 60, 11), 'aaaaa…aaaaa'),
        (short('abc', 11), 'abc'),
    ],
)
def test_numbers_are_told_shortly(text: str, wanted: str) -> None:
    assert text == wanted


def test_a_tree_becomes_dotted_names() -> None:
    tree = {'a': {'b': 1, 'c': ['x', 'y']}, 'd': None, 'e': {}, 'f': 'z' * 1000}
    rows = dict(flat(tree))
    assert rows['a.b'] == '1'
    assert rows['a.c'] == 'x; y'
    assert rows['d'] == 'null'
    assert rows['e'] == '{}'
    assert len(rows['f']) < 500

"""Seams: what is sent goes on without a jump, and the largest step is bounded and reported."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_helpers import DT_NS, chunk, drive, ramp, sample, timeline

from sparkrt_ros.runtime.chunking.interpolation import INTERPOLATIONS
from sparkrt_ros.runtime.chunking.seam import (
    FADE,
    LONGEST,
    SEAM_FACTOR,
    SWITCH_BLEND_S,
    Seam,
    SeamFigures,
)
from sparkrt_ros.runtime.chunking.timeline import MODES
from sparkrt_ros.runtime.errors import ConfigError

PERIOD_NS = DT_NS // 4
PERIOD_S = PERIOD_NS / 1e9


def waves(rows: int, *, begin: float = 0.0, at: float = 0.0) -> np.ndarray:
    """(rows, 2): slow waves around ``at``, the second joint half as wide."""
    phase = begin + 0.3 * np.arange(rows)
    return at + np.stack([np.sin(phase), 0.5 * np.cos(phase)], axis=1)


def play(held, begin_ns: int, ticks: int) -> np.ndarray:
    """(ticks, 2): what is sent from ``begin_ns`` on."""
    return np.array([sample(held, begin_ns + k * PERIOD_NS) for k in range(ticks)])


def two_chunks(*, apart: float, blend_s: float, mode: str = 'queue'):
    """A timeline in which a chunk took over from one ``apart`` from it; the values around it."""
    held = timeline(mode=mode)
    held.blend_s = blend_s
    held.take(chunk(waves(60), stamp_ns=0), now_ns=0)
    before = play(held, 0, 21)
    held.take(
        chunk(waves(60, begin=1.5, at=apart), stamp_ns=5 * DT_NS, chunk_id=2), now_ns=5 * DT_NS
    )
    return held, np.concatenate([before, play(held, 21 * PERIOD_NS, 140)])


def test_without_a_blend_the_course_leaps_and_the_leap_is_reported():
    held, sent = two_chunks(apart=0.7, blend_s=0.0)
    steps = np.abs(np.diff(sent, axis=0))
    assert int(steps.max(axis=1).argmax()) == 20
    figures = held.seams
    assert figures.seams == 1
    assert figures.last == figures.largest == steps[20].max()
    assert figures.last_ratio == pytest.approx((steps[20] / (held.inside_rates * PERIOD_S)).max())


@pytest.mark.parametrize('apart', [0.02, 0.7, -1.5])
@pytest.mark.parametrize('mode', ['queue', 'ensemble', 'rtc', 'weighted_average', 'conservative'])
def test_with_a_blend_no_step_exceeds_the_bound(mode, apart):
    held, sent = two_chunks(apart=apart, blend_s=0.1, mode=mode)
    most = SEAM_FACTOR * held.inside_rates * PERIOD_S
    steps = np.abs(np.diff(sent, axis=0))
    assert (steps <= most * (1 + 1e-9) + 1e-12).all()
    assert held.seams.largest_ratio <= SEAM_FACTOR * (1 + 1e-9)
    assert steps[20:40].max() <= held.seams.largest * (1 + 1e-9) <= steps[20:].max() * (1 + 2e-9)


def test_what_is_sent_goes_on_in_place_and_in_speed():
    held, sent = two_chunks(apart=0.05, blend_s=0.4)
    speeds = np.diff(sent[:, 0])
    assert abs(speeds[20] - speeds[19]) < 0.1 * abs(speeds[19])
    assert held.seams.largest_ratio <= SEAM_FACTOR


def test_after_the_blend_the_course_is_sent_bit_for_bit():
    held, sent = two_chunks(apart=0.05, blend_s=0.1)
    alone = timeline()
    alone.take(chunk(waves(60, begin=1.5, at=0.05), stamp_ns=0), now_ns=0)
    course = play(alone, 0, 141)
    away = np.abs(sent[20:] - course).max(axis=1)
    assert away[0] > 0.04
    assert away[round(0.1 / PERIOD_S)] <= 0.2 * away[0]
    assert not away[-40:].any()
    figures = held.seams
    play(held, 161 * PERIOD_NS, 20)
    assert held.seams == figures, 'a seam ends with its blend'


def test_a_leap_fades_as_documented():
    """One joint that stands still apart from the leap: x(t) = x0 (1 + y + y^2/2) exp(-y)."""
    seam = Seam(size=1)
    seam.blend_s = 0.5
    seam.learn(np.array([1e9]))
    value = np.zeros(1)
    seam.follow(0, value=value)
    seam.leap(10, old=np.zeros(1), new=np.ones(1), new_rate=np.zeros(1), cause='chunk')
    for tick in range(1, 60):
        value[0] = 1.0
        now_ns = tick * 10_000_000 + 10
        seam.follow(now_ns, value=value)
        y = FADE / 0.5 * tick * 0.01
        assert value[0] == pytest.approx(1.0 - (1 + y + y * y / 2) * math.exp(-y), abs=1e-9)
    assert 1.0 - (1 + FADE + FADE**2 / 2) * math.exp(-FADE) == pytest.approx(0.98, abs=0.001)


def test_a_joint_that_never_moved_inside_chunks_comes_along_within_the_longest_time():
    held = timeline()
    held.blend_s = 0.1
    held.take(chunk(np.zeros((200, 2)), stamp_ns=0), now_ns=0)
    play(held, 0, 5)
    held.take(chunk(np.ones((200, 2)), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    sent = play(held, 5 * PERIOD_NS, 200)[:, 0]
    assert np.diff(sent).max() <= PERIOD_S / (LONGEST * 0.1) * (1 + 1e-9)
    assert (np.diff(sent) >= 0.0).all()
    assert sent[round(1.5 * LONGEST * 0.1 / PERIOD_S)] == pytest.approx(1.0, abs=0.02)
    assert sent[-1] == 1.0
    assert held.seams.largest_ratio == 0.0, 'nothing inside chunks to compare with'


def test_a_chunk_of_an_average_that_runs_out_leaves_no_step_either():
    largest = {}
    for blend_s in (0.0, 0.1):
        held = timeline(mode='ensemble', coeff=0.0)
        held.blend_s = blend_s
        held.take(chunk(waves(40, at=1.0), stamp_ns=0), now_ns=0)
        play(held, 0, 5)
        held.take(chunk(waves(90), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
        steps = np.abs(np.diff(play(held, 5 * PERIOD_NS, 200), axis=0))
        largest[blend_s] = steps.max()
    assert largest[0.0] > 0.4, 'half of a leap of 1'
    assert (steps <= SEAM_FACTOR * held.inside_rates * PERIOD_S * (1 + 1e-9) + 1e-12).all()


def test_a_start_and_a_chunk_after_an_underrun_are_no_seams():
    held = timeline()
    held.blend_s = 0.2
    held.take(chunk(ramp(3), stamp_ns=0), now_ns=0)
    drive(held, 0, 4 * DT_NS)
    held.take(chunk(ramp(9) + 50, stamp_ns=6 * DT_NS, chunk_id=2), now_ns=6 * DT_NS)
    assert sample(held, 6 * DT_NS) == [50.0, 50.0]
    assert held.seams == SeamFigures()


def test_a_restart_forgets_the_figures_and_clear_forgets_the_offset():
    held, _ = two_chunks(apart=0.7, blend_s=5.0)
    assert held.seams.largest > 0.0
    now_ns = 200 * PERIOD_NS
    held.clear()
    held.take(chunk(waves(60), stamp_ns=now_ns, chunk_id=3), now_ns=now_ns)
    assert sample(held, now_ns) == waves(1)[0].tolist()
    held.restart()
    assert held.seams == SeamFigures()
    assert held.blend_s == 5.0
    assert not held.inside_rates.any()


def test_a_chunk_while_the_last_seam_still_fades_begins_where_that_is():
    held = timeline()
    held.blend_s = 0.2
    held.take(chunk(waves(80), stamp_ns=0), now_ns=0)
    sent = [play(held, 0, 8)]
    for number in range(2, 12):
        now_ns = (number - 1) * 2 * DT_NS
        begin = 0.3 * now_ns / DT_NS
        rows = waves(80, begin=begin, at=0.2 * (-1) ** number)
        held.take(chunk(rows, stamp_ns=now_ns, chunk_id=number), now_ns=now_ns)
        sent.append(play(held, now_ns, 8))
    steps = np.abs(np.diff(np.concatenate(sent), axis=0))
    assert (steps <= SEAM_FACTOR * held.inside_rates * PERIOD_S * (1 + 1e-9) + 1e-12).all()
    assert held.seams.seams == 10


@pytest.mark.parametrize('blend_s', [-0.1, 9.0, math.nan, math.inf])
def test_an_impossible_blend_is_refused_and_the_old_one_kept(blend_s):
    held = timeline()
    held.blend_s = 0.3
    with pytest.raises(ConfigError, match='blend_s'):
        held.blend_s = blend_s
    assert held.blend_s == 0.3


def test_a_switch_of_mode_is_blended_though_seams_are_not():
    held = timeline(coeff=0.0)
    held.take(chunk(np.zeros((200, 2)), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.ones((200, 2)), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    assert play(held, DT_NS, 2)[:, 0].tolist() == [1.0, 1.0]
    held.mode = 'ensemble'
    sent = play(held, DT_NS + 2 * PERIOD_NS, 150)[:, 0]
    steps = -np.diff(sent, prepend=1.0)
    # Of a leap of 1/2; the fade is fastest at 2 exp(-2) FADE / SWITCH_BLEND_S of it per second.
    fastest = 0.5 * 2.0 * math.exp(-2.0) * FADE / SWITCH_BLEND_S
    assert (steps >= 0.0).all()
    assert steps.max() <= fastest * PERIOD_S
    assert steps[0] < 0.02 * steps.max(), 'it begins without a jump of speed'
    assert sent[-1] == 0.5


switches = st.one_of(
    st.tuples(st.just('mode'), st.sampled_from(MODES)),
    st.tuples(st.just('interpolation'), st.sampled_from(INTERPOLATIONS)),
    st.tuples(st.just('temporal_ensemble_coeff'), st.floats(-1.0, 1.0)),
    st.tuples(st.just('chunk'), st.integers(0, 2**32 - 1)),
    st.tuples(st.just('wait'), st.integers(1, 30)),
)


@settings(deadline=None, max_examples=100)
@given(plan=st.lists(switches, min_size=1, max_size=25), blend_s=st.sampled_from([0.05, 0.3]))
def test_whatever_switches_while_it_plays_the_bound_holds(plan, blend_s):
    held = timeline()
    held.blend_s = blend_s
    random = np.random.default_rng(0)
    held.take(chunk(random.normal(size=(400, 2)), stamp_ns=0), now_ns=0)
    tick, number = 0, 1
    last = np.array(sample(held, 0))
    for what, value in plan:
        if what == 'chunk':
            number += 1
            rows = np.random.default_rng(value).normal(size=(400, 2))
            held.take(
                chunk(rows, stamp_ns=tick * PERIOD_NS, chunk_id=number), now_ns=tick * PERIOD_NS
            )
        elif what != 'wait':
            setattr(held, what, value)
        for _ in range(value if what == 'wait' else 1):
            tick += 1
            found = np.array(sample(held, tick * PERIOD_NS))
            # No leap exceeds the distance between the furthest values of these chunks.
            most = np.maximum(SEAM_FACTOR * held.inside_rates, 10.0 / (LONGEST * blend_s))
            assert (np.abs(found - last) <= most * PERIOD_S * (1 + 1e-9) + 1e-9).all()
            last = found


def test_chunks_that_came_later_than_their_policy_was_told_are_counted():
    held = timeline(mode='rtc')
    held.take(chunk(waves(60), stamp_ns=0), now_ns=0)
    drive(held, 0, 10 * DT_NS)
    told = replace(chunk(waves(60), stamp_ns=6 * DT_NS, chunk_id=2), frozen_rows=4)
    assert not held.take(told, now_ns=10 * DT_NS).late
    drive(held, 10 * DT_NS, 15 * DT_NS)
    late = replace(chunk(waves(60), stamp_ns=10 * DT_NS, chunk_id=3), frozen_rows=4)
    assert held.take(late, now_ns=15 * DT_NS).late
    assert held.late == 1
    held.restart()
    assert held.late == 0


def test_rtc_replaces_the_rest_of_the_old_chunk_exactly_at_the_consumed_row():
    held = timeline(mode='rtc')
    held.take(chunk(ramp(40), stamp_ns=0), now_ns=0)
    drive(held, 0, 9 * DT_NS)
    held.take(chunk(ramp(40) + 1000, stamp_ns=3 * DT_NS, chunk_id=2), now_ns=9 * DT_NS)
    assert held.row(9 * DT_NS) == 6.0
    assert sample(held, 9 * DT_NS)[0] == 1006.0
    assert held.row(9 * DT_NS + DT_NS // 4) == 6.25


def test_the_row_stands_still_with_the_robot():
    held = timeline()
    assert held.row(5) == 0.0
    held.take(chunk(ramp(40), stamp_ns=0), now_ns=0)
    drive(held, 0, 3 * DT_NS)
    held.stand_still(3 * DT_NS)
    assert held.row(8 * DT_NS) == 3.0
    sample(held, 8 * DT_NS)
    assert held.row(9 * DT_NS) == 4.0

"""What a chunk of real-time chunking goes on from, against plain loops and a playing timeline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_helpers import DT_NS, DT_S, chunk, drive, sample, timeline

from sparkrt_ros.runtime.chunking.prefix import (
    KEPT_CHUNKS,
    DelayEstimate,
    Playback,
    PrefixSource,
    rest_of_chunk,
)
from sparkrt_ros.runtime.errors import ConfigError

SESSION = 7


def rest_by_loop(actions: np.ndarray, row: float, rows: int) -> list[list[float]]:
    """The rest of a chunk in plain floats."""
    last = len(actions) - 1
    rest = []
    for index in range(rows):
        place = min(row + index, last)
        low = math.floor(place)
        high = min(low + 1, last)
        part = place - low
        rest.append(
            [
                float(a) + part * (float(b) - float(a))
                for a, b in zip(actions[low], actions[high], strict=True)
            ]
        )
    return rest


def source(*, warm_up: int = 0) -> PrefixSource:
    return PrefixSource(session_id=SESSION, delay=DelayEstimate(warm_up=warm_up))


def playback(row: float, *, chunk_id: int = 1, at_ns: int = 0, **changes) -> Playback:
    values = {'session_id': SESSION, 'chunk_id': chunk_id, 'row': row, 'at_ns': at_ns}
    return Playback(**{'playing': True, **values, **changes})


@settings(deadline=None, max_examples=200)
@given(
    rows=st.integers(1, 12),
    eighths=st.integers(0, 200),
    wanted=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_rest_of_a_chunk_equals_the_plain_loop(rows, eighths, wanted, seed):
    actions = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)
    rest = rest_of_chunk(actions, row=eighths / 8, rows=wanted)
    assert rest.dtype == np.float32
    np.testing.assert_allclose(rest, rest_by_loop(actions, eighths / 8, wanted), rtol=0, atol=1e-6)


def test_whole_rows_are_the_rows_bit_for_bit_and_then_the_last_one():
    actions = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    rest = rest_of_chunk(actions, row=4.0, rows=6)
    assert rest[:2].tobytes() == actions[4:].tobytes()
    assert rest[2:].tobytes() == np.tile(actions[5], (4, 1)).tobytes()
    nearly = rest_of_chunk(actions, row=4.0 - 1e-9, rows=6)
    assert nearly.tobytes() == rest.tobytes()


def test_a_chunk_that_ran_out_is_continued_by_its_last_action_not_by_zeros():
    actions = np.full((5, 2), 3.0, dtype=np.float32)
    assert (rest_of_chunk(actions, row=80.0, rows=5) == 3.0).all()


@pytest.mark.parametrize(
    ('actions', 'row', 'rows'),
    [
        (np.zeros((0, 2), np.float32), 0.0, 4),
        (np.zeros(4, np.float32), 0.0, 4),
        (np.zeros((4, 2), np.float32), math.inf, 4),
        (np.zeros((4, 2), np.float32), math.nan, 4),
        (np.zeros((4, 2), np.float32), 0.0, 0),
    ],
)
def test_what_has_no_rest_is_refused(actions, row, rows):
    with pytest.raises(ConfigError, match='rest of a chunk'):
        rest_of_chunk(actions, row=row, rows=rows)


def test_the_rest_is_no_view_of_the_chunk():
    actions = np.zeros((5, 2), dtype=np.float32)
    rest = rest_of_chunk(actions, row=0.0, rows=5)
    actions[:] = 9.0
    assert not rest.any()


def test_the_delay_leaves_the_warm_up_out_and_is_rounded_up():
    estimate = DelayEstimate(window=3, warm_up=2)
    assert (estimate.latency_s, estimate.rows(DT_S)) == (0.0, 0)
    for latency_s in (30.0, 4.0):
        estimate.add(latency_s)
    assert estimate.rows(DT_S) == 0, 'recording a graph is no latency'
    estimate.add(0.05)
    assert estimate.rows(DT_S) == 3
    estimate.add(0.11)
    for _ in range(3):
        assert estimate.latency_s == 0.11
        estimate.add(0.04)
    assert estimate.rows(DT_S) == 2, 'a whole number of rows is not rounded up'
    estimate.restart()
    estimate.add(9.0)
    assert estimate.rows(DT_S) == 0


@pytest.mark.parametrize('bad', [math.nan, math.inf, -1.0])
def test_a_latency_that_is_none_does_not_count(bad):
    estimate = DelayEstimate(warm_up=0)
    estimate.add(bad)
    assert estimate.latency_s == 0.0


@pytest.mark.parametrize('options', [{'window': 0}, {'warm_up': -1}])
def test_an_impossible_estimate_is_refused(options):
    with pytest.raises(ConfigError, match='delay estimate'):
        DelayEstimate(**options)


def test_the_prefix_follows_what_the_streamer_plays_not_the_clock():
    made = source()
    rows = np.arange(20, dtype=np.float32)[:, None] * np.array([[1.0, -1.0]], dtype=np.float32)
    made.sent(chunk(rows, stamp_ns=0))
    # Taken late at start-up: at 10 dt the streamer is at row 2, where stamps alone would say 10.
    made.follow(playback(2.0, at_ns=10 * DT_NS))
    made.delay.add(2.5 * DT_S)
    prefix = made.prefix(13 * DT_NS, epoch=0)
    assert prefix.actions[:, 0].tolist() == [*range(5, 20), 19, 19, 19, 19, 19]
    assert (prefix.delay, prefix.plan.chunk_id, prefix.plan.known) == (3, 1, 15)


def test_a_robot_that_stands_still_stays_at_its_row():
    made = source()
    made.sent(chunk(np.arange(40, dtype=np.float32).reshape(20, 2), stamp_ns=0))
    made.follow(playback(3.0, at_ns=0, playing=False))
    assert made.prefix(50 * DT_NS, epoch=0).actions[0].tolist() == [6.0, 7.0]


def test_an_observation_from_before_the_chunk_began_goes_on_from_its_first_row():
    made = source()
    made.sent(chunk(np.arange(12, dtype=np.float32).reshape(6, 2), stamp_ns=0))
    made.follow(playback(1.0, at_ns=5 * DT_NS))
    assert made.prefix(2 * DT_NS, epoch=0).actions[:, 0].tolist() == [0, 0, 0, 2, 4, 6]


def test_what_was_played_before_a_chunk_arrived_is_of_the_one_before():
    made = source()
    for number, first in ((1, 0.0), (2, 100.0)):
        rows = first + np.arange(6, dtype=np.float32)[:, None].repeat(2, axis=1)
        made.sent(chunk(rows, stamp_ns=0, chunk_id=number))
    made.follow(playback(2.0, at_ns=2 * DT_NS))
    made.follow(playback(1.0, at_ns=4 * DT_NS, chunk_id=2))
    made.follow(playback(2.0, at_ns=5 * DT_NS, chunk_id=2))
    # The second came between the third and the fourth row from the observation at 1.5 dt.
    told = made.prefix(3 * DT_NS // 2, epoch=0).actions[:, 0]
    assert told.tolist() == [1.5, 2.5, 3.5, 101.5, 102.5, 103.5]
    assert made.prefix(4 * DT_NS, epoch=0).actions[0, 0] == 101.0


@pytest.mark.parametrize(('row', 'known'), [(0.0, 6), (-2.0, 6), (2.0, 4), (2.5, 3), (9.0, 0)])
def test_it_tells_how_many_rows_the_chunk_still_has(row, known):
    made = source()
    made.sent(chunk(np.zeros((6, 2), np.float32), stamp_ns=0))
    made.follow(playback(row))
    assert made.prefix(0, epoch=0).plan.known == known


def test_the_first_word_of_a_chunk_tells_how_long_it_took():
    made = source(warm_up=1)
    for number in (1, 2):
        made.sent(chunk(np.zeros((6, 2), np.float32), stamp_ns=0, chunk_id=number))
    made.follow(playback(5.0))
    assert made.delay.latency_s == 0.0, 'the warm-up'
    made.follow(playback(2.0, chunk_id=2))
    made.follow(playback(4.0, chunk_id=2))
    assert made.delay.rows(DT_S) == 2
    made.restart()
    assert made.delay.rows(DT_S) == 2


def test_the_delay_is_at_most_the_chunk():
    made = source()
    made.sent(chunk(np.zeros((4, 2), np.float32), stamp_ns=0))
    made.follow(playback(0.0))
    made.delay.add(60.0)
    assert made.prefix(0, epoch=0).delay == 4


def test_nothing_to_go_on_from():
    made = source()
    assert made.prefix(0, epoch=0) is None, 'nothing heard'
    made.follow(playback(0.0))
    assert made.prefix(0, epoch=0) is None, 'nothing sent'
    made.sent(chunk(np.zeros((4, 2), np.float32), stamp_ns=0, epoch=3))
    assert made.prefix(0, epoch=3) is not None
    assert made.prefix(0, epoch=4) is None, 'of an older epoch'
    made.follow(playback(0.0, session_id=1))
    assert made.prefix(0, epoch=3) is None, 'of another policy process'
    made.follow(playback(0.0, chunk_id=0))
    assert made.prefix(0, epoch=3) is None, 'none taken yet'
    made.follow(playback(0.0))
    made.restart()
    assert made.prefix(0, epoch=3) is None, 'a new episode'


def test_only_the_newest_chunks_are_kept():
    made = source()
    for number in range(1, KEPT_CHUNKS + 2):
        made.sent(chunk(np.zeros((4, 2), np.float32), stamp_ns=0, chunk_id=number))
    made.follow(playback(0.0, chunk_id=1))
    assert made.prefix(0, epoch=0) is None
    made.follow(playback(0.0, chunk_id=2))
    assert made.prefix(0, epoch=0) is not None


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_policy_that_repeats_its_prefix_leaves_no_seam(data):
    """Streamer and policy side together: row 0 of the prefix is what plays at the observation.

    The policy here yields its prefix as the new chunk. Whatever the latencies, standstills and
    rates, the robot must then go on along the first chunk as if it were the only one.
    """
    held = timeline(mode='rtc')
    made = source(warm_up=1)
    rows = np.cumsum(np.ones((300, 2)), axis=0).astype(np.float32)
    first = chunk(rows, stamp_ns=0)
    now_ns = data.draw(st.integers(0, 5 * DT_NS))
    held.take(first, now_ns=now_ns, session_id=SESSION)
    made.sent(first)
    values = [sample(held, now_ns)[0]]
    for number in range(2, 6):
        made.follow(
            Playback(
                session_id=held.session_id,
                chunk_id=held.chunk_id,
                row=held.row(now_ns),
                at_ns=now_ns,
                playing=True,
            )
        )
        observed_ns = now_ns + data.draw(st.integers(0, 2 * DT_NS))
        prefix = made.prefix(observed_ns, epoch=0)
        arrival_ns = observed_ns + data.draw(st.integers(0, 6 * DT_NS))
        drive(held, now_ns, arrival_ns, step_ns=DT_NS // 5)
        again = chunk(prefix.actions, stamp_ns=observed_ns, chunk_id=number)
        taken = held.take(again, now_ns=arrival_ns, session_id=SESSION)
        made.sent(again)
        made.delay.add(taken.delay_s)
        values.append(sample(held, arrival_ns)[0])
        expected = values[0] + (arrival_ns - now_ns) / DT_NS
        assert values[-1] == pytest.approx(expected, abs=1e-3)
        values, now_ns = [values[-1]], arrival_ns

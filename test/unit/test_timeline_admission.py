"""Chunks that must not be played: each refused, with its reason, and counted."""

from __future__ import annotations

import numpy as np
import pytest
from timeline_helpers import DT_NS, DT_S, chunk, drive, ramp, sample, timeline

from sparkrt_ros.runtime.chunking.admission import Refusal
from sparkrt_ros.runtime.chunking.played import PlayedTime
from sparkrt_ros.runtime.chunking.timeline import Taken

S = 1_000_000_000


def with_value(value: float) -> np.ndarray:
    rows = ramp(3)
    rows[1, 1] = value
    return rows


@pytest.mark.parametrize(
    ('bad', 'kind', 'reason'),
    [
        (chunk(ramp(3), stamp_ns=0, names=('lift', 'pan')), 'names', r"\['lift', 'pan'\].*'pan'"),
        (chunk(ramp(3), stamp_ns=0, names=('pan',)), 'names', r"\['pan'\] instead of"),
        (chunk(np.zeros((3, 3)), stamp_ns=0), 'size', r'\(3, 3\) instead of .*2\)'),
        (chunk(np.zeros((0, 2)), stamp_ns=0), 'size', r'\(0, 2\)'),
        (chunk(np.zeros(2), stamp_ns=0), 'size', r'\(2,\)'),
        (chunk(with_value(np.nan), stamp_ns=0), 'non_finite', "nan in row 1 for joint 'lift'"),
        (chunk(with_value(-np.inf), stamp_ns=0), 'non_finite', '-inf in row 1'),
        (chunk(ramp(3), stamp_ns=0, dt_s=0.0), 'dt', 'dt = 0.0 s'),
        (chunk(ramp(3), stamp_ns=0, dt_s=-0.02), 'dt', 'dt = -0.02 s'),
        (chunk(ramp(3), stamp_ns=0, dt_s=float('nan')), 'dt', 'dt = nan s'),
        (chunk(ramp(3), stamp_ns=0, dt_s=float('inf')), 'dt', 'dt = inf s'),
        (chunk(ramp(3), stamp_ns=9 * S), 'future', 'observed 8.000 s in the future.*clock'),
    ],
)
def test_a_chunk_of_the_wrong_form_is_refused_and_counted(bad, kind, reason):
    held = timeline()
    held.take(chunk(ramp(99), stamp_ns=0), now_ns=0)
    before = sample(held, S)
    refusal = held.take(bad, now_ns=S)
    assert isinstance(refusal, Refusal)
    assert refusal.kind == kind
    import re

    assert re.search(reason, refusal.reason), refusal.reason
    assert held.rejected == {kind: 1}
    assert held.taken == 1
    assert sample(held, S) == before


def test_an_older_epoch_is_void_and_a_newer_one_replaces_what_is_held():
    held = timeline()
    held.take(chunk(ramp(9), stamp_ns=0, epoch=3), now_ns=0)
    old = held.take(chunk(ramp(9), stamp_ns=DT_NS, epoch=2, chunk_id=2), now_ns=DT_NS)
    assert isinstance(old, Refusal)
    assert (old.kind, old.reason) == ('epoch', 'epoch 2 is older than epoch 3')
    new = held.take(chunk(ramp(9) + 50, stamp_ns=DT_NS, epoch=4, chunk_id=2), now_ns=DT_NS)
    assert isinstance(new, Taken)
    assert (held.epoch, held.held_chunks) == (4, 1)


def test_a_newer_epoch_may_bring_older_stamps():
    held = timeline()
    held.take(chunk(ramp(9), stamp_ns=5 * DT_NS, chunk_id=7), now_ns=6 * DT_NS)
    taken = held.take(chunk(ramp(9), stamp_ns=4 * DT_NS, epoch=1, chunk_id=1), now_ns=6 * DT_NS)
    assert isinstance(taken, Taken)


@pytest.mark.parametrize(('stamp_ns', 'chunk_id'), [(0, 9), (DT_NS, 5), (DT_NS, 4)])
def test_chunks_out_of_order_and_repeated_ones_are_refused(stamp_ns, chunk_id):
    held = timeline()
    held.take(chunk(ramp(9), stamp_ns=DT_NS, chunk_id=5), now_ns=DT_NS)
    again = held.take(chunk(ramp(9), stamp_ns=stamp_ns, chunk_id=chunk_id), now_ns=2 * DT_NS)
    assert isinstance(again, Refusal)
    assert again.kind == 'order'
    assert held.chunk_id == 5


def test_a_restarted_policy_takes_over_with_its_own_epochs_and_numbers():
    held = timeline(mode='ensemble', coeff=0.0)
    held.take(chunk(ramp(99), stamp_ns=0, epoch=8, chunk_id=70), now_ns=0, session_id=11)
    drive(held, 0, 10 * DT_NS)
    fresh = chunk(ramp(99) + 500, stamp_ns=9 * DT_NS, epoch=0, chunk_id=1)
    taken = held.take(fresh, now_ns=10 * DT_NS, session_id=22)
    assert taken == Taken(delay_s=DT_S, skip_s=DT_S)
    assert (held.session_id, held.epoch, held.chunk_id) == (22, 0, 1)
    assert sample(held, 10 * DT_NS)[0] == 501.0, 'the dead policy has no share in the mean'


def test_a_replaced_policy_never_comes_back_in_between():
    held = timeline()
    held.take(chunk(ramp(99), stamp_ns=0), now_ns=0, session_id=0xAA)
    held.take(chunk(ramp(99), stamp_ns=DT_NS), now_ns=DT_NS, session_id=0xBB)
    back = held.take(chunk(ramp(99), stamp_ns=2 * DT_NS), now_ns=2 * DT_NS, session_id=0xAA)
    assert isinstance(back, Refusal)
    assert back.kind == 'session'
    assert 'aa was replaced by bb' in back.reason
    assert held.session_id == 0xBB


def test_an_unknown_session_with_an_older_observation_is_refused():
    held = timeline()
    held.take(chunk(ramp(99), stamp_ns=10 * DT_NS), now_ns=10 * DT_NS, session_id=0xAA)
    late = held.take(chunk(ramp(99), stamp_ns=5 * DT_NS), now_ns=11 * DT_NS, session_id=0xBB)
    assert isinstance(late, Refusal)
    assert late.kind == 'session'
    assert '0.100 s before the chunk of aa' in late.reason


def test_an_old_epoch_stays_void_after_a_backward_jump_of_time():
    held = timeline()
    held.take(chunk(ramp(9), stamp_ns=5 * S, epoch=2), now_ns=5 * S, session_id=1)
    sample(held, S)
    old = held.take(chunk(ramp(9), stamp_ns=S, epoch=1, chunk_id=2), now_ns=S, session_id=1)
    assert isinstance(old, Refusal)
    assert old.kind == 'epoch'


def test_a_chunk_whose_rows_were_all_consumed_is_refused():
    held = timeline()
    held.take(chunk(ramp(100), stamp_ns=0), now_ns=0)
    drive(held, 0, 50 * DT_NS)
    late = held.take(chunk(ramp(10), stamp_ns=40 * DT_NS, chunk_id=2), now_ns=50 * DT_NS)
    assert isinstance(late, Refusal)
    assert late.kind == 'consumed'
    assert 'all 10 rows were consumed' in late.reason
    assert sample(held, 50 * DT_NS)[0] == 50.0, 'the chunk that plays goes on'


def test_a_clock_a_few_milliseconds_ahead_is_no_delay_at_all():
    held = timeline()
    taken = held.take(chunk(ramp(9), stamp_ns=5_000_000), now_ns=0)
    assert taken == Taken(delay_s=0.0, skip_s=0.0)


def test_played_time_since_a_stamp_sums_the_overlaps():
    played = PlayedTime()
    for begin, end in [(0, 10), (20, 30), (40, 45)]:
        played.extend(begin)
        played.extend(end)
        played.stop()
    played.extend(50)
    played.extend(52)
    assert [played.since(stamp) for stamp in (0, 5, 10, 25, 44, 51, 60)] == [
        27, 22, 17, 12, 3, 1, 0,
    ]  # fmt: skip
    assert played.total_ns == 27


def test_played_time_that_was_forgotten_only_lowers_the_sum():
    played = PlayedTime(capacity=2)
    for begin in (0, 20, 40):
        played.extend(begin)
        played.extend(begin + 10)
        played.stop()
    assert played.since(0) == 20
    assert played.total_ns == 30

"""Stamped chunks: where playback begins, what is due when, and what happens at the end."""

from __future__ import annotations

import numpy as np
import pytest
from timeline_helpers import DT_NS, DT_S, chunk, drive, ramp, sample, timeline

from sparkrt_ros.runtime.chunking.admission import Refusal
from sparkrt_ros.runtime.chunking.chunk_store import MAX_CHUNKS
from sparkrt_ros.runtime.chunking.timeline import Taken, Timeline
from sparkrt_ros.runtime.errors import ActionError, ConfigError

S = 1_000_000_000


def test_a_start_up_chunk_begins_at_row_0_however_late_it_is():
    held = timeline()
    taken = held.take(chunk(ramp(5), stamp_ns=0), now_ns=3 * S)
    assert taken == Taken(delay_s=3.0, skip_s=0.0)
    assert sample(held, 3 * S) == [0.0, 0.0]
    assert sample(held, 3 * S + DT_NS) == [1.0, -1.0]


def test_rows_are_due_at_stamp_plus_i_dt_while_playback_is_unbroken():
    held = timeline()
    held.take(chunk(ramp(20), stamp_ns=0), now_ns=0)
    drive(held, 0, 4 * DT_NS)
    taken = held.take(chunk(ramp(20) + 100, stamp_ns=2 * DT_NS, chunk_id=2), now_ns=4 * DT_NS)
    assert taken == Taken(delay_s=0.04, skip_s=0.04)
    for row in range(2, 20):
        assert sample(held, (2 + row) * DT_NS)[0] == 100.0 + row


def test_a_chunk_observed_before_playback_began_skips_only_what_was_played():
    held = timeline()
    held.take(chunk(ramp(10), stamp_ns=0), now_ns=10 * DT_NS)
    drive(held, 10 * DT_NS, 13 * DT_NS)
    taken = held.take(chunk(ramp(10), stamp_ns=4 * DT_NS, chunk_id=2), now_ns=13 * DT_NS)
    assert taken == Taken(delay_s=0.18, skip_s=0.06)
    assert sample(held, 13 * DT_NS)[0] == 3.0


def test_a_chunk_that_comes_after_the_actions_ran_out_goes_on_where_they_ended():
    held = timeline()
    held.take(chunk(ramp(5), stamp_ns=0), now_ns=0)
    drive(held, 0, 4 * DT_NS)
    assert sample(held, 5 * DT_NS) is None
    taken = held.take(chunk(ramp(9), stamp_ns=2 * DT_NS, chunk_id=2), now_ns=50 * DT_NS)
    assert taken == Taken(delay_s=0.96, skip_s=0.06)
    assert sample(held, 50 * DT_NS)[0] == 3.0


def test_playback_counts_up_to_the_arrival_of_a_chunk_between_two_samples():
    held = timeline()
    held.take(chunk(ramp(50), stamp_ns=0), now_ns=0)
    sample(held, 0)
    taken = held.take(chunk(ramp(50), stamp_ns=0, chunk_id=2), now_ns=7 * DT_NS + 3)
    assert taken == Taken(delay_s=(7 * DT_NS + 3) / 1e9, skip_s=(7 * DT_NS + 3) / 1e9)


def test_values_between_rows_are_interpolated_linearly_and_the_last_row_lasts_one_dt():
    held = timeline()
    held.take(chunk(ramp(3), stamp_ns=0), now_ns=0)
    assert sample(held, DT_NS // 4) == [0.25, -0.25]
    assert sample(held, DT_NS + DT_NS // 2) == [1.5, -1.5]
    assert sample(held, 2 * DT_NS + DT_NS // 2) == [2.0, -2.0]
    assert sample(held, 3 * DT_NS - 10) == [2.0, -2.0]
    assert sample(held, 3 * DT_NS) is None


def test_underrun_leaves_the_last_action_in_place():
    held = timeline()
    held.take(chunk(ramp(2), stamp_ns=0), now_ns=0)
    out = np.zeros(2)
    assert held.sample(DT_NS, out=out)
    assert not held.sample(2 * DT_NS, out=out)
    assert out.tolist() == [1.0, -1.0]


def test_a_rate_whose_dt_is_no_whole_nanosecond_still_meets_its_rows():
    held = timeline()
    rows = np.random.default_rng(0).normal(size=(200, 2))
    held.take(chunk(rows, stamp_ns=12345, dt_s=1 / 30), now_ns=12345)
    for row in range(200):
        due_ns = 12345 + round(row * 1e9 / 30)
        assert sample(held, due_ns) == rows[row].tolist()
    assert sample(held, 12345 + round(200 * 1e9 / 30)) is None


def test_queue_mode_plays_the_newest_chunk_from_its_arrival_on():
    held = timeline()
    held.take(chunk(ramp(10), stamp_ns=0), now_ns=0)
    drive(held, 0, 3 * DT_NS)
    held.take(chunk(np.full((2, 2), 7.0), stamp_ns=3 * DT_NS, chunk_id=2), now_ns=3 * DT_NS)
    assert sample(held, 3 * DT_NS) == [7.0, 7.0]
    assert sample(held, 5 * DT_NS) is None, 'an older chunk must not come back'


def test_the_rows_of_a_chunk_are_copied():
    held = timeline()
    rows = ramp(4)
    held.take(chunk(rows, stamp_ns=0), now_ns=0)
    rows[:] = 99.0
    assert sample(held, DT_NS) == [1.0, -1.0]


def test_remaining_time_and_depth_count_down_to_0():
    held = timeline()
    assert held.remaining_s(0) == 0.0
    assert held.queue_depth(0) == 0.0
    held.take(chunk(ramp(5), stamp_ns=0), now_ns=0)
    assert held.remaining_s(0) == 5 * DT_S
    assert held.queue_depth(DT_NS) == pytest.approx(4.0, abs=1e-12)
    assert held.remaining_s(9 * DT_NS) == 0.0
    assert held.queue_depth(9 * DT_NS) == 0.0


def test_played_time_counts_only_while_actions_were_due():
    held = timeline()
    held.take(chunk(ramp(5), stamp_ns=0), now_ns=0)
    drive(held, 0, 20 * DT_NS)
    assert held.played_ns == 5 * DT_NS
    held.take(chunk(ramp(5), stamp_ns=30 * DT_NS, chunk_id=2), now_ns=30 * DT_NS)
    drive(held, 30 * DT_NS, 32 * DT_NS)
    assert held.played_ns == 7 * DT_NS


def test_clear_keeps_the_played_time_and_restart_forgets_everything_but_the_options():
    held = timeline(mode='ensemble', coeff=0.2)
    held.take(chunk(ramp(5), stamp_ns=0, epoch=4), now_ns=0, session_id=9)
    held.take(chunk(ramp(5), stamp_ns=0, epoch=4), now_ns=0, session_id=9)
    drive(held, 0, 2 * DT_NS)
    held.clear()
    assert (held.played_ns, sample(held, 2 * DT_NS)) == (2 * DT_NS, None)
    held.restart()
    assert (held.played_ns, held.taken, held.epoch, held.session_id) == (0, 0, 0, 0)
    assert held.rejected == {}
    assert (held.mode, held.temporal_ensemble_coeff) == ('ensemble', 0.2)
    assert isinstance(held.take(chunk(ramp(5), stamp_ns=0), now_ns=0), Taken)


def test_a_barrier_voids_chunks_that_were_on_their_way():
    held = timeline()
    held.clear(barrier_ns=10 * DT_NS)
    late = held.take(chunk(ramp(5), stamp_ns=10 * DT_NS - 1), now_ns=11 * DT_NS)
    assert isinstance(late, Refusal)
    assert late.kind == 'before_reset'
    assert isinstance(held.take(chunk(ramp(5), stamp_ns=10 * DT_NS), now_ns=11 * DT_NS), Taken)


@pytest.mark.parametrize('mode', ['queue', 'ensemble'])
def test_a_backward_jump_of_time_clears_chunks_and_history(mode):
    held = timeline(mode=mode)
    held.take(chunk(ramp(50), stamp_ns=100 * DT_NS, chunk_id=9), now_ns=100 * DT_NS)
    drive(held, 100 * DT_NS, 110 * DT_NS)
    assert sample(held, DT_NS) is None
    assert held.time_jumps == 1
    assert held.played_ns == 10 * DT_NS
    taken = held.take(chunk(ramp(5), stamp_ns=0, chunk_id=10), now_ns=2 * DT_NS)
    assert taken == Taken(delay_s=0.04, skip_s=0.0), 'played time of the old clock must not count'
    assert sample(held, 2 * DT_NS) == [0.0, 0.0]
    assert held.time_jumps == 1


@pytest.mark.parametrize('mode', ['queue', 'ensemble'])
def test_a_standstill_consumes_nothing_and_is_not_skipped(mode):
    held = timeline(mode=mode, coeff=0.0)
    held.take(chunk(ramp(50), stamp_ns=0), now_ns=0)
    drive(held, 0, 4 * DT_NS)
    for now_ns in range(4 * DT_NS, 10 * DT_NS, DT_NS):
        held.stand_still(now_ns)
    assert held.played_ns == 4 * DT_NS
    taken = held.take(chunk(ramp(50) + 2, stamp_ns=2 * DT_NS, chunk_id=2), now_ns=10 * DT_NS)
    assert taken == Taken(delay_s=0.16, skip_s=0.04)
    assert sample(held, 10 * DT_NS)[0] == 4.0
    assert sample(held, 11 * DT_NS)[0] == 5.0


def test_the_mode_switches_between_two_samples():
    held = timeline(coeff=0.0)
    held.take(chunk(np.zeros((10, 2)), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.ones((10, 2)), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    assert sample(held, DT_NS) == [1.0, 1.0]
    held.mode = 'ensemble'
    drive(held, 2 * DT_NS, 8 * DT_NS)
    assert 0.5 < sample(held, 8 * DT_NS)[0] < 1.0, 'it goes over smoothly; see test_seam'
    held.clear()
    held.take(chunk(np.zeros((9, 2)), stamp_ns=9 * DT_NS, chunk_id=3), now_ns=9 * DT_NS)
    held.take(chunk(np.ones((9, 2)), stamp_ns=9 * DT_NS, chunk_id=4), now_ns=9 * DT_NS)
    assert sample(held, 9 * DT_NS) == [0.5, 0.5]


def test_a_longer_chunk_makes_room_and_keeps_the_ones_held():
    held = timeline(mode='ensemble', coeff=0.0)
    held.take(chunk(np.zeros((4, 2)), stamp_ns=0), now_ns=0)
    held.take(chunk(np.ones((4, 2)), stamp_ns=0, chunk_id=2), now_ns=0)
    held.take(chunk(np.full((300, 2), 5.0), stamp_ns=0, chunk_id=3), now_ns=0)
    assert sample(held, DT_NS) == [2.0, 2.0]
    assert sample(held, 299 * DT_NS) == [5.0, 5.0]


def test_the_oldest_chunk_makes_way_when_more_come_than_can_be_held():
    held = timeline(mode='ensemble', coeff=0.0)
    for number in range(MAX_CHUNKS + 2):
        rows = np.full((5, 2), 1000.0 if number < 2 else 3.0)
        held.take(chunk(rows, stamp_ns=number, chunk_id=number + 1), now_ns=number)
    assert held.held_chunks == MAX_CHUNKS
    assert sample(held, MAX_CHUNKS + 2) == [3.0, 3.0]


def test_the_same_calls_yield_the_same_bits():
    def play() -> list[bytes]:
        random = np.random.default_rng(3)
        held = timeline(mode='ensemble', coeff=0.3)
        values = []
        for tick in range(200):
            if tick % 3 == 0:
                rows = random.normal(size=(25, 2))
                held.take(
                    chunk(rows, stamp_ns=tick * 5_000_017, chunk_id=tick + 1),
                    now_ns=tick * 5_000_017,
                )
            out = np.zeros(2)
            assert held.sample(tick * 5_000_017, out=out)
            values.append(out.tobytes())
        return values

    assert play() == play()


@pytest.mark.parametrize('out', [np.zeros(3), np.zeros((1, 2)), np.zeros(2, dtype=np.float32)])
def test_a_buffer_of_the_wrong_shape_or_type_is_refused(out):
    with pytest.raises(ActionError, match=r'expected \(2,\) float64'):
        timeline().sample(0, out=out)


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match=r"'replay'.*queue, ensemble, rtc.* or conservative"):
        timeline(mode='replay')
    with pytest.raises(ConfigError, match=r"'quintic'.*linear or cubic"):
        Timeline(joint_names=('a',), interpolation='quintic')
    with pytest.raises(ConfigError, match='temporal_ensemble_coeff'):
        timeline(coeff=float('nan'))
    with pytest.raises(ConfigError, match='temporal_ensemble_coeff'):
        timeline(coeff=1.5)
    with pytest.raises(ConfigError, match='at least one'):
        Timeline(joint_names=())

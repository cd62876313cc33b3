"""When the next inference starts."""

import math

import pytest

from sparkrt_ros.nodes.pacing import (
    ACKNOWLEDGE_S,
    LatencyTracker,
    Pacer,
    PacingConfig,
    Progress,
)

OURS = 7


def config(**changes):
    values = {
        'mode': 'queue',
        'n_action_steps': 10,
        'dt_s': 0.1,
        'inference_rate_hz': 5.0,
        'lead_margin_s': 0.02,
        'streamer_timeout_s': 1.0,
    }
    return PacingConfig(**{**values, **changes})


def make(*, latency_s=0.08, **changes):
    pacer = Pacer(config=config(**changes), session_id=OURS)
    if latency_s is not None:
        pacer.latency.add(latency_s)
    return pacer


def progress(at_s, **changes):
    values = {
        'session_id': OURS,
        'epoch': 0,
        'chunk_id': 1,
        'played_s': 0.0,
        'remaining_s': 1.5,
        'state': 'streaming',
    }
    return Progress(at_s=at_s, **{**values, **changes})


def test_the_first_inference_is_due_at_once():
    assert make().due(0.0).wait_s == 0.0
    assert make(mode='ensemble').due(0.0).wait_s == 0.0


def test_a_chunk_is_timed_to_arrive_when_the_planned_rows_are_consumed():
    pacer = make()
    pacer.sent(0.0, chunk_id=1, epoch=0)
    pacer.follow(progress(0.01, played_s=0.0))
    pacer.follow(progress(0.41, played_s=0.4, remaining_s=1.1))
    # 10 rows of 0.1 s are consumed at 1.01; less 0.08 for inference and 0.02 of margin
    assert pacer.due(0.41).wait_s == pytest.approx(0.5)
    assert pacer.due(0.61).wait_s == pytest.approx(0.3)
    assert pacer.due(0.95).wait_s == 0.0


def test_consumption_counts_from_where_the_chunk_was_taken():
    pacer = make()
    pacer.sent(0.0, chunk_id=4, epoch=0)
    pacer.follow(progress(0.0, chunk_id=4, played_s=50.0))
    pacer.follow(progress(0.2, chunk_id=4, played_s=50.2))
    assert pacer.due(0.2).wait_s == pytest.approx(0.7)


def test_nothing_is_planned_past_the_end_of_the_actions():
    pacer = make(n_action_steps=1000)
    pacer.sent(0.0, chunk_id=1, epoch=0)
    pacer.follow(progress(0.0, remaining_s=0.5))
    assert pacer.due(0.0).wait_s == pytest.approx(0.4)


def test_an_inference_longer_than_the_plan_starts_at_once():
    pacer = make(latency_s=3.0)
    pacer.sent(0.0, chunk_id=1, epoch=0)
    pacer.follow(progress(0.0))
    assert pacer.due(0.0).wait_s == 0.0


@pytest.mark.parametrize('state', ['waiting', 'holding', 'stopped'])
def test_a_streamer_without_actions_is_served_at_once(state):
    pacer = make()
    pacer.started(0.0)
    pacer.follow(progress(0.1, session_id=0, chunk_id=0, state=state))
    assert pacer.due(0.1).wait_s == 0.0


def test_a_chunk_on_its_way_is_waited_for_and_then_sent_again():
    pacer = make()
    pacer.sent(1.0, chunk_id=1, epoch=0)
    pacer.follow(progress(1.0, session_id=0, chunk_id=0, state='waiting'))
    assert pacer.due(1.0).wait_s == pytest.approx(ACKNOWLEDGE_S)
    assert pacer.due(1.3).wait_s == pytest.approx(ACKNOWLEDGE_S - 0.3)
    pacer.follow(progress(1.6, session_id=0, chunk_id=0, state='waiting'))
    assert pacer.due(1.6).wait_s == 0.0


def test_progress_of_the_chunk_before_does_not_start_another_inference():
    pacer = make()
    pacer.follow(progress(0.0))
    pacer.sent(0.95, chunk_id=2, epoch=0)
    pacer.follow(progress(0.96, chunk_id=1, played_s=0.96, remaining_s=0.5))
    assert pacer.due(0.96).wait_s == pytest.approx(ACKNOWLEDGE_S - 0.01)
    pacer.follow(progress(0.97, chunk_id=2, played_s=0.97, remaining_s=1.4))
    assert pacer.due(0.97).wait_s == pytest.approx(0.9)


def test_chunks_of_another_policy_process_count_for_nothing():
    pacer = make()
    pacer.follow(progress(0.0, session_id=OURS + 1, chunk_id=9, remaining_s=9.0))
    assert pacer.due(0.0).wait_s == 0.0


def test_after_a_reset_the_chunks_of_before_count_for_nothing():
    pacer = make()
    pacer.sent(0.0, chunk_id=1, epoch=0)
    pacer.follow(progress(0.1))
    assert pacer.due(0.1).wait_s > 0.5
    pacer.restart()
    assert pacer.due(0.1).wait_s == 0.0
    pacer.sent(0.2, chunk_id=2, epoch=1)
    pacer.follow(progress(0.25, chunk_id=1, epoch=0))
    assert pacer.due(0.25).wait_s == pytest.approx(ACKNOWLEDGE_S - 0.05)
    pacer.follow(progress(0.3, chunk_id=2, epoch=1, played_s=0.3))
    assert pacer.due(0.3).wait_s == pytest.approx(0.9)


@pytest.mark.parametrize('state', ['paused', 'inactive'])
def test_an_idle_streamer_is_not_served_and_the_reason_is_given(state):
    pacer = make()
    pacer.follow(progress(0.0, state=state))
    due = pacer.due(0.25)
    assert due.wait_s == pytest.approx(0.75)
    assert state in due.reason


@pytest.mark.parametrize(('mode', 'period'), [('queue', 1.0), ('ensemble', 0.2)])
def test_without_a_streamer_time_alone_decides(mode, period):
    pacer = make(mode=mode)
    pacer.started(10.0)
    assert pacer.due(10.05).wait_s == pytest.approx(period - 0.05)
    assert pacer.due(10.0 + period).wait_s == 0.0


def test_a_streamer_that_fell_silent_no_longer_counts():
    pacer = make()
    pacer.started(0.0)
    pacer.follow(progress(0.0, state='paused'))
    assert pacer.due(0.9).wait_s > 0.0
    assert pacer.due(1.1).wait_s == 0.0


def test_ensemble_keeps_its_rate_whatever_remains():
    pacer = make(mode='ensemble')
    pacer.started(0.0)
    pacer.follow(progress(0.05, remaining_s=100.0))
    assert pacer.due(0.05).wait_s == pytest.approx(0.15)
    assert pacer.due(0.25).wait_s == 0.0


def test_percentiles_are_nearest_rank_over_a_window():
    tracker = LatencyTracker(window=100)
    assert tracker.percentile(95) is None
    for value in range(1, 201):
        tracker.add(float(value))
    assert tracker.percentile(95) == 195.0
    assert tracker.percentile(50) == 150.0
    assert tracker.percentile(100) == 200.0
    tracker.clear()
    assert tracker.percentile(50) is None


@pytest.mark.parametrize(('n_action_steps', 'chunk_rows'), [(4, 8), (8, 8), (100, 100)])
@pytest.mark.parametrize('latency_s', [0.01, 0.12, 0.29])
def test_a_simulated_streamer_never_runs_dry(n_action_steps, chunk_rows, latency_s):
    """The pacer against a streamer that plays by the clock and reports every 20 ms."""
    dt = 0.1
    pacer = make(latency_s=latency_s, n_action_steps=n_action_steps)
    end = taken_id = 0
    arrivals = []
    arrival = math.inf
    underrun_s = 0.0
    stamp = played = 0.0
    tick = 0.001
    for step in range(30_000):
        now = step * tick
        if now >= arrival:
            pacer.sent(now, chunk_id=taken_id + 1, epoch=0)
            arrivals.append(now)
            taken_id, end, arrival = taken_id + 1, stamp + chunk_rows * dt, math.inf
        streaming = now < end
        played += tick if streaming else 0.0
        underrun_s += tick if taken_id and not streaming else 0.0
        if step % 20 == 0:
            left = max(0.0, end - now)
            state = 'streaming' if streaming else 'waiting'
            pacer.follow(
                progress(now, chunk_id=taken_id, played_s=played, remaining_s=left, state=state)
            )
        if arrival == math.inf and pacer.due(now).wait_s == 0.0:
            pacer.started(now)
            stamp, arrival = now, now + latency_s
    period = (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)
    assert underrun_s == 0.0
    expected = min(n_action_steps * dt, chunk_rows * dt - latency_s - 0.02)
    assert expected - 0.05 <= period <= expected + 0.05


def test_word_of_the_same_tick_again_is_no_newer_for_that():
    pacer = make()
    pacer.sent(0.0, chunk_id=1, epoch=0)
    pacer.follow(progress(0.01, tick_ns=1))
    pacer.follow(progress(0.41, played_s=0.4, remaining_s=1.1, tick_ns=41))
    due_s = 0.41 + pacer.due(0.41).wait_s
    pacer.follow(progress(0.46, played_s=0.4, remaining_s=1.1, tick_ns=41))
    assert 0.46 + pacer.due(0.46).wait_s == pytest.approx(due_s, abs=1e-9)
    assert pacer.tick_ns == 41


def test_word_of_the_same_tick_again_is_a_sign_of_life_all_the_same():
    pacer = make(streamer_timeout_s=1.0)
    pacer.started(0.0)
    pacer.sent(0.0, chunk_id=1, epoch=0)
    for at_s in (0.0, 0.9, 1.8):
        pacer.follow(progress(at_s, state='paused', tick_ns=5))
    assert pacer.due(2.7).reason == 'the streamer is paused'
    assert pacer.due(2.9).reason == ''


@pytest.mark.parametrize('early_s', [0.0, 1e-9, 9e-7])
def test_what_is_due_at_a_time_is_due_then_however_it_was_rounded(early_s):
    pacer = make(mode='ensemble')
    pacer.started(1000.1)
    assert pacer.due(1000.3 - early_s).wait_s == 0.0
    assert pacer.due(1000.3 - 2e-6).wait_s > 0.0

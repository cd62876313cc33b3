"""What a policy is told to go on from is what the robot really played."""

import numpy as np
import pytest
from rtc_rig import DT_S, ROWS, Loop

# Stamps on the ticks of the streamer, and between two of them.
AGES_S = (0.02, 0.027)
LATENCIES_S = (0.0, 0.03, 0.12, 0.3, 0.7)


def compared(loop):
    """How many rows of what was told could be compared with what was played, and did agree."""
    rows = 0
    for asked, told, real in loop.played():
        # From the arrival of the new chunk on, the robot plays that one.
        end_ns = loop.taken_at(asked.chunk_id) if asked.chunk_id in loop.takers else np.inf
        due = asked.stamp_ns + np.arange(len(told)) * DT_S * 1e9
        before = (due < end_ns) & np.isfinite(real).all(axis=1)
        np.testing.assert_allclose(told[before], real[before], rtol=0, atol=2e-5)
        rows += int(before.sum())
    return rows


@pytest.mark.parametrize('age_s', AGES_S)
@pytest.mark.parametrize('latency_s', LATENCIES_S)
def test_the_prefix_is_what_the_streamer_really_plays(latency_s, age_s):
    loop = Loop(stamp_age_s=age_s)
    loop.policy.latency_s = lambda: latency_s
    loop.run(8.0)
    told = [asked for asked in loop.policy.asked if asked.continuation is not None]
    assert len(told) == len(loop.policy.asked) - 1 >= 8
    assert compared(loop) >= len(told) * max(1, int(latency_s / DT_S))
    # Each was told at least of the rows that were played before it arrived, but for the first two:
    # one knows no latency, and the one before it only that of the warm-up.
    assert loop.streamer.core.late == 0
    for asked in told[1:]:
        assert latency_s <= asked.continuation.delay * DT_S <= latency_s + age_s + 2 * DT_S
    assert [c.frozen_rows for c in loop.chunks[1:]] == [a.continuation.delay for a in told]


def test_latencies_that_change_are_looked_back_on():
    loop = Loop(stamp_age_s=0.01)
    latencies = iter([0.1, 0.1, 0.25, 0.1, 0.1] * 8)
    loop.policy.latency_s = lambda: next(latencies)
    loop.run(8.0)
    delays = [a.continuation.delay for a in loop.policy.asked if a.continuation is not None]
    assert delays[1] == 3
    assert set(delays[4:]) == {6}, 'the largest of the last ones'
    assert loop.streamer.core.late == 1, 'the first that took 0.25 s'
    assert compared(loop) > 30


def test_the_first_word_of_a_chunk_outlasts_a_long_inference():
    loop = Loop(steps=ROWS)
    numbers = iter(range(1000))

    def latency_s():
        # A new instruction: the next inference begins before the streamer tells of this chunk.
        loop.worker.task = str(next(numbers))
        return 0.6

    loop.policy.latency_s = latency_s
    # A hundred words for each, as of a streamer that is traced at a high rate.
    told = loop.worker.follow
    loop.worker.follow = lambda progress: [told(progress) for _ in range(100)]
    loop.run(8.0)
    delays = [a.continuation.delay for a in loop.policy.asked if a.continuation is not None]
    assert set(delays[2:]) == {13}


def test_the_latency_of_the_warm_up_does_not_count():
    loop = Loop()
    latencies = iter([3.0])
    loop.policy.latency_s = lambda: next(latencies, 0.1)
    loop.run(8.0)
    delays = [a.continuation.delay for a in loop.policy.asked if a.continuation is not None]
    assert delays[0] == 0
    assert set(delays[1:]) == {3}


def test_the_first_inference_of_an_episode_goes_on_from_nothing():
    loop = Loop()
    loop.policy.latency_s = lambda: 0.1
    loop.run(2.0)
    asked = len(loop.policy.asked)
    assert loop.policy.asked[0].continuation is None
    assert loop.policy.asked[-1].continuation is not None
    # A reset: what plays is of the old epoch, and goes on until the new one begins.
    loop.worker.begin_episode()
    loop.gate.raise_epoch()
    loop.run(1.0)
    after = loop.policy.asked[asked:]
    assert [a.continuation is None for a in after[:2]] == [True, False]
    assert loop.chunks[asked].frozen_rows == 0
    assert after[1].continuation.delay == 3, 'what is known of latencies stays known'
    # Another activation has another worker; the streamer may still play the last chunk.
    asked = len(loop.policy.asked)
    loop.worker = loop.make_worker(first_chunk_id=loop.worker.next_chunk_id)
    loop.gate.open()
    loop.run(1.0)
    assert [a.continuation is None for a in loop.policy.asked[asked:][:2]] == [True, False]


def test_nothing_is_drawn_towards_what_lies_behind_the_end_of_a_chunk():
    loop = Loop(steps=ROWS)
    loop.policy.latency_s = lambda: 0.1
    loop.run(6.0)
    told = [a.continuation for a in loop.policy.asked if a.continuation is not None][1:]
    # The chunk ends while an inference runs: two rows of it are played, and no more are left.
    assert {(one.delay, one.horizon) for one in told} == {(2, 2)}
    half = Loop(steps=ROWS // 2)
    half.policy.latency_s = lambda: 0.1
    half.run(6.0)
    told = [a.continuation for a in half.policy.asked if a.continuation is not None][1:]
    assert {(one.delay, one.horizon) for one in told} == {(3, 10)}


def test_a_chunk_that_was_withheld_is_nothing_to_go_on_from():
    loop = Loop()
    loop.run(2.0)
    loop.gate.pause()
    loop.run(0.3)
    asked = len(loop.policy.asked)
    loop.worker.begin_episode()
    loop.gate.raise_epoch()
    loop.gate.resume()
    loop.run(0.5)
    assert loop.policy.asked[asked].continuation is None


def test_after_a_reset_of_the_streamer_alone_what_it_dropped_is_not_gone_on_from():
    loop = Loop()
    loop.policy.latency_s = lambda: 0.1
    loop.run(2.0)
    loop.streamer.core.reset(loop.times_ns[-1])
    asked = len(loop.policy.asked)
    loop.run(1.0)
    assert loop.policy.asked[asked].continuation is None
    assert loop.policy.asked[asked + 1].continuation is not None


def test_a_robot_that_is_held_at_the_end_of_a_chunk_is_gone_on_from():
    loop = Loop(steps=ROWS)
    loop.policy.latency_s = lambda: 0.1
    loop.run(1.0)
    latencies = iter([3.0])
    loop.policy.latency_s = lambda: next(latencies, 0.1)
    loop.run(6.0)
    last = loop.setup.robot.action_to_si(loop.policy.asked[-1].continuation.actions)
    assert np.isfinite(last).all()
    assert compared(loop) > 10


def test_other_modes_tell_nothing_and_the_mode_may_change_while_it_runs():
    from sparkrt_ros.nodes.predictor import Choices

    loop = Loop(mode='queue')
    loop.policy.latency_s = lambda: 0.1
    loop.run(2.0)
    assert {a.continuation for a in loop.policy.asked} == {None}
    assert {chunk.frozen_rows for chunk in loop.chunks} == {0}
    asked = len(loop.policy.asked)
    loop.worker.set_choices(Choices(continues=True, execution_horizon=7))
    loop.run(1.0)
    first = loop.policy.asked[asked].continuation
    assert (first.delay, first.horizon) == (3, 7), 'it followed the streamer all along'
    loop.worker.set_choices(Choices())
    asked = len(loop.policy.asked)
    loop.run(1.0)
    assert loop.policy.asked[asked].continuation is None

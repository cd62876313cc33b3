"""Snapshots: which sample of each stream, how old, how far apart, and what is refused."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkrt_ros.nodes.observation_buffer import ObservationBuffer, StreamSpec
from sparkrt_ros.runtime.errors import ObservationError, StaleObservation

S = 1_000_000_000
T0 = 1_000 * S


def ns(seconds):
    return T0 + round(seconds * S)


def camera(name='front', **changes):
    return StreamSpec(name=name, topic=f'{name}/image', **{'max_age_s': 0.2, **changes})


def joints(**changes):
    settings = {'max_age_s': 0.1, 'depth': 64, **changes}
    return StreamSpec(name='joints', topic='joint_states', **settings)


def make(*specs, max_skew_s=0.1, **changes):
    return ObservationBuffer(specs, max_skew_s=max_skew_s, **changes)


def put(buffer, name, stamp, *, now=None, payload=None):
    stamp_ns = ns(stamp)
    now_ns = stamp_ns if now is None else ns(now)
    return buffer.put(name, payload or f'{name}@{stamp}', stamp_ns=stamp_ns, now_ns=now_ns)


def test_every_stream_is_read_as_it_was_when_the_slowest_picture_was_taken():
    buffer = make(camera(), joints())
    for tick in range(20):
        put(buffer, 'joints', tick * 0.01)
    put(buffer, 'front', 0.105, now=0.19)
    snapshot = buffer.snapshot(ns(0.19))
    assert snapshot.reference_ns == ns(0.105)
    assert snapshot.samples['joints'].payload == 'joints@0.1'
    assert snapshot.samples['front'].payload == 'front@0.105'
    assert snapshot.ages_s == pytest.approx({'front': 0.085, 'joints': 0.09})
    assert snapshot.skew_s == pytest.approx(0.005)


def with_rhythm(*, last):
    """A picture at 1.0 s; joint states every 10 ms up to ``last``."""
    buffer = make(camera(), joints(awaited=False), max_skew_s=0.5)
    for number in range(8, -1, -1):
        put(buffer, 'joints', last - 0.01 * number)
    put(buffer, 'front', 1.0)
    return buffer.snapshot(ns(1.01))


def test_a_fast_stream_is_not_awaited_while_its_rhythm_says_that_nothing_is_missing():
    snapshot = with_rhythm(last=0.991)
    assert snapshot.reference_ns == ns(1.0)
    assert snapshot.samples['joints'].stamp_ns == ns(0.991)


def test_a_fast_stream_that_lags_by_more_than_its_rhythm_holds_the_reference_back():
    buffer = make(camera(), joints(awaited=False), max_skew_s=0.5)
    put(buffer, 'front', 0.9)
    for number in range(8, -1, -1):
        put(buffer, 'joints', 0.95 - 0.01 * number)
    put(buffer, 'front', 1.0)
    snapshot = buffer.snapshot(ns(1.01))
    assert snapshot.reference_ns == ns(0.95)
    assert snapshot.samples['front'].stamp_ns == ns(0.9)


def test_latest_takes_the_newest_sample_even_after_the_reference():
    buffer = make(camera(), joints(align='latest'))
    put(buffer, 'front', 0.0)
    put(buffer, 'joints', 0.05)
    snapshot = buffer.snapshot(ns(0.06))
    assert snapshot.reference_ns == ns(0.0)
    assert snapshot.samples['joints'].stamp_ns == ns(0.05)


def test_hold_is_never_too_old_and_does_not_count_as_skew():
    buffer = make(camera(), joints(align='hold'))
    put(buffer, 'joints', 0.0)
    put(buffer, 'front', 100.0)
    snapshot = buffer.snapshot(ns(100.0))
    assert snapshot.ages_s['joints'] == pytest.approx(100.0)
    assert snapshot.skew_s == 0.0


def test_a_held_value_that_came_after_the_reference_is_waited_for():
    buffer = make(camera(), joints(align='hold'))
    put(buffer, 'front', 0.0)
    put(buffer, 'joints', 0.05)
    with pytest.raises(StaleObservation, match=r'^front/image: '):
        buffer.snapshot(ns(0.05))
    put(buffer, 'front', 0.1)
    assert buffer.snapshot(ns(0.1)).samples['joints'].stamp_ns == ns(0.05)


def test_a_missing_stream_is_named_with_its_limit():
    buffer = make(camera(), joints())
    put(buffer, 'front', 0.0)
    with pytest.raises(StaleObservation, match=r'joint_states.*no usable message.*at most 0\.1 s'):
        buffer.snapshot(ns(0.0))


def test_a_stale_stream_is_named_with_age_and_limit():
    buffer = make(camera(), joints())
    put(buffer, 'front', 0.0)
    put(buffer, 'joints', 0.25)
    with pytest.raises(StaleObservation, match=r'front/image: found 0\.250 s old.*at most 0\.2 s'):
        buffer.snapshot(ns(0.25))
    put(buffer, 'front', 0.25)
    assert buffer.snapshot(ns(0.25)).skew_s == 0.0


def test_a_gap_in_a_fast_stream_before_the_reference_is_refused():
    buffer = make(camera(max_age_s=0.5), joints(), max_skew_s=1.0)
    put(buffer, 'joints', 0.0)
    put(buffer, 'front', 0.3)
    put(buffer, 'joints', 0.35)
    with pytest.raises(StaleObservation, match=r'joint_states.*a gap of 0\.300 s'):
        buffer.snapshot(ns(0.35))


def test_a_stream_that_began_after_the_reference_is_waited_for():
    buffer = make(camera(), joints())
    put(buffer, 'front', 0.0)
    put(buffer, 'joints', 0.05)
    with pytest.raises(
        StaleObservation, match=r'^front/image: .* 0\.050 s older than .* joint_st'
    ):
        buffer.snapshot(ns(0.05))
    put(buffer, 'front', 0.06)
    assert buffer.snapshot(ns(0.06)).samples['joints'].stamp_ns == ns(0.05)


def test_stamps_too_far_apart_name_both_topics():
    buffer = make(camera('front'), camera('wrist'), max_skew_s=0.05)
    put(buffer, 'wrist', 0.0)
    put(buffer, 'front', 0.09)
    put(buffer, 'wrist', 0.1)
    with pytest.raises(ObservationError, match=r'wrist/image and front/image.*0\.090 s apart'):
        buffer.snapshot(ns(0.1))
    buffer.max_skew_s = 0.1
    assert buffer.snapshot(ns(0.1)).skew_s == pytest.approx(0.09)


def test_a_stamp_far_ahead_of_the_clock_is_refused_and_a_little_ahead_is_not():
    buffer = make(camera())
    assert put(buffer, 'front', 3.0, now=0.0) is False
    assert put(buffer, 'front', 0.02, now=0.0) is True
    assert buffer.snapshot(ns(0.0)).ages_s == {'front': 0.0}


def test_the_stamp_decides_which_is_newest_not_the_order_of_arrival():
    buffer = make(camera())
    put(buffer, 'front', 0.1)
    put(buffer, 'front', 0.05, now=0.11)
    assert buffer.snapshot(ns(0.11)).reference_ns == ns(0.1)


def test_a_backward_jump_clears_and_raises_the_epoch_with_one_report():
    jumps = []
    buffer = make(camera(), joints(), on_jump=lambda *times: jumps.append(times))
    put(buffer, 'front', 10.0)
    put(buffer, 'joints', 10.0)
    buffer.advance(ns(0.0))
    buffer.advance(ns(0.01))
    assert jumps == [(ns(10.0), ns(0.0))]
    assert buffer.epoch == 1
    with pytest.raises(StaleObservation):
        buffer.snapshot(ns(0.01))


def test_messages_that_arrive_before_the_clock_has_jumped_are_kept():
    buffer = make(camera(), joints())
    put(buffer, 'front', 10.0)
    put(buffer, 'joints', 10.0)
    put(buffer, 'front', 0.0, now=10.0)
    put(buffer, 'joints', 0.0, now=10.0)
    snapshot = buffer.snapshot(ns(0.02))
    assert {sample.stamp_ns for sample in snapshot.samples.values()} == {ns(0.0)}
    assert buffer.epoch == 1


def test_stragglers_of_the_time_before_a_jump_are_refused():
    buffer = make(camera())
    put(buffer, 'front', 10.0)
    buffer.advance(ns(0.0))
    assert put(buffer, 'front', 9.99, now=0.0) is False
    assert buffer.epoch == 1


def test_threads_that_read_the_clock_in_turn_do_not_make_a_jump():
    buffer = make(camera())
    put(buffer, 'front', 0.0, now=0.010)
    buffer.advance(ns(0.009))
    assert buffer.epoch == 0
    assert buffer.snapshot(ns(0.01)).epoch == 0


def test_three_loops_of_a_bag_pair_every_picture():
    buffer = make(camera(depth=10), joints(depth=32))
    for _ in range(3):
        pairs = 0
        for tick in range(300):
            stamp = tick / 30
            for part in range(4):
                put(buffer, 'joints', stamp - (3 - part) * 0.01 if tick else part * 0.0)
            put(buffer, 'front', stamp)
            snapshot = buffer.snapshot(ns(stamp))
            pairs += snapshot.reference_ns == ns(stamp)
        assert pairs == 300
    assert buffer.epoch == 2


def test_reset_waits_for_observations_newer_than_itself_but_keeps_held_ones():
    buffer = make(camera(), joints(align='hold'))
    put(buffer, 'joints', 0.0)
    put(buffer, 'front', 0.0)
    buffer.reset()
    with pytest.raises(StaleObservation, match=r'^front/image'):
        buffer.snapshot(ns(0.0))
    put(buffer, 'front', 0.1)
    assert buffer.snapshot(ns(0.1)).epoch == 1


def test_a_discarded_sample_gives_way_to_the_one_before():
    buffer = make(camera())
    put(buffer, 'front', 0.0)
    put(buffer, 'front', 0.1)
    bad = buffer.snapshot(ns(0.1)).samples['front']
    buffer.discard('front', bad)
    assert buffer.snapshot(ns(0.1)).samples['front'].stamp_ns == ns(0.0)


def test_refused_messages_are_counted():
    buffer = make(camera())
    buffer.refuse('front')
    assert buffer.counters(ns(0.0))['front'].dropped == 1
    with pytest.raises(StaleObservation, match='no usable message'):
        buffer.snapshot(ns(0))


def test_counters_tell_what_was_overwritten_unused():
    buffer = make(camera(depth=2))
    for tick in range(5):
        put(buffer, 'front', tick * 0.01)
        if tick == 0:
            buffer.snapshot(ns(0.0))
    counters = buffer.counters(ns(0.05))['front']
    assert counters.received == 5
    assert counters.dropped == 2
    assert counters.age_s == pytest.approx(0.01)
    assert make(camera()).counters(ns(0))['front'].age_s == -1.0


def test_a_snapshot_may_be_taken_while_another_thread_puts():
    buffer = make(camera(max_age_s=10.0), joints(max_age_s=10.0), max_skew_s=0.01)
    put(buffer, 'front', 0.0, now=2.0)
    put(buffer, 'joints', 0.0, now=2.0)
    done = threading.Event()

    def feed():
        for tick in range(1, 2000):
            put(buffer, 'joints', tick * 0.001, now=2.0)
            put(buffer, 'front', tick * 0.001, now=2.0)
        done.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    references = []
    while not done.is_set():
        references.append(buffer.snapshot(ns(2.0)).reference_ns)
    feeder.join()
    assert references == sorted(references)
    assert buffer.snapshot(ns(2.0)).reference_ns == ns(1.999)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(['front', 'joints']), st.integers(0, 200)), min_size=1),
    st.integers(0, 250),
)
def test_a_snapshot_never_breaks_its_promises(arrivals, now_ms):
    buffer = make(camera(), joints(), max_skew_s=0.05)
    for name, stamp_ms in arrivals:
        put(buffer, name, stamp_ms / 1000, now=max(stamp_ms, now_ms) / 1000)
    now = ns(max(now_ms, *(stamp for _, stamp in arrivals)) / 1000)
    try:
        snapshot = buffer.snapshot(now)
    except ObservationError:
        return
    stamps = [sample.stamp_ns for sample in snapshot.samples.values()]
    assert max(stamps) <= snapshot.reference_ns
    assert max(stamps) - min(stamps) == round(snapshot.skew_s * S)
    assert snapshot.skew_s <= 0.05
    assert all(age >= 0 for age in snapshot.ages_s.values())

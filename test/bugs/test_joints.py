"""Cases from public bug reports about joint messages and stamps; each stands for a whole kind."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.contract import StateEntry, StateStream, StreamTiming
from sparkrt_ros.convert.joints import JointMerger
from sparkrt_ros.convert.time import sample_time_ns
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

MS = 1_000_000
NOW = 1_700_000_000 * 1000 * MS
SIX = tuple(f'j{i}' for i in range(1, 7))


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


def merger_of(
    names: tuple[str, ...] = SIX,
    *,
    fields: tuple[str, ...] = ('position',),
    max_age_s: float = 0.1,
) -> JointMerger:
    entries = [StateEntry(joint=name, field=field) for field in fields for name in names]
    stream = StateStream(
        name='joints',
        topic='joint_states',
        type='joint_state',
        timing=StreamTiming(max_age_s=max_age_s),
    )
    return JointMerger(entries, [stream])


class TestOrderAndNames:
    """ros2_controllers#159, #406; kuka_drivers#254: names and order differ from the policy's."""

    def test_shuffled_names_fill_the_same_state(self, messages: Messages) -> None:
        merger = merger_of()
        names = ['j2', 'j3', 'j1', 'j4', 'j5', 'j6', 'extra']
        positions = [2.0, 3.0, 1.0, 4.0, 5.0, 6.0, 99.0]
        pairs = list(zip(names, positions, strict=True))
        for i in range(20):
            shuffled_names, shuffled = zip(*pairs, strict=True)
            merger.update(
                messages.joint_state(shuffled_names, shuffled, stamp_ns=NOW + i),
                received_ns=NOW + i,
            )
            assert merger.snapshot(NOW + i).values.tolist() == [1, 2, 3, 4, 5, 6]
            random.Random(i).shuffle(pairs)

    def test_a_missing_name_stops_inference_and_lists_both_sides(self, messages: Messages) -> None:
        merger = merger_of()
        msg = messages.joint_state(['j1', 'j2', 'j4', 'j5', 'j6'], [0.0] * 5, stamp_ns=NOW)
        merger.update(msg, received_ns=NOW)
        with pytest.raises(StaleObservation) as caught:
            merger.snapshot(NOW)
        assert caught.value.where == 'joints j3'
        assert 'j1, j2, j4, j5, j6' in caught.value.found
        assert 'joint_states' in caught.value.expected

    def test_similar_names_are_not_guessed(self, messages: Messages) -> None:
        merger = merger_of(('j1',))
        for i, name in enumerate(['j1/position', 'J1', 'arm_j1', 'j1_joint', ' j1', 'j10']):
            msg = messages.joint_state([name], [1.0], stamp_ns=NOW + i)
            assert not merger.update(msg, received_ns=NOW + i)
        with pytest.raises(StaleObservation) as caught:
            merger.snapshot(NOW)
        assert 'j1/position' in caught.value.found

    def test_a_name_twice_rejects_the_message(self, messages: Messages) -> None:
        merger = merger_of(('j1', 'j2'))
        msg = messages.joint_state(['j1', 'j2', 'j1'], [1.0, 2.0, 3.0], stamp_ns=NOW)
        with pytest.raises(MessageError, match='twice'):
            merger.update(msg, received_ns=NOW)
        assert merger.rejected == 1
        assert merger.latest(NOW) is None

    @pytest.mark.parametrize('order', list(itertools.permutations(range(3))))
    def test_partial_publishers_are_merged(
        self, messages: Messages, order: tuple[int, ...]
    ) -> None:
        merger = merger_of()
        parts = [(('j6', 'j1'), (6.0, 1.0)), (('j3', 'wheel'), (3.0, 9.0)), (('j2', 'j5', 'j4'),
                 (2.0, 5.0, 4.0))]  # fmt: skip
        for i, part in enumerate(order):
            assert merger.latest(NOW) is None
            stamp = NOW + i * MS
            merger.update(messages.joint_state(*parts[part], stamp_ns=stamp), received_ns=stamp)
        snapshot = merger.snapshot(NOW + 2 * MS)
        assert snapshot.values.tolist() == [1, 2, 3, 4, 5, 6]
        assert snapshot.skew_s == pytest.approx(0.002)
        assert snapshot.oldest_age_s == pytest.approx(0.002)

    def test_the_joint_that_grew_old_is_named(self, messages: Messages) -> None:
        merger = merger_of(('j1', 'j2'))
        both = messages.joint_state(['j1', 'j2'], [1.0, 2.0], stamp_ns=NOW)
        merger.update(both, received_ns=NOW)
        later = NOW + 150 * MS
        merger.update(messages.joint_state(['j1'], [1.5], stamp_ns=later), received_ns=later)
        with pytest.raises(StaleObservation) as caught:
            merger.snapshot(later)
        assert caught.value.where == 'joints j2'
        assert 'j2 0.150 s' in caught.value.found
        assert '0.100 s' in caught.value.expected

    def test_an_older_sample_never_replaces_a_newer_one(self, messages: Messages) -> None:
        merger = merger_of(('j1',))
        merger.update(messages.joint_state(['j1'], [2.0], stamp_ns=NOW), received_ns=NOW)
        late = messages.joint_state(['j1'], [1.0], stamp_ns=NOW - 5 * MS)
        assert not merger.update(late, received_ns=NOW + MS)
        assert merger.snapshot(NOW).values.tolist() == [2.0]
        assert merger.out_of_order == 1
        merger.reset()
        assert merger.update(late, received_ns=NOW + MS)


class TestBadArrays:
    """navigation2#6165, moveit#3186, tue_robocup#607, clearpath_robot#222."""

    def test_empty_velocity_and_effort_are_accepted(self, messages: Messages) -> None:
        merger = merger_of(('j1', 'j2'))
        msg = messages.joint_state(['j1', 'j2'], [1.0, 2.0], stamp_ns=NOW)
        assert merger.update(msg, received_ns=NOW)

    def test_nan_effort_is_accepted(self, messages: Messages) -> None:
        merger = merger_of(('j1', 'j2'))
        nan = [np.nan, np.nan]
        msg = messages.joint_state(
            ['j1', 'j2'], [1.0, 2.0], velocity=nan, effort=nan, stamp_ns=NOW
        )
        assert merger.update(msg, received_ns=NOW)
        assert merger.snapshot(NOW).values.tolist() == [1.0, 2.0]

    @pytest.mark.parametrize(
        'position',
        [[1.0], [], [1.0, 2.0, 3.0], [np.nan, 0.0], [0.0, np.inf], [-np.inf, np.nan]],
    )
    def test_bad_positions_reject_the_whole_message_and_age_out(
        self, messages: Messages, position: list[float]
    ) -> None:
        merger = merger_of(('j1', 'j2'))
        good = messages.joint_state(['j1', 'j2'], [1.0, 2.0], stamp_ns=NOW)
        merger.update(good, received_ns=NOW)
        later = NOW + 50 * MS
        with pytest.raises(MessageError, match='joint_states'):
            merger.update(
                messages.joint_state(['j1', 'j2'], position, stamp_ns=later), received_ns=later
            )
        assert (merger.accepted, merger.rejected) == (1, 1)
        assert merger.snapshot(later).values.tolist() == [1.0, 2.0]
        with pytest.raises(StaleObservation):
            merger.snapshot(NOW + 101 * MS)

    def test_a_needed_velocity_must_be_there_and_finite(self, messages: Messages) -> None:
        merger = merger_of(('j1', 'j2'), fields=('position', 'velocity'))
        for velocity in ([], [1.0], [1.0, np.nan]):
            msg = messages.joint_state(['j1', 'j2'], [1.0, 2.0], velocity=velocity, stamp_ns=NOW)
            with pytest.raises(MessageError, match='velocity'):
                merger.update(msg, received_ns=NOW)
        assert merger.latest(NOW) is None
        msg = messages.joint_state(['j2', 'j1'], [2.0, 1.0], velocity=[4.0, 3.0], stamp_ns=NOW)
        merger.update(msg, received_ns=NOW)
        assert merger.snapshot(NOW).values.tolist() == [1.0, 2.0, 3.0, 4.0]

    def test_nan_of_a_joint_that_nobody_needs_is_ignored(self, messages: Messages) -> None:
        merger = merger_of(('j1',))
        msg = messages.joint_state(['wheel', 'j1'], [np.nan, 1.0], stamp_ns=NOW)
        assert merger.update(msg, received_ns=NOW)
        assert np.isfinite(merger.snapshot(NOW).values).all()


class TestZeroStamps:
    """ros_comm#60, #1716: zero stamps make everything look decades old, silently."""

    def test_refused_by_name_unless_the_contract_says_otherwise(self, messages: Messages) -> None:
        msg = messages.joint_state(['j1'], [1.0], stamp_ns=0)
        timing = StreamTiming(max_age_s=0.1)
        with pytest.raises(MessageError, match='stamp of zero') as caught:
            sample_time_ns(msg, received_ns=NOW, timing=timing, topic='camera/image_raw')
        assert 'camera/image_raw' in str(caught.value)
        assert 'zero_stamp: receive' in str(caught.value.remedy)

    def test_dated_by_arrival_where_allowed(self, messages: Messages) -> None:
        timing = StreamTiming(max_age_s=0.1, zero_stamp='receive')
        unstamped = messages.joint_state(['j1'], [1.0], stamp_ns=0)
        stamped = messages.joint_state(['j1'], [1.0], stamp_ns=NOW - MS)
        for msg, expected in ((unstamped, NOW), (stamped, NOW - MS)):
            assert sample_time_ns(msg, received_ns=NOW, timing=timing, topic='t') == expected

    def test_stamps_of_another_clock_are_refused_with_the_cause(self, messages: Messages) -> None:
        """A simulation's stamps against wall time, or the other way round."""
        timing = StreamTiming(max_age_s=0.1)
        for stamp, received in ((12_000 * MS, NOW), (NOW, 12_000 * MS)):
            msg = messages.joint_state(['j1'], [1.0], stamp_ns=stamp)
            with pytest.raises(MessageError, match='use_sim_time'):
                sample_time_ns(msg, received_ns=received, timing=timing, topic='t')

    def test_no_age_of_decades_is_ever_reported(self, messages: Messages) -> None:
        for zero_stamp in ('refuse', 'receive'):
            stream = StateStream(
                name='joints',
                topic='joint_states',
                type='joint_state',
                timing=StreamTiming(max_age_s=0.1, zero_stamp=zero_stamp),
            )
            merger = JointMerger([StateEntry(joint='j1')], [stream])
            msg = messages.joint_state(['j1'], [1.0], stamp_ns=0)
            try:
                merger.update(msg, received_ns=NOW)
            except MessageError:
                assert merger.latest(NOW) is None
            else:
                assert merger.snapshot(NOW).oldest_age_s == 0.0

"""Merging of joint messages through a contract: names of each stream, fields, ages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.contract import StateEntry, StateStream, StreamTiming, load_contract
from sparkrt_ros.convert.joints import JointMerger
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

MS = 1_000_000
NOW = 1_700_000_000_000 * MS
ARM = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'left_finger']


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


def stream(name: str = 'joints', **changes: object) -> StateStream:
    timing = StreamTiming(max_age_s=0.1, **changes.pop('timing', {}))
    return StateStream(name=name, topic=name, type='joint_state', timing=timing, **changes)


class TestThroughAContract:
    def test_two_arms_with_the_same_joint_names(self, messages: Messages) -> None:
        contract = load_contract('aloha')
        merger = JointMerger.for_state(contract)
        left, right = np.arange(7) / 100, -np.arange(7) / 100
        left[6], right[6] = 0.0440, 0.0579
        merger.update(
            messages.joint_state(ARM, left, stamp_ns=NOW), received_ns=NOW, stream='left'
        )
        with pytest.raises(StaleObservation, match='right_waist'):
            merger.snapshot(NOW)
        merger.update(
            messages.joint_state(ARM, right, stamp_ns=NOW), received_ns=NOW, stream='right'
        )
        state = contract.state_to_policy(merger.snapshot(NOW).values)
        np.testing.assert_allclose(state[:6], left[:6], rtol=1e-6)
        np.testing.assert_allclose(state[7:13], right[:6], rtol=1e-6)
        np.testing.assert_allclose(state[[6, 13]], [0.0, 1.0], atol=1e-6)

    def test_measured_action_holds_what_is_reported_and_commanded_by_position(self) -> None:
        contract = load_contract('franka')
        merger = JointMerger.for_measured_action(contract)
        assert [entry.joint for entry in merger.entries] == list(contract.action)

    def test_the_stream_must_be_named_where_there_are_several(self, messages: Messages) -> None:
        merger = JointMerger.for_state(load_contract('aloha'))
        msg = messages.joint_state(ARM, np.zeros(7), stamp_ns=NOW)
        for name in (None, 'centre'):
            with pytest.raises(ValueError, match='stream'):
                merger.update(msg, received_ns=NOW, stream=name)


class TestFields:
    def test_positions_velocities_and_efforts_in_the_order_asked_for(
        self, messages: Messages
    ) -> None:
        entries = [
            StateEntry(joint='b', field='effort'),
            StateEntry(joint='a'),
            StateEntry(joint='b', field='velocity'),
            StateEntry(joint='b'),
        ]
        merger = JointMerger(entries, [stream()])
        merger.update(
            messages.joint_state(['a', 'b'], [1, 2], velocity=[3, 4], effort=[5, 6], stamp_ns=NOW),
            received_ns=NOW,
        )
        assert merger.snapshot(NOW).values.tolist() == [6.0, 1.0, 4.0, 2.0]

    def test_an_array_by_layout(self, messages: Messages) -> None:
        gripper = StateStream(
            name='gripper',
            topic='gripper/state',
            type='float64_multi_array',
            timing=StreamTiming(max_age_s=0.1, clock='receive'),
            joints=('right', 'left'),
            message_names=('right', 'left'),
        )
        merger = JointMerger([StateEntry(joint='left'), StateEntry(joint='right')], [gripper])
        merger.update(messages.multi_array([0.2, 0.1]), received_ns=NOW)
        assert merger.snapshot(NOW).values.tolist() == [0.1, 0.2]
        for values in ([], [1.0], [1.0, 2.0, 3.0], [1.0, np.nan]):
            with pytest.raises(MessageError, match='gripper/state'):
                merger.update(messages.multi_array(values), received_ns=NOW)
        assert merger.rejected == 4

    def test_an_array_of_velocities_does_not_answer_for_positions(
        self, messages: Messages
    ) -> None:
        speeds = StateStream(
            name='speeds',
            topic='speeds',
            type='float64_multi_array',
            timing=StreamTiming(max_age_s=0.1, clock='receive'),
            joints=('a',),
            message_names=('a',),
            field='velocity',
        )
        merger = JointMerger([StateEntry(joint='a')], [speeds])
        assert not merger.update(messages.multi_array([1.0]), received_ns=NOW)
        assert merger.latest(NOW) is None


class TestAges:
    def test_each_entry_has_its_own_age_and_limit(self, messages: Messages) -> None:
        held = stream('slow', timing={'align': 'hold'}, joints=('b',), message_names=('b',))
        fast = stream('fast', joints=('a',), message_names=('a',))
        merger = JointMerger([StateEntry(joint='a'), StateEntry(joint='b')], [fast, held])
        for name, joint in (('slow', 'b'), ('fast', 'a')):
            msg = messages.joint_state([joint], [1.0], stamp_ns=NOW)
            merger.update(msg, received_ns=NOW, stream=name)
        fresh = messages.joint_state(['a'], [2.0], stamp_ns=NOW + 5000 * MS)
        merger.update(fresh, received_ns=NOW, stream='fast')
        snapshot = merger.snapshot(NOW + 5000 * MS)
        assert snapshot.ages_s.tolist() == [0.0, 5.0]
        with pytest.raises(StaleObservation, match='joints b'):
            merger.snapshot(NOW + 5000 * MS, max_age_s=1.0)

    def test_a_stricter_limit_for_one_snapshot(self, messages: Messages) -> None:
        merger = JointMerger([StateEntry(joint='a')], [stream()])
        merger.update(messages.joint_state(['a'], [1.0], stamp_ns=NOW), received_ns=NOW)
        assert merger.snapshot(NOW + 50 * MS).oldest_age_s == pytest.approx(0.05)
        with pytest.raises(StaleObservation):
            merger.snapshot(NOW + 50 * MS, max_age_s=0.02)

    def test_a_snapshot_does_not_change_afterwards(self, messages: Messages) -> None:
        merger = JointMerger([StateEntry(joint='a')], [stream()])
        merger.update(messages.joint_state(['a'], [1.0], stamp_ns=NOW), received_ns=NOW)
        before = merger.snapshot(NOW)
        merger.update(messages.joint_state(['a'], [2.0], stamp_ns=NOW + 1), received_ns=NOW)
        assert before.values.tolist() == [1.0]
        assert before.stamps_ns.tolist() == [NOW]

    def test_reset_forgets_values_and_keeps_counters(self, messages: Messages) -> None:
        merger = JointMerger([StateEntry(joint='a')], [stream()])
        merger.update(messages.joint_state(['a'], [1.0], stamp_ns=NOW), received_ns=NOW)
        merger.reset()
        assert merger.latest(NOW) is None
        assert merger.accepted == 1

    def test_ever_new_names_do_not_pile_up(self, messages: Messages) -> None:
        merger = JointMerger([StateEntry(joint='a')], [stream()])
        for i in range(2000):
            msg = messages.joint_state([f'x{i}'], [0.0], stamp_ns=NOW)
            merger.update(msg, received_ns=NOW)
        with pytest.raises(StaleObservation) as caught:
            merger.snapshot(NOW)
        assert len(caught.value.found) < 5000
        assert len(merger._layouts) <= 32


@given(
    parts=st.lists(
        st.lists(st.sampled_from('abcdef'), min_size=1, max_size=6, unique=True),
        min_size=1,
        max_size=30,
    )
)
def test_merged_state_is_the_last_value_of_each_joint(parts: list[list[str]]) -> None:
    messages = message_kind('plain')
    merger = JointMerger([StateEntry(joint=name) for name in 'abcdef'], [stream()])
    newest: dict[str, float] = {}
    for i, names in enumerate(parts):
        values = [float(100 * i + k) for k in range(len(names))]
        newest.update(zip(names, values, strict=True))
        msg = messages.joint_state(names, values, stamp_ns=NOW + i)
        merger.update(msg, received_ns=NOW + i)
    snapshot = merger.latest(NOW)
    if len(newest) < 6:
        assert snapshot is None
    else:
        assert snapshot is not None
        assert snapshot.values.tolist() == [newest[name] for name in 'abcdef']

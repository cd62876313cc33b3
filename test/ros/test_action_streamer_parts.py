"""Parts of the streamer that need ROS to import but no process: reasons, poses, chunk messages."""

from __future__ import annotations

import array
from types import SimpleNamespace

import numpy as np
import pytest
from streamer_rig import CONTRACT

from sparkrt.msg import ActionChunk
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes.pose_merger import FOREVER_NS, PoseMerger
from sparkrt_ros.nodes.streamer_core import Pose, Snapshot
from sparkrt_ros.nodes.streamer_parts import read_chunk
from sparkrt_ros.nodes.streamer_status import Surroundings, reason
from sparkrt_ros.runtime.errors import MessageError

pytestmark = pytest.mark.ros

MS = 1_000_000
NOW_NS = 10_000 * MS
HEARD = {'publishers': 1, 'chunk_age_s': 0.84, 'policy_age_s': 0.1, 'policy_state': 'active'}


@pytest.mark.parametrize(
    ('state', 'cause', 'known', 'text'),
    [
        ('streaming', '', HEARD, ''),
        ('inactive', '', HEARD, 'the node is not active'),
        ('paused', 'paused', HEARD, 'paused; ~/resume goes on'),
        (
            'waiting',
            'no_chunk',
            {'publishers': 0},
            'no action chunk yet; no policy runs: nobody publishes on /sparkrt/action_chunk',
        ),
        (
            'waiting',
            'no_chunk',
            {'publishers': 1},
            'no action chunk yet; 1 publisher(s) on /sparkrt/action_chunk',
        ),
        (
            'holding',
            'ran_out',
            HEARD,
            'the actions ran out; last chunk 0.8 s ago; the policy is active',
        ),
        (
            'holding',
            'ran_out',
            {**HEARD, 'policy_state': 'waiting', 'policy_reason': 'front is 2.1 s old'},
            'the actions ran out; last chunk 0.8 s ago; the policy is waiting: front is 2.1 s old',
        ),
        (
            'stopped',
            'ran_out',
            {**HEARD, 'publishers': 0},
            'the actions ran out; last chunk 0.8 s ago; the policy process is gone: nobody '
            'publishes on /sparkrt/action_chunk',
        ),
        (
            'stopped',
            'ran_out',
            {**HEARD, 'policy_age_s': 4.0},
            'the actions ran out; last chunk 0.8 s ago; the policy process has been silent for '
            '4.0 s',
        ),
        ('holding', 'pose', {**HEARD, 'pose_problem': 'pan is late'}, 'pan is late'),
        ('waiting', 'guard', {**HEARD, 'guard_reason': 'far'}, 'the guard refused to start: far'),
        (
            'stopped',
            'defect',
            {**HEARD, 'defect': 'KeyError: 1'},
            'the control loop failed: KeyError: 1; deactivate and activate to go on',
        ),
        (
            'holding',
            'time_jump',
            HEARD,
            'time went backwards; no chunk since; last chunk 0.8 s ago; the policy is active',
        ),
    ],
)
def test_the_reason_is_a_sentence_for_a_person(state, cause, known, text):
    around = Surroundings(chunk_topic='/sparkrt/action_chunk', **known)
    assert reason(Snapshot(state=state, cause=cause), around) == text


def contract(folder, *streams: str):
    """The robot of the rig, with other state streams."""
    path = folder / 'robot.yaml'
    old = '    - {name: arm, topic: joint_states, max_age_s: 0.3}'
    path.write_text(CONTRACT.replace(old, '\n'.join(f'    - {stream}' for stream in streams)))
    return load_contract(path)


def joints(**positions: float):
    stamp = SimpleNamespace(sec=NOW_NS // 1_000_000_000, nanosec=NOW_NS % 1_000_000_000)
    return SimpleNamespace(
        header=SimpleNamespace(stamp=stamp),
        name=list(positions),
        position=list(positions.values()),
        velocity=[],
        effort=[],
    )


def test_a_pose_is_complete_ordered_and_fresh_as_long_as_its_oldest_joint(tmp_path):
    poses: list[Pose] = []
    merger = PoseMerger(
        contract(
            tmp_path,
            '{name: a, topic: a, max_age_s: 0.3, joints: [lift]}',
            '{name: b, topic: b, max_age_s: 0.1, joints: [pan]}',
        ),
        poses.append,
    )
    merger.update('a', joints(lift=2.0), now_ns=NOW_NS)
    merger.deliver(NOW_NS)
    assert poses == []
    assert 'pan on a, b: no value yet' in merger.problem(NOW_NS)
    merger.update('b', joints(pan=1.0), now_ns=NOW_NS)
    merger.deliver(NOW_NS)
    np.testing.assert_array_equal(poses[-1].values, [1.0, 2.0, np.nan])
    assert poses[-1].fresh_until_ns == pytest.approx(NOW_NS + 100 * MS, abs=1000)
    assert merger.problem(NOW_NS + 50 * MS) == ''
    assert 'ages pan 0.200 s' in merger.problem(NOW_NS + 200 * MS)


def test_a_value_that_is_published_only_when_it_changes_never_grows_too_old(tmp_path):
    poses: list[Pose] = []
    stream = '{name: a, topic: a, max_age_s: 0.1, align: hold}'
    merger = PoseMerger(contract(tmp_path, stream), poses.append)
    merger.update('a', joints(pan=1.0, lift=2.0), now_ns=NOW_NS)
    merger.deliver(NOW_NS)
    assert poses[-1].fresh_until_ns > NOW_NS + FOREVER_NS // 4


def test_after_time_went_backwards_older_stamps_are_taken(tmp_path):
    poses: list[Pose] = []
    stream = '{name: a, topic: a, max_age_s: 0.1, clock: receive}'
    merger = PoseMerger(contract(tmp_path, stream), poses.append)
    merger.update('a', joints(pan=1.0, lift=1.0), now_ns=NOW_NS)
    merger.update('a', joints(pan=5.0, lift=5.0), now_ns=NOW_NS - 5000 * MS)
    merger.deliver(NOW_NS - 5000 * MS)
    assert poses[-1].values[0] == 5.0


def test_a_message_that_cannot_be_used_is_counted_and_changes_nothing(tmp_path):
    poses: list[Pose] = []
    stream = '{name: a, topic: a, max_age_s: 0.1}'
    merger = PoseMerger(contract(tmp_path, stream), poses.append)
    merger.update('a', joints(pan=1.0, lift=1.0), now_ns=NOW_NS)
    with pytest.raises(MessageError, match='not finite'):
        merger.update('a', joints(pan=np.nan, lift=5.0), now_ns=NOW_NS)
    merger.deliver(NOW_NS)
    assert poses[-1].values[:2].tolist() == [1.0, 1.0]
    assert merger.bad_messages == 1


def test_a_chunk_message_is_read_without_loss():
    values = np.random.default_rng(0).normal(size=(4, 2))
    message = ActionChunk(
        dt=1 / 30, epoch=3, chunk_id=9, joint_names=['a', 'b'], rows=4,
        data=array.array('d', values.tobytes()), inference_time=0.25,
    )  # fmt: skip
    message.observation_stamp.sec, message.observation_stamp.nanosec = 12, 345
    chunk = read_chunk(message)
    assert chunk.actions.tobytes() == values.tobytes()
    assert (chunk.joint_names, chunk.rows, chunk.dt_s) == (('a', 'b'), 4, 1 / 30)
    assert (chunk.epoch, chunk.chunk_id, chunk.inference_time_s) == (3, 9, 0.25)
    assert chunk.observation_stamp_ns == 12_000_000_345


@pytest.mark.parametrize(('rows', 'values'), [(2, 3), (0, 2), (3, 4), (2, 0)])
def test_a_chunk_message_that_contradicts_itself_is_refused(rows, values):
    message = ActionChunk(
        joint_names=['a', 'b'], rows=rows, data=array.array('d', [0.0] * values), chunk_id=7
    )
    with pytest.raises(MessageError, match=f'action chunk 7: found {values} values'):
        read_chunk(message)

"""Another policy takes over while the robot moves: nothing is missed, nothing repeated."""

from __future__ import annotations

import numpy as np
import pytest
from act_folder_factory import feature, features, tiny_config
from ros_fixtures import TINY_ROBOT
from ros_harness import executable, parameter_file
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from streamer_rig import EVERY
from swap_rig import SWAP_S, swap

from sparkrt.msg import StreamerStatus

pytestmark = pytest.mark.ros

NODE = '/sparkrt'


@pytest.fixture
def long_folder(make_act_folder):
    """A policy whose chunks last 5 s, of which half a second is used."""
    return make_act_folder('long', config=tiny_config(chunk_size=100, n_action_steps=10))


class Streamer:
    """A streamer process and all it sends."""

    def __init__(self, spawn, peer, folder) -> None:
        self.arm = peer.subscribe(
            Float64MultiArray, '/forward_position_controller/commands', EVERY
        )
        peer.subscribe(Float64MultiArray, '/gripper_controller/commands', EVERY)
        self.status = peer.subscribe(StreamerStatus, '/action_streamer/status', EVERY)
        values = {'robot': str(TINY_ROBOT), 'autostart': True, 'control.hold_s': 120.0}
        path = parameter_file(folder, 'action_streamer', values)
        command = [executable('action_streamer'), '--ros-args', '--params-file', str(path)]
        self.process = spawn(command)

    def wait_streaming(self):
        return self.status.wait_for(lambda m: m.state == 'streaming')


@pytest.fixture
def moving(spawn, peer, tmp_path, start_policy, feed, long_folder):
    """``moving(...)`` starts streamer and policy and returns both once commands flow."""

    def start(**options):
        streamer = Streamer(spawn, peer, tmp_path)
        feed.start()
        policy = start_policy(**{'checkpoint': str(long_folder), **options})
        policy.chunks.wait_for(count=2)
        streamer.wait_streaming()
        return policy, streamer

    return start


def wait_failed(policy):
    return policy.status.wait_for(
        lambda m: m.swap_state == 'failed', timeout_s=SWAP_S, what='failed swap'
    )


def test_policies_take_over_from_each_other_without_a_command_missed_or_repeated(
    moving, peer, make_act_folder
):
    policy, streamer = moving()
    config = tiny_config(chunk_size=100, n_action_steps=10, dim_feedforward=96)
    other = make_act_folder('other', config=config)
    first = policy.chunks.last
    before = streamer.status.wait_for()
    streamer.status.clear()
    served = [
        swap(policy, peer, precision='fp16'),
        swap(policy, peer, backend='eager'),
        swap(policy, peer, checkpoint=str(other), precision='fp32'),
        swap(policy, peer, backend='auto'),
    ]
    after = streamer.status.wait_for()
    assert [(m.backend, m.precision) for m in served] == [
        ('fused', 'fp16'),
        ('eager', 'fp16'),
        ('eager', 'fp32'),
        ('fused', 'fp32'),
    ]
    assert served[-1].checkpoint == str(other)
    assert all(m.swap_time > 0.0 for m in served)
    # Nothing was repeated: the actions never ran out. Nothing was dropped or held back.
    assert {m.state for m in streamer.status.messages} == {'streaming'}
    assert after.underruns == before.underruns
    assert after.chunks_dropped == before.chunks_dropped
    assert after.refused == before.refused
    chunks = policy.chunks.messages[policy.chunks.messages.index(first) :]
    assert [c.chunk_id - first.chunk_id for c in chunks] == list(range(len(chunks)))
    assert {c.session_id for c in chunks} == {first.session_id}
    assert [c.epoch - first.epoch for c in chunks] == sorted(c.epoch - first.epoch for c in chunks)
    assert chunks[-1].epoch == first.epoch + 1, 'one of the four is another policy'
    assert np.isfinite([message.data for message in streamer.arm.messages]).all()
    assert served[-1].chunks >= served[0].chunks, 'it goes on counting'
    assert 'Traceback' not in policy.process.log


def test_several_parameters_in_one_set_are_one_swap(moving, peer):
    policy, _ = moving(altered={})
    swap(
        policy, peer, precision='fp16', backend='eager', chunking__n_action_steps=5, prompt='lift'
    )
    assert policy.process.lines.count('loading') == 2
    assert policy.status.wait_for().swaps == 1
    assert peer.get_parameter(NODE, 'chunking.n_action_steps') == 5


@pytest.mark.parametrize(
    ('altered', 'reason'),
    [
        ({'STRICT_GATE': '1'}, 'gate failed: cosine'),
        ({'FAIL_LOAD': 'CUDA out of memory. Tried to allocate 9 GiB'}, 'CUDA out of memory'),
    ],
)
def test_a_swap_that_fails_leaves_the_old_policy_serving_and_says_why(
    moving, peer, altered, reason
):
    policy, streamer = moving(altered={'QUICK_LOADS': '1', **altered})
    before = streamer.status.wait_for()
    assert peer.set_parameters_atomically(NODE, precision='bf16', prompt='lift').successful
    status = wait_failed(policy)
    assert reason in status.swap_text
    assert status.swap_target == 'precision bf16'
    assert (status.precision, status.swaps, status.swaps_failed) == ('fp32', 0, 1)
    assert peer.get_parameter(NODE, 'precision') == 'fp32'
    assert peer.get_parameter(NODE, 'prompt') == ''
    policy.process.wait_for_log('swap to precision bf16 failed, the old policy serves on')
    policy.chunks.wait_for(count=2)
    after = streamer.status.wait_for()
    assert (after.state, after.underruns) == ('streaming', before.underruns)


def test_what_can_be_known_at_once_is_in_the_result(
    start_policy, feed, peer, make_act_folder, tmp_path
):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    narrow = features(
        feature('observation.images.front', 'VISUAL', 3, 32, 32),
        feature('observation.state', 'STATE', 5),
    )
    misfit = make_act_folder('misfit', config=tiny_config(input_features=narrow))
    (tmp_path / 'empty').mkdir()
    for values, reason in [
        ({'checkpoint': str(tmp_path / 'nowhere')}, 'nothing there'),
        ({'checkpoint': str(tmp_path / 'empty')}, 'config.json: found no such file'),
        ({'checkpoint': ''}, "parameter 'checkpoint': found nothing"),
        ({'checkpoint': str(misfit)}, 'observation.images.front as 32x32'),
        ({'device': 'cuda:77'}, 'device'),
        ({'device': 'gpu'}, "'auto', 'cpu', 'cuda' or 'cuda:N'"),
        ({'num_steps': 5}, 'choices for a act policy'),
        ({'precision': 'fp7'}, 'expected one of'),
        ({'precision': 'bf16', 'chunking__n_action_steps': 9}, 'chunk size of the policy, 8'),
    ]:
        result = peer.set_parameters_atomically(NODE, **values)
        assert not result.successful, values
        assert reason in result.reason
    status = policy.status.wait_for(count=2)
    assert (status.swap_state, status.swaps, status.swaps_failed) == ('idle', 0, 0)
    assert policy.process.count('ready in') == 1


def test_a_policy_with_other_cameras_takes_over_when_their_pictures_have_come(
    start_policy, feed, peer, make_act_folder
):
    only_front = features(
        feature('observation.images.front', 'VISUAL', 3, 64, 64),
        feature('observation.state', 'STATE', 5),
    )
    folder = make_act_folder('front', config=tiny_config(input_features=only_front))
    policy = start_policy(checkpoint=str(folder))
    both = make_act_folder('both')
    feed.start('front', 'joints')
    policy.chunks.wait_for()
    assert policy.status.wait_for().stream_names == ['front', 'state']
    assert peer.set_parameters(NODE, checkpoint=str(both))[0].successful
    policy.status.wait_for(lambda m: m.swap_state == 'connecting', timeout_s=SWAP_S)
    failed = wait_failed(policy)
    assert failed.swap_text.startswith(
        'no usable message of wrist within 5 s: /test_peer is connected on '
        '/wrist_camera/image_raw, but nothing came yet'
    )
    policy.chunks.wait_for(count=2)

    feed.start('wrist')
    status = swap(policy, peer, checkpoint=str(both))
    assert status.stream_names == ['front', 'wrist', 'state']
    policy.chunks.wait_for(count=2)
    swap(policy, peer, checkpoint=str(folder))
    assert policy.status.wait_for(count=2).stream_names == ['front', 'state']
    policy.chunks.wait_for(count=2)


def test_a_swap_under_way_is_seen_and_a_newer_wish_replaces_it(start_policy, feed, peer):
    policy = start_policy(altered={'QUICK_LOADS': '1', 'SLOW_LOAD_S': '2.0'})
    feed.start()
    policy.chunks.wait_for()
    assert peer.set_parameters(NODE, precision='bf16')[0].successful
    status = policy.status.wait_for(lambda m: m.swap_state == 'building')
    assert status.swap_target == 'precision bf16'
    assert status.precision == 'fp32'
    policy.chunks.wait_for(count=2)
    assert peer.set_parameters(NODE, precision='fp16')[0].successful
    status = policy.status.wait_for(lambda m: m.swaps == 1, timeout_s=SWAP_S)
    assert status.precision == 'fp16'
    assert peer.set_parameters(NODE, precision='bf16')[0].successful
    policy.status.wait_for(lambda m: m.swap_state == 'building')
    assert peer.set_parameters(NODE, precision='fp16')[0].successful
    policy.status.wait_for(lambda m: m.swap_state == 'idle')
    policy.status.wait_for(count=30)
    assert policy.status.last.swaps == 1, 'going back to what serves is no swap'


def test_a_swap_while_paused_serves_after_the_resume(start_policy, feed, peer):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    assert peer.call(Trigger, f'{NODE}/pause').success
    policy.wait_status('paused')
    policy.chunks.clear()
    assert peer.set_parameters(NODE, backend='eager')[0].successful
    policy.status.wait_for(lambda m: m.backend == 'eager', timeout_s=SWAP_S)
    policy.wait_status('paused', count=3)
    assert len(policy.chunks) == 0
    assert peer.call(Trigger, f'{NODE}/resume').success
    policy.chunks.wait_for(count=2)


def test_a_new_task_is_inferred_with_at_once(start_policy, feed, peer, make_act_folder):
    folder = make_act_folder('lazy', config=tiny_config(chunk_size=600, n_action_steps=600))
    policy = start_policy(checkpoint=str(folder))
    feed.start()
    first = policy.chunks.wait_for()
    policy.status.wait_for(count=5)
    assert policy.chunks.last.chunk_id == first.chunk_id, 'the next is due in 30 s'
    assert peer.set_parameters(NODE, prompt='lift the cube')[0].successful
    policy.wait_chunk(first.chunk_id + 1, timeout_s=20.0)


def test_the_streamer_follows_a_mode_that_changes_while_the_robot_moves(moving, peer):
    policy, streamer = moving()
    begin = streamer.status.wait_for()
    streamer.status.clear()
    for mode in ('ensemble', 'queue', 'ensemble'):
        assert peer.set_parameters(NODE, chunking__mode=mode)[0].successful
        policy.status.wait_for(lambda m, mode=mode: m.mode == mode)
        streamer.status.wait_for(lambda m, mode=mode: m.mode == mode)
        policy.chunks.wait_for(count=2)
    end = streamer.status.wait_for()
    assert {m.state for m in streamer.status.messages} == {'streaming'}
    assert (end.underruns, end.chunks_dropped) == (begin.underruns, begin.chunks_dropped)
    assert policy.process.count('ready in') == 1

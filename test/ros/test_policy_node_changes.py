"""What may change while a policy node runs, and what ends it."""

import os
import shutil
from pathlib import Path

import pytest
from rosgraph_msgs.msg import Clock

from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros


def test_live_parameters_change_at_once_and_others_name_what_to_do(start_policy, feed, peer):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    assert peer.set_parameters('/sparkrt', chunking__inference_rate_hz=2.0)[0].successful
    refused = peer.set_parameters('/sparkrt', chunking__n_action_steps=9)[0]
    assert not refused.successful
    assert 'at most the chunk size of the policy, 8' in refused.reason
    assert peer.get_parameter('/sparkrt', 'chunking.n_action_steps') == 0
    fixed = peer.set_parameters('/sparkrt', robot='so101')[0]
    assert 'clean the node up' in fixed.reason

    assert peer.set_parameters('/sparkrt', chunking__mode='ensemble')[0].successful
    assert policy.wait_status('active').mode == 'ensemble'
    policy.chunks.clear()
    policy.chunks.wait_for(count=6)
    times = policy.chunks.times_s
    assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(0.5, rel=0.2)
    assert policy.process.count('ready in') == 1
    assert peer.set_parameters('/sparkrt', chunking__mode='auto')[0].successful
    policy.status.wait_for(lambda m: m.mode == 'queue')


def test_every_thread_moves_to_the_processors_chosen(start_policy, feed, peer):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    first = str(min(os.sched_getaffinity(0)))
    assert peer.set_parameters('/sparkrt', cpus=first)[0].successful
    tasks = list(Path(f'/proc/{policy.process.pid}/task').glob('*/status'))
    assert len(tasks) > 3
    for task in tasks:
        assert f'Cpus_allowed_list:\t{first}\n' in task.read_text()
    refused = peer.set_parameters('/sparkrt', cpus='4000')[0]
    assert 'may not use 4000' in refused.reason
    assert peer.get_parameter('/sparkrt', 'cpus') == first
    policy.chunks.clear()
    policy.chunks.wait_for()


def test_a_policy_that_cannot_be_loaded_leaves_the_one_before_loaded(
    start_policy, feed, peer, make_act_folder
):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    good = peer.get_parameter('/sparkrt', 'checkpoint')
    assert policy.change_state('deactivate')
    refused = peer.set_parameters('/sparkrt', checkpoint='/nowhere')[0]
    assert '/nowhere: found nothing there' in refused.reason
    gone = make_act_folder('gone')
    assert peer.set_parameters('/sparkrt', checkpoint=str(gone))[0].successful
    shutil.rmtree(gone)
    assert not policy.change_state('activate')
    assert str(gone) in policy.wait_status('inactive').reason
    assert peer.set_parameters('/sparkrt', checkpoint=good)[0].successful
    policy.chunks.clear()
    assert policy.change_state('activate')
    policy.chunks.wait_for()
    assert policy.process.count('ready in') == 1


def test_failures_in_a_row_end_the_process_with_a_code_and_a_last_status(start_policy, feed):
    policy = start_policy(altered={'FAIL': 'bad weights', 'FAIL_AFTER': '2'})
    feed.start()
    status = policy.wait_status('error')
    assert 'bad weights' in status.reason
    assert status.failures == 3
    assert policy.process.wait() == 3
    assert len(policy.chunks) == 2
    assert 'Fatal' not in policy.process.log


def test_a_broken_device_ends_the_process_at_the_first_error(start_policy, feed):
    text = 'CUDA error: an illegal memory access was encountered'
    policy = start_policy(altered={'FAIL': text, 'FAIL_AFTER': '1'})
    feed.start()
    status = policy.wait_status('error')
    assert text in status.reason
    assert status.failures == 1
    assert policy.process.wait() == 3
    assert len(policy.chunks) == 1


def test_a_backward_jump_of_time_begins_a_new_epoch_with_one_line(start_policy, feed, peer):
    clock = peer.publisher(Clock, '/clock', qos.DIAGNOSTICS)
    policy = start_policy(use_sim_time=True)
    time_ns = [1_000_000_000_000]

    def tick():
        time_ns[0] += 33_000_000
        message = Clock()
        fill_stamp(message.clock, time_ns[0])
        clock.publish(message)
        for name in ('front', 'wrist'):
            feed.send_image(name, stamp_ns=time_ns[0])
        feed.send_joints(stamp_ns=time_ns[0])

    peer.every(0.033, tick)
    before = policy.chunks.wait_for(count=3)
    assert stamp_to_ns(before.observation_stamp) > 1_000_000_000_000
    time_ns[0] = 5_000_000_000
    after = policy.chunks.wait_for(lambda m: stamp_to_ns(m.observation_stamp) < 900_000_000_000)
    assert after.epoch == before.epoch + 1
    policy.chunks.wait_for(count=3)
    assert policy.process.count('time went back by') == 1

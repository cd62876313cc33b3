"""The policy node from its start to its end: transitions, failures to load, restarts."""

import pytest
from std_srvs.srv import Trigger

from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros


def test_the_lifecycle_decides_what_is_sent(start_policy, feed):
    policy = start_policy(autostart=False, backend='eager')
    feed.start()
    assert policy.peer.state('/sparkrt') == 'unconfigured'
    policy.wait_status('unconfigured')
    for service in ('reset', 'pause', 'resume'):
        response = feed.peer.call(Trigger, f'/sparkrt/{service}')
        assert not response.success
        assert response.message == 'the node is unconfigured'
    assert policy.change_state('configure')
    status = policy.wait_status('inactive')
    assert (status.model, status.backend, status.precision) == ('act', 'eager', 'fp32')
    assert status.load_time > 0.0
    status = policy.status.wait_for(lambda m: all(n > 5 for n in m.stream_received))
    assert status.stream_names == ['front', 'wrist', 'state']
    assert len(policy.chunks) == 0

    assert policy.change_state('activate')
    first = policy.chunks.wait_for()
    assert policy.change_state('deactivate')
    policy.chunks.clear()
    policy.wait_status('inactive', count=10)
    assert len(policy.chunks) == 0

    assert policy.change_state('activate')
    again = policy.chunks.wait_for()
    assert again.epoch > first.epoch
    assert again.chunk_id > first.chunk_id
    assert policy.change_state('deactivate')
    assert policy.change_state('cleanup')
    status = policy.wait_status('unconfigured')
    assert status.stream_names == []
    assert status.model == ''
    for transition in ('configure', 'activate', 'deactivate', 'cleanup'):
        done = 2 if transition in ('activate', 'deactivate') else 1
        assert policy.process.count(rf'\b{transition} done') == done


def test_a_checkpoint_that_is_missing_fails_configure_and_the_node_stays(start_policy, tmp_path):
    policy = start_policy(autostart=False, checkpoint=str(tmp_path / 'nowhere'))
    assert not policy.change_state('configure')
    assert policy.peer.state('/sparkrt') == 'unconfigured'
    status = policy.status.wait_for(lambda m: m.reason != '')
    assert 'nowhere' in status.reason
    assert policy.process.count('configure failed') == 1
    assert 'Traceback' not in policy.process.log


def test_a_robot_that_does_not_fit_fails_configure_with_both_lists(start_policy):
    policy = start_policy(robot='embedded')
    line = policy.process.wait_for_log('configure failed')
    assert 'after crop and resize; expected observation.images.front as 64x64' in line
    assert policy.wait_status('unconfigured').reason in line


def test_a_killed_policy_comes_back_as_a_new_session(start_policy, feed):
    policy = start_policy()
    feed.start()
    before = policy.chunks.wait_for()
    policy.process.signal(9)
    assert policy.process.wait() == -9
    start_policy()
    after = policy.chunks.wait_for(lambda chunk: chunk.session_id != before.session_id)
    assert stamp_to_ns(after.observation_stamp) > stamp_to_ns(before.observation_stamp)

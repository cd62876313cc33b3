"""P1: a node given damaged weights stays unconfigured; one that serves keeps what it has."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ros

POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 206766356\n'
DAMAGE = {
    'LFS pointer': lambda data: POINTER,
    'cut to half': lambda data: data[: len(data) // 2],
    'empty': lambda data: b'',
    'sixteen trailing bytes': lambda data: data + bytes(16),
}


def damage(folder, name: str):
    """A copy of the policy folder with damaged weights."""
    path = folder / 'model.safetensors'
    data = path.read_bytes()
    path.unlink()  # the file is shared with other tests
    path.write_bytes(DAMAGE[name](data))
    return folder


@pytest.mark.parametrize('name', DAMAGE)
def test_the_node_stays_unconfigured_and_says_why(start_policy, make_act_folder, name):
    folder = damage(make_act_folder('damaged'), name)
    policy = start_policy(autostart=False, checkpoint=str(folder), backend='eager')
    assert not policy.change_state('configure')
    status = policy.status.wait_for(lambda m: m.reason != '')
    assert status.state == 'unconfigured'
    assert 'model.safetensors' in status.reason
    assert 'bytes' in status.reason
    assert ('LFS pointer' in status.reason) == (name == 'LFS pointer')
    assert 'Traceback' not in policy.process.log


@pytest.mark.parametrize('name', DAMAGE)
def test_the_policy_that_serves_is_kept(policy, make_act_folder, feed, peer, name):
    feed.start()
    policy.chunks.wait_for()
    good = peer.get_parameter('/sparkrt', 'checkpoint')
    damaged = damage(make_act_folder('damaged'), name)
    refused = peer.set_parameters('/sparkrt', checkpoint=str(damaged))[0]
    assert not refused.successful
    assert 'model.safetensors' in refused.reason
    assert ('LFS pointer' in refused.reason) == (name == 'LFS pointer')
    assert peer.get_parameter('/sparkrt', 'checkpoint') == good
    policy.chunks.wait_for(count=2)
    assert policy.process.count('ready in') == 1, 'nothing else was ever loaded'

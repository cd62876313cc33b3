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


def test_the_policy_that_serves_is_kept(start_policy, make_act_folder, feed, peer):
    policy = start_policy(backend='eager')
    feed.start()
    policy.chunks.wait_for()
    good = peer.get_parameter('/sparkrt', 'checkpoint')
    damaged = damage(make_act_folder('damaged'), 'LFS pointer')
    assert policy.change_state('deactivate')
    assert peer.set_parameters('/sparkrt', checkpoint=str(damaged))[0].successful
    assert not policy.change_state('activate')
    assert 'LFS pointer' in policy.wait_status('inactive').reason
    assert peer.set_parameters('/sparkrt', checkpoint=good)[0].successful
    policy.chunks.clear()
    assert policy.change_state('activate')
    policy.chunks.wait_for()
    assert policy.process.count('ready in') == 1, 'it was never loaded again'

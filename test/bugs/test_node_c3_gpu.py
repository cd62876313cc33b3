"""A policy node whose GPU breaks: nothing more is published, and the process ends and says why."""

from __future__ import annotations

import pytest
from ros_fixtures import PolicyUnderTest, policy_command
from ros_harness import ROOT

NODE = ROOT / 'test' / 'ros' / 'breaking_policy_node.py'
FAULT = 3
START_LIMIT_S = 60.0

pytestmark = [pytest.mark.gpu, pytest.mark.ros]


@pytest.mark.parametrize('backend', ['cudagraph', 'eager'])
def test_a_broken_gpu_ends_the_process_at_once(
    spawn, peer, feed, act_folder, tmp_path, backend: str
) -> None:
    command = policy_command(act_folder, tmp_path, altered=True, device='cuda', backend=backend)
    command[1] = str(NODE)
    policy = PolicyUnderTest(spawn(command, BREAK_AFTER='3'), peer)
    policy.process.wait_for_log('activate done', timeout_s=START_LIMIT_S)
    policy.chunks.wait_until(lambda: policy.chunks.publishers == 1)
    feed.start()
    status = policy.wait_status('error')
    assert 'device-side assert' in status.reason
    assert status.failures == 1
    assert policy.process.wait() == FAULT
    assert 'device-side assert' in policy.process.log
    assert len(policy.chunks) == 3


def test_a_gpu_that_is_not_there_leaves_the_node_unconfigured(start_policy) -> None:
    policy = start_policy(device='cuda:99')
    line = policy.process.wait_for_log('configure failed', timeout_s=START_LIMIT_S)
    assert "'cuda:99'" in line
    assert 'cuda:0 (' in line
    assert 'cuda:99' in policy.wait_status('unconfigured').reason

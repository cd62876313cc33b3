"""C3 without a GPU: a device that is not there fails configure; nothing changes to the CPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without CUDA'),
]


@pytest.mark.parametrize('device', ['cuda', 'cuda:3'])
def test_cuda_on_a_machine_without_it_leaves_the_node_unconfigured(start_policy, device):
    policy = start_policy(device=device)
    line = policy.process.wait_for_log('configure failed', timeout_s=60.0)
    assert f'{device!r}' in line
    status = policy.wait_status('unconfigured')
    assert 'cpu' in status.reason
    assert status.device == ''
    assert len(policy.chunks) == 0


def test_the_cpu_serves_where_it_is_asked_for(start_policy, feed):
    policy = start_policy(device='cpu')
    feed.start()
    policy.chunks.wait_for()
    assert policy.wait_status('active').device == 'cpu'

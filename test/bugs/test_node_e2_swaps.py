"""E2 for swaps: whatever a swap waits for, the node answers, reports and serves."""

import time
from functools import partial

import pytest
from std_srvs.srv import Trigger
from swap_rig import NODE, STUCK, begin_swap, serve

pytestmark = pytest.mark.ros


@pytest.fixture
def start_serving(start_policy, feed):
    return partial(serve, start_policy, feed)


def test_services_and_sets_are_answered_while_a_swap_is_stuck(start_serving, peer):
    policy = start_serving(altered=STUCK)
    begin_swap(policy, peer)
    begin_s = time.monotonic()
    for service in ('reset', 'pause', 'resume', 'reset'):
        assert peer.call(Trigger, f'{NODE}/{service}', timeout_s=2.0).success
    assert peer.set_parameters(NODE, status__rate_hz=20.0)[0].successful
    assert time.monotonic() - begin_s < 8.0
    policy.status.wait_for(count=10)
    policy.chunks.wait_for(count=2)
    status = policy.status.last
    assert (status.swap_state, status.precision) == ('building', 'fp32')


def test_a_slow_inference_holds_up_the_changeover_and_nothing_else(start_serving, peer):
    policy = start_serving(altered={'SLOW_S': '2.0'})
    assert peer.set_parameters(NODE, precision='fp16')[0].successful
    policy.status.wait_for(lambda m: m.swap_state == 'connecting', timeout_s=60.0)
    assert 'old policy to end its inference' in policy.status.last.swap_text
    for service in ('reset', 'pause', 'resume'):
        assert peer.call(Trigger, f'{NODE}/{service}', timeout_s=2.0).success
    policy.status.wait_for(lambda m: m.swaps == 1, timeout_s=60.0)
    begun = policy.status.last.epoch
    chunk = policy.chunks.wait_for(lambda m: m.epoch >= begun)
    assert policy.status.wait_for().precision == 'fp16'
    assert chunk.epoch == policy.status.last.epoch

"""E6 for swaps: signals, deactivate and cleanup in the middle of one."""

import signal
from functools import partial

import pytest
from ros_harness import assert_ends_cleanly
from swap_rig import NODE, STUCK, begin_swap, serve

pytestmark = pytest.mark.ros


@pytest.fixture
def start_serving(start_policy, feed):
    return partial(serve, start_policy, feed)


@pytest.mark.parametrize('numbers', [(signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)])
def test_a_signal_during_a_swap_that_is_stuck(start_serving, peer, numbers):
    policy = start_serving(altered=STUCK)
    begin_swap(policy, peer)
    assert_ends_cleanly(policy.process, *numbers)


def test_a_signal_while_the_new_policy_is_built_for_real(start_serving, peer):
    policy = start_serving()
    begin_swap(policy, peer)
    assert_ends_cleanly(policy.process, signal.SIGINT)


def test_a_signal_while_the_old_policy_ends_its_inference(start_serving, peer):
    policy = start_serving(altered={'SLOW_S': '1.5'})
    assert peer.set_parameters(NODE, precision='fp16')[0].successful
    policy.status.wait_for(lambda m: m.swap_state == 'connecting', timeout_s=60.0)
    assert_ends_cleanly(policy.process, signal.SIGTERM)


def test_deactivate_gives_a_swap_up_and_the_next_activation_loads_it(start_serving, peer):
    policy = start_serving(altered={'QUICK_LOADS': '1', 'SLOW_LOAD_S': '1.0'})
    begin_swap(policy, peer)
    assert policy.change_state('deactivate')
    assert policy.wait_status('inactive').swap_state == 'idle'
    policy.chunks.clear()
    policy.wait_status('inactive', count=15)
    assert len(policy.chunks) == 0
    assert policy.status.last.precision == 'fp32'
    assert peer.get_parameter(NODE, 'precision') == 'fp16'
    assert policy.change_state('activate')
    assert policy.wait_status('active').precision == 'fp16'
    policy.chunks.wait_for(count=2)
    assert policy.process.count('swap given up') == 1


def test_cleanup_after_a_swap_that_is_stuck_and_a_new_start(start_serving, peer):
    policy = start_serving(altered={'QUICK_LOADS': '1', 'SLOW_LOAD_S': '3.0'})
    begin_swap(policy, peer)
    assert policy.change_state('deactivate')
    assert policy.change_state('cleanup')
    assert policy.wait_status('unconfigured').model == ''
    assert peer.set_parameters(NODE, precision='fp32')[0].successful
    assert policy.change_state('configure')
    assert policy.change_state('activate')
    policy.chunks.wait_for(count=2)
    assert policy.status.wait_for().precision == 'fp32'

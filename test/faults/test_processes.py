"""Processes that end, die or stand still in mid-motion: hold, stop, go on with the next."""

from __future__ import annotations

import signal
from itertools import pairwise

import numpy as np
import pytest
from ros_harness import ROOT, python_script

pytestmark = pytest.mark.ros

FAULT_EXIT = 3
BREAKING_NODE = ROOT / 'test' / 'ros' / 'breaking_policy_node.py'
SENSORS = ROOT / 'test' / 'faults' / 'sensor_process.py'


@pytest.fixture
def moving(stack):
    """Both nodes of this test alone, in full motion."""
    move(stack)
    return stack


def move(stack, **parameters):
    stack.feed.start()
    stack.start(**parameters)
    stack.wait_streaming()
    stack.policy.chunks.wait_until(lambda: len(stack.policy.chunks.messages) > 0)


def assert_a_new_policy_takes_over(stack, begin_ns):
    """After the actions of the last process the robot holds, stops, and goes on with the next."""
    stack.assert_ended_with_its_actions(stack.pause_after(begin_ns))
    session_id = stack.policy.chunks.messages[-1].session_id
    since_ns = stack.now_ns
    stack.inferences('')
    stack.start_policy()
    stack.wait_streaming(after_ns=since_ns)
    assert stack.policy.chunks.wait_for().session_id != session_id


def test_too_many_failures_end_the_process_and_a_new_one_takes_over(moving):
    stack, begin_ns = moving, moving.now_ns
    stack.inferences('fail out of luck')
    status = stack.policy.wait_status('error')
    assert status.reason == 'inference given up after 3 failures in a row: out of luck'
    assert stack.policy.process.wait() == FAULT_EXIT
    assert_a_new_policy_takes_over(stack, begin_ns)


def test_an_inference_that_is_stuck_for_good_ends_the_process(stack):
    move(stack, inference__timeout_s=2.0)
    begin_ns = stack.now_ns
    stack.inferences('hang')
    status = stack.policy.wait_status('error')
    assert 'inference given up: it has taken 2.' in status.reason
    assert stack.policy.process.wait() == FAULT_EXIT
    assert_a_new_policy_takes_over(stack, begin_ns)


def test_a_device_that_is_lost_ends_the_process_at_the_first_error(moving):
    stack, begin_ns = moving, moving.now_ns
    stack.inferences('fail CUDA error: an illegal memory access was encountered')
    status = stack.policy.wait_status('error')
    assert 'illegal memory access' in status.reason
    assert status.failures == 1
    assert stack.policy.process.wait() == FAULT_EXIT
    assert_a_new_policy_takes_over(stack, begin_ns)


@pytest.mark.gpu
def test_a_gpu_that_really_breaks_ends_the_process_and_a_new_one_takes_over(stack):
    stack.feed.start()
    stack.start_streamer()
    stack.start_policy(script=BREAKING_NODE, environ={'BREAK_AFTER': '5'}, device='cuda')
    begin_ns = stack.wait_streaming()
    status = stack.policy.wait_status('error', timeout_s=60.0)
    assert 'device-side assert' in status.reason
    assert stack.policy.process.wait() == FAULT_EXIT
    stack.assert_ended_with_its_actions(stack.pause_after(begin_ns))
    since_ns = stack.now_ns
    stack.start_policy(device='cuda')
    stack.wait_streaming(after_ns=since_ns)


def test_a_policy_process_that_is_killed(moving):
    stack, begin_ns = moving, moving.now_ns
    stack.policy.process.signal(signal.SIGKILL)
    stack.policy.process.wait()
    stack.wait_reason('holding', 'the actions ran out; last chunk')
    stack.wait_reason('stopped', 'the policy process has been silent for')
    assert_a_new_policy_takes_over(stack, begin_ns)


def test_a_policy_process_that_stands_still(moving):
    stack, begin_ns = moving, moving.now_ns
    stack.policy.process.signal(signal.SIGSTOP)
    stack.wait_reason('stopped', 'the policy process has been silent for')
    stack.assert_ended_with_its_actions(stack.pause_after(begin_ns))
    stack.assert_resumes(lambda: stack.policy.process.signal(signal.SIGCONT))


def test_a_streamer_that_is_killed(moving):
    stack = moving
    stack.streamer.signal(signal.SIGKILL)
    stack.streamer.wait()
    last = np.array(stack.arm.last.data)
    killed_ns = stack.now_ns
    stack.policy.status.wait_for(lambda m: m.state == 'active', count=3)
    chunk_id = stack.policy.chunks.messages[-1].chunk_id
    stack.arm.clear()
    stack.start_streamer(autostart=False)
    assert stack.peer.change_state('/action_streamer', 'configure')
    # Only now does the first command arrive for sure.
    stack.arm.wait_until(lambda: stack.arm.publishers > 0)
    assert stack.peer.change_state('/action_streamer', 'activate')
    stack.wait_streaming(after_ns=killed_ns)
    assert stack.policy.chunks.wait_for().chunk_id > chunk_id, 'the policy has gone on'
    stack.arm.wait_until(lambda: len(stack.arm.messages) > 0)
    first = np.array(stack.arm.messages[0].data)
    measured = np.full(4, 0.25)
    step = 3.0 * 0.01  # the fastest joint of the tiny robot in one control period
    assert np.abs(first - measured).max() <= step, (first, last)


def test_a_streamer_that_stands_still(moving):
    stack = moving
    stack.streamer.signal(signal.SIGSTOP)
    # It stands still for as long as its hold would last; meanwhile chunks come and time passes.
    stack.policy.status.wait_for(count=20)
    stopped_ns = stack.now_ns
    stack.assert_resumes(lambda: stack.streamer.signal(signal.SIGCONT))
    ticks = [tick for tick in stack.ticks.all if tick.time_ns >= stopped_ns]
    late = max(after.time_ns - before.time_ns for before, after in pairwise(ticks))
    assert late > 1_000_000_000, 'no burst: what was missed is skipped'
    commands = np.array([message.data for message in stack.arm.messages])
    assert np.abs(np.diff(commands, axis=0)).max() <= 4.0 * 0.01 + 1e-9


def test_a_publisher_that_is_killed_and_started_again(stack, spawn):
    sensors = spawn(python_script(SENSORS))
    stack.start()
    begin_ns = stack.wait_streaming()
    sensors.signal(signal.SIGKILL)
    sensors.wait()
    stack.wait_policy_reason('old; expected at most 0.3 s')
    stack.wait_reason('stopped', 'joint_states', 'expected at most 0.300 s')
    stack.pause_after(begin_ns)
    stack.assert_resumes(lambda: spawn(python_script(SENSORS)))


def test_a_policy_that_goes_away_in_order_is_named_so(moving):
    stack, begin_ns = moving, moving.now_ns
    stack.policy.process.signal(signal.SIGTERM)
    assert stack.policy.process.wait() == 0
    stack.wait_reason('stopped', 'the policy process is gone: nobody publishes on')
    assert_a_new_policy_takes_over(stack, begin_ns)

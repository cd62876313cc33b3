"""Inferences that are slow, stuck, or fail: hold, stop, say why, go on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ros


def test_inferences_slower_than_their_chunks_last(running):
    stack = running
    begin_ns = stack.now_ns
    stack.inferences('slow 2.5')
    stack.wait_policy_reason('the inference under way has taken 1.')
    stack.wait_reason('stopped', 'the actions ran out', 'the inference under way has taken')
    pause = stack.pause_after(begin_ns)
    stack.assert_ended_with_its_actions(pause)
    again_ns = stack.wait_streaming(after_ns=pause.stop_ns)
    stack.assert_ended_with_its_actions(stack.pause_after(again_ns))
    stack.assert_resumes(lambda: stack.inferences(''))


def test_an_inference_that_is_stuck_for_a_while(running):
    stack = running
    begin_ns = stack.now_ns
    stack.inferences('hang')
    stack.wait_reason('stopped', 'the actions ran out', 'the inference under way has taken')
    stack.assert_ended_with_its_actions(stack.pause_after(begin_ns))
    stack.assert_resumes(lambda: stack.inferences(''))


@pytest.mark.parametrize(
    ('fault', 'reason'),
    [
        ('fail out of luck', 'inference failed: out of luck'),
        ('nan', 'policy output'),
        ('short', 'policy output'),
    ],
)
def test_inferences_that_fail_for_a_while(running, fault, reason):
    stack = running
    stack.set_policy(inference__max_failures=1000)
    begin_ns, failures = stack.now_ns, stack.policy.status.last.failures
    stack.inferences(fault)
    stack.wait_policy_reason(reason)
    stack.wait_reason('stopped', 'the actions ran out', reason)
    stack.assert_ended_with_its_actions(stack.pause_after(begin_ns))
    assert stack.policy.status.last.failures > failures
    stack.assert_resumes(lambda: stack.inferences(''))

"""SIGINT, SIGTERM and SIGKILL in every state of the policy node."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from fault_rig import Stack
from ros_fixtures import ALTERED_POLICY_NODE
from std_srvs.srv import Trigger

pytestmark = [pytest.mark.ros, pytest.mark.slow]


def unconfigured(stack: Stack) -> None:
    stack.start_policy(autostart=False).wait_status('unconfigured')


def configuring(stack: Stack) -> None:
    policy = stack.start_policy(script=ALTERED_POLICY_NODE, environ={'SLOW_LOAD_S': '600'})
    policy.process.wait_for_log('^loading$')


def inactive(stack: Stack) -> None:
    policy = stack.start_policy(autostart=False)
    assert policy.change_state('configure')
    policy.wait_status('inactive')


def waiting(stack: Stack) -> None:
    stack.feed.stop()
    stack.start_policy()
    stack.wait_policy_reason('no usable message yet')


def active(stack: Stack) -> None:
    stack.feed.start()
    stack.start_policy().chunks.wait_for(count=3)


def paused(stack: Stack) -> None:
    active(stack)
    assert stack.peer.call(Trigger, '/sparkrt/pause').success
    stack.policy.wait_status('paused')


def stuck(stack: Stack) -> None:
    """In an inference that does not end."""
    active(stack)
    stack.inferences('hang')
    stack.wait_policy_reason('the inference under way has taken')


STATES: tuple[Callable[[Stack], None], ...] = (
    unconfigured,
    configuring,
    inactive,
    waiting,
    active,
    paused,
    stuck,
)


@pytest.mark.parametrize('reach', STATES, ids=lambda reach: reach.__name__)
def test_a_signal_ends_it_and_a_new_one_starts(stack, reach):
    for number in (signal.SIGINT, signal.SIGTERM):
        reach(stack)
        process = stack.policy.process
        process.signal(number)
        assert process.wait() == 0, process.log
        assert 'Traceback' not in process.log
        assert 'rror' not in process.log
        stack.inferences('')
    reach(stack)
    stack.policy.process.signal(signal.SIGKILL)
    assert stack.policy.process.wait() == -signal.SIGKILL
    stack.inferences('')
    active(stack)

"""E6: SIGINT and SIGTERM end the process in time, with code 0, without a traceback."""

import signal

import pytest
from ros_harness import assert_ends_cleanly

pytestmark = pytest.mark.ros

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize('number', SIGNALS)
def test_before_configure(start_policy, number):
    policy = start_policy(autostart=False)
    policy.wait_status('unconfigured')
    assert_ends_cleanly(policy.process, number)


def test_while_active(start_policy, feed):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for(count=3)
    assert_ends_cleanly(policy.process, signal.SIGTERM)


def test_during_an_inference_of_two_seconds(start_policy, feed):
    policy = start_policy(altered={'SLOW_S': '2.0'})
    feed.start()
    policy.chunks.wait_for()
    assert_ends_cleanly(policy.process, signal.SIGINT)


def test_during_an_inference_that_never_ends(start_policy, feed):
    policy = start_policy(altered={'SLOW_S': '600'})
    feed.start()
    policy.status.wait_for(lambda m: m.state == 'active' and min(m.stream_ages) >= 0.0, count=5)
    assert_ends_cleanly(policy.process, signal.SIGTERM)


def test_while_configure_loads(start_policy):
    policy = start_policy(altered={'SLOW_LOAD_S': '600'})
    policy.process.wait_for_log('^loading$')
    assert_ends_cleanly(policy.process, signal.SIGINT)
    assert policy.process.count('configure given up: the process ends') == 1


def test_twice_and_mixed(start_policy, feed):
    policy = start_policy()
    feed.start()
    policy.chunks.wait_for()
    assert_ends_cleanly(policy.process, signal.SIGINT, signal.SIGINT, signal.SIGTERM)

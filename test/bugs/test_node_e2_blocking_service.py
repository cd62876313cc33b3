"""E2: a service handler never blocks the executor, whatever the policy is busy with."""

import time

import pytest
from std_srvs.srv import Trigger

pytestmark = pytest.mark.ros


def test_reset_during_a_slow_inference_answers_at_once_and_nothing_else_stops(start_policy, feed):
    policy = start_policy(altered={'SLOW_S': '4.0'})
    feed.start()
    policy.process.wait_for_log('activate done')
    policy.status.wait_for(lambda m: min(m.stream_ages, default=-1.0) >= 0.0)
    policy.status.clear()
    begin_s = time.monotonic()
    for service in ('reset', 'pause', 'resume', 'reset'):
        response = feed.peer.call(Trigger, f'/sparkrt/{service}', timeout_s=2.0)
        assert response.success
    assert time.monotonic() - begin_s < 2.0
    policy.status.wait_for(count=15, timeout_s=4.0)
    times = policy.status.times_s
    assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(0.1, rel=0.3)

"""E2: a service handler never blocks the executor, whatever the policy is busy with."""

import ast
import time

import pytest
from ros_harness import ROOT
from std_srvs.srv import Trigger
from streamer_rig import open_rig, still

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


# What waits for an answer, inside a node.
WAITING = {
    'call',
    'call_async',
    'create_client',
    'spin_once',
    'wait_for_server',
    'wait_for_service',
}


def test_no_node_waits_for_a_service_of_another():
    """Where no handler asks anybody, none can wait for one that is absent, or for itself."""
    calls = set()
    for path in (ROOT / 'sparkrt_ros' / 'nodes').glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                calls.add((path.name, node.func.attr))
    assert ('policy_node.py', 'create_service') in calls
    assert not {(name, call) for name, call in calls if call in WAITING}


def test_a_policy_that_loads_for_ever_takes_nothing_from_the_commands(tmp_path, start_policy):
    """Loading happens inside a request to the policy node; the commands are another process's."""
    with open_rig(tmp_path) as rig:
        rig.start()
        rig.publish(still(1500, pan=0.1))
        rig.wait_status('streaming')
        policy = start_policy(altered={'SLOW_LOAD_S': '600'})
        policy.process.wait_for_log('^loading$')
        before = rig.now_status()
        rig.arm.wait_for(count=100)
        after = rig.now_status()
        assert after.state == 'streaming'
        assert after.underruns == before.underruns
        assert rig.call('pause').success
        assert rig.call('resume').success

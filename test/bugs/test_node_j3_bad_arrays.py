"""J3: empty, short and non-finite joint arrays at both nodes, over real topics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ros_fixtures import JOINTS
from sensor_msgs.msg import JointState
from streamer_rig import open_rig, still

from sparkrt_ros.convert.time import fill_stamp

pytestmark = pytest.mark.ros

POSITIONS = [0.1] * len(JOINTS)
GOOD = {
    'no velocity, no effort': {'velocity': [], 'effort': []},
    'effort is all NaN': {'velocity': POSITIONS, 'effort': [math.nan] * len(JOINTS)},
}
BAD = {
    'one value for all': {'position': [1.0]},
    'a NaN': {'position': [math.nan, *POSITIONS[1:]]},
    'infinite': {'position': [math.inf, *POSITIONS[1:]]},
    'no positions': {'position': []},
}


@pytest.mark.parametrize('case', GOOD)
def test_what_the_policy_does_not_use_may_be_empty_or_nan(policy, feed, case):
    feed.start('front', 'wrist')
    feed.wait_matched()
    bad = policy.status.wait_for().bad_messages
    feed.peer.every(0.02, lambda: feed.send_joints(**GOOD[case]))
    chunk = policy.chunks.wait_for(count=2)
    assert np.isfinite(chunk.data).all()
    assert policy.status.wait_for().bad_messages == bad


@pytest.mark.parametrize('case', BAD)
def test_a_bad_array_rejects_the_message_whole_and_the_old_state_ages_out(policy, feed, case):
    feed.start('front', 'wrist')
    feed.wait_matched()
    policy.status.wait_for(lambda m: min(m.stream_ages[:2]) >= 0.0)
    good = feed.peer.every(0.02, lambda: feed.send_joints(position=POSITIONS))
    policy.chunks.wait_for()
    good.cancel()
    before = policy.status.wait_for(count=2)
    for _ in range(3):
        feed.send_joints(**BAD[case])
    state = list(before.stream_names).index('state')
    status = policy.status.wait_for(
        lambda m: m.stream_received[state] == before.stream_received[state] + 3
    )
    assert status.bad_messages == before.bad_messages + 3
    feed.peer.every(0.02, lambda: feed.send_joints(**BAD[case]))
    status = policy.status.wait_for(lambda m: m.state == 'waiting' and 'joint' in m.reason)
    assert status.failures == 0
    assert all(np.isfinite(chunk.data).all() for chunk in policy.chunks.messages)


def test_commands_stay_finite_whatever_the_joints_say(tmp_path):
    with open_rig(tmp_path) as rig:
        rig.start()
        rig.publish(still(1500, pan=0.2))
        rig.wait_status('streaming')
        for position in ([math.nan, 0.0], [math.inf, -math.inf], [0.1], []):
            message = JointState(name=['pan', 'lift'], position=position)
            fill_stamp(message.header.stamp, rig.peer.now_ns)
            for _ in range(5):
                rig._joints.publish(message)
            rig.arm.wait_for(count=10)
        rig.pose = None
        rig.wait_status('holding', reason='pan')
        values = [list(command.data) for command in rig.arm.messages]
        assert np.isfinite(values).all()

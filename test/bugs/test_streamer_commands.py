"""O1: bad commands never leave the node, whatever the policy publishes."""

from __future__ import annotations

import array
import math

import numpy as np
import pytest
from streamer_rig import CONTRACT, StreamerRig, make_rig, open_rig, pan_lift, still

from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros

TRAJECTORY = CONTRACT.replace(
    '{name: arm, type: float64_multi_array,',
    '{name: arm, type: joint_trajectory, time_from_start_s: 0.05,',
)


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def with_value(value: float) -> np.ndarray:
    rows = still(20)
    rows[3, 1] = value
    return rows


def test_a_bad_chunk_is_dropped_and_counted_and_the_good_one_plays_on(rig: StreamerRig):
    process = rig.start()
    rig.publish(still(1500, pan=0.01))
    rig.wait_status('streaming')
    bad = {
        'nan in row 3': rig.chunk(with_value(math.nan)),
        'inf in row 3': rig.chunk(with_value(math.inf)),
        '18 values': rig.chunk(still(6), joint_names=['pan', 'lift']),
        '7 values': rig.chunk(still(2), data=array.array('d', [0.0] * 7)),
        r"joint names \['a', 'b', 'c'\]": rig.chunk(still(5), joint_names=['a', 'b', 'c']),
        r"joint names \['lift', 'pan', 'x'\]": rig.chunk(
            still(5), joint_names=['lift', 'pan', 'x']
        ),
        r'shape \(0, 3\)': rig.chunk(still(1), rows=0, data=array.array('d')),
        'dt = 0.0': rig.chunk(still(5), dt=0.0),
        'dt = nan': rig.chunk(still(5), dt=math.nan),
    }
    before = rig.now_status().chunks_dropped
    for number, message in enumerate(bad.values(), start=1):
        rig.chunks.publish(message)
        rig.status.wait_for(lambda m, n=number: m.chunks_dropped == before + n)
    status = rig.now_status()
    assert (status.state, status.chunks_taken) == ('streaming', 1)
    for text in ('nan in row 3', r'18 values|7 values', 'joint names', r'shape \(0, 3\)', 'dt ='):
        process.wait_for_log(text)
    values = np.array([list(message.data) for message in rig.arm.messages])
    assert np.isfinite(values).all()
    assert pan_lift(rig.arm.last) == (0.01, 0.0)


def test_an_array_follows_the_controllers_order_not_the_policys(rig: StreamerRig):
    rig.start()
    rig.publish(still(100, pan=0.01, lift=-0.02))
    rig.arm.wait_for(lambda m: list(m.data) == [-0.02, 0.01], what='lift before pan')


def test_no_target_takes_a_joint_beyond_its_limits(rig: StreamerRig):
    rig.pose = (1.95, -1.95)
    rig.start()
    rig.publish(still(100, pan=9.0, lift=-9.0, x=7.0))
    rig.arm.wait_for(lambda m: pan_lift(m) == (2.0, -2.0), what='the limits')
    rig.base.wait_for(lambda m: m.linear.x == 1.0, what='the speed limit')
    assert np.abs([pan_lift(message) for message in rig.arm.messages]).max() <= 2.0
    assert rig.now_status().limited > 0


def test_a_trajectory_begins_after_its_arrival(tmp_path):
    from rclpy.qos import QoSProfile
    from trajectory_msgs.msg import JointTrajectory

    with open_rig(tmp_path, contract=TRAJECTORY.replace('arm/commands', 'arm/trajectory')) as rig:
        rig.arm = rig.peer.subscribe(JointTrajectory, '/arm/trajectory', QoSProfile(depth=100))
        rig.start()
        rig.publish(still(200, pan=0.1))
        message = rig.arm.wait_for(lambda m: m.points[0].positions[1] == 0.1)
        assert list(message.joint_names) == ['lift', 'pan']
        assert stamp_to_ns(message.header.stamp) == 0
        assert [stamp_to_ns(p.time_from_start) for p in message.points] == [50_000_000]

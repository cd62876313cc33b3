"""D1: commands that nobody receives are counted and told; QoS that cannot match is named."""

from __future__ import annotations

import pytest
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float64MultiArray
from streamer_rig import StreamerRig, make_rig, still

from sparkrt.msg import ActionChunk

pytestmark = pytest.mark.ros

BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
UNHEARD = '{name: arm, type: float64_multi_array, topic: arm/commands,'


@pytest.fixture
def deaf(tmp_path):
    """A robot whose arm controller is not there: the rig subscribes to another topic."""
    from streamer_rig import CONTRACT

    contract = CONTRACT.replace(UNHEARD, UNHEARD.replace('arm/commands', 'unheard/commands'))
    yield from make_rig(tmp_path, contract=contract)


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def test_commands_without_a_subscriber_are_counted_and_told_once(deaf: StreamerRig):
    process = deaf.start(wait=False)
    for inbox in (deaf.base, deaf.status, deaf.progress):
        inbox.wait_until(lambda inbox=inbox: inbox.publishers > 0)
    deaf.chunks.wait_matched()
    deaf.wait_status('waiting', reason='no action chunk yet')
    deaf.publish(still(1500))
    deaf.wait_status('streaming')
    status = deaf.status.wait_for(lambda m: m.undelivered > 50)
    assert 0 <= status.commands - status.undelivered <= 1
    process.wait_for_log('not delivered: nobody subscribes to /unheard/commands')
    arm = deaf.peer.subscribe(Float64MultiArray, '/unheard/commands', QoSProfile(depth=10))
    arm.wait_for()
    status = deaf.now_status()
    assert deaf.now_status().undelivered == status.undelivered, 'somebody listens now'
    assert deaf.status.last.commands > status.commands
    assert process.count('not delivered') == 1


def test_every_command_reaches_a_controller_that_listens(rig: StreamerRig):
    rig.start()
    rig.publish(still(50))
    rig.wait_status('stopped')
    status = rig.now_status()
    assert status.undelivered == 0
    rig.arm.wait_until(lambda: len(rig.arm) == status.commands)


def test_a_best_effort_chunk_publisher_is_named_with_the_policy_that_does_not_fit(rig):
    process = rig.start()
    rig.peer.publisher(ActionChunk, '/sparkrt/action_chunk', BEST_EFFORT)
    line = process.wait_for_log('incompatible QoS')
    assert '/sparkrt/action_chunk' in line
    assert 'reliability' in line


def test_joint_states_of_any_reliability_are_heard(rig: StreamerRig):
    from rclpy.qos import DurabilityPolicy
    from sensor_msgs.msg import JointState

    from sparkrt_ros.convert.time import fill_stamp

    rig.pose = None
    rig.start(wait=False)
    rig.wait_matched()
    latched = QoSProfile(
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )
    halves = {
        'pan': rig.peer.publisher(JointState, '/joint_states', BEST_EFFORT),
        'lift': rig.peer.publisher(JointState, '/joint_states', latched),
    }

    def publish() -> None:
        for name, outlet in halves.items():
            message = JointState(name=[name], position=[0.0])
            fill_stamp(message.header.stamp, rig.peer.now_ns)
            outlet.publish(message)

    rig.peer.every(0.02, publish)
    rig.wait_status('waiting', reason='no action chunk yet')
    rig.publish(still(50))
    rig.wait_status('streaming')

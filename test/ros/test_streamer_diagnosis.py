"""What the streamer's diagnostics say of its inputs, and of controllers that hear nothing."""

from __future__ import annotations

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_harness import Peer
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from streamer_rig import CONTRACT, StreamerRig, make_rig, still

from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

OK, WARN, ERROR = b'\x00', b'\x01', b'\x02'
LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


@pytest.fixture
def elsewhere(tmp_path):
    """A robot whose controller listens on another topic than the contract says."""
    contract = CONTRACT.replace('topic: arm/commands', 'topic: arm_controller/commands')
    yield from make_rig(tmp_path, contract=contract)


class Rows:
    def __init__(self, rig: StreamerRig) -> None:
        self._inbox = rig.peer.subscribe(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)

    def wait(self, name, accept):
        """The row of this name that ``accept`` likes."""

        def find(array):
            return next((r for r in array.status if r.name == f'action_streamer: {name}'), None)

        def liked(array):
            row = find(array)
            return row is not None and accept(row)

        return find(self._inbox.wait_for(liked, what=f'row {name}'))


def values(row):
    return {value.key: value.value for value in row.values}


def test_the_inputs_have_their_rates_ages_and_latencies(rig: StreamerRig):
    rows = Rows(rig)
    rig.start()
    for _ in range(4):
        rig.publish(still(100))
        rig.progress.wait_for(lambda m, n=rig.chunks_made: m.chunk_id == n)
    row = rows.wait(
        'inputs',
        lambda r: (
            float(values(r).get('/joint_states rate [Hz]', 0.0)) > 50.0
            and float(values(r)['observation to command p99 [s]']) > 0.0
        ),
    )
    found = values(row)
    assert (row.level, row.message) == (OK, 'ok')
    assert 0.0 <= float(found['pose age [s]']) < 10.0
    assert float(found['/sparkrt/action_chunk rate [Hz]']) >= 0.0
    assert float(found['observation to command p50 [s]']) <= float(
        found['observation to command p99 [s]']
    )


def test_joint_states_that_do_not_come_are_told_with_the_cause(rig: StreamerRig):
    rows = Rows(rig)
    rig.pose = None
    process = rig.start(wait=False)
    row = rows.wait('inputs', lambda r: r.level == WARN and 'joint_states' in r.message)
    assert 'is connected on /joint_states, but nothing came yet' in row.message
    assert values(row)['pose age [s]'] == '-1'
    process.wait_for_log('nothing comes: .*/joint_states')
    rig.pose = (0.0, 0.0)
    process.wait_for_log('/joint_states: messages come again')
    assert rows.wait('inputs', lambda r: r.level == OK).message == 'ok'


def test_a_policy_that_is_not_there_is_told(rig: StreamerRig):
    rig.peer.release()  # what played the policy is gone
    rows = Rows(rig)
    rig.start(wait=False)
    row = rows.wait('inputs', lambda r: 'action_chunk' in r.message)
    assert row.level == WARN
    assert 'nobody publishes on /sparkrt/action_chunk' in row.message
    assert 'is the policy node running' in row.message


def test_a_controller_that_hears_nothing_is_told_with_the_cause(elsewhere: StreamerRig):
    topic, rows = '/arm_controller/commands', Rows(elsewhere)
    process = elsewhere.start(wait=False)
    row = rows.wait('commands', lambda r: 'there is' in r.message)
    assert row.level == WARN
    assert f'nobody subscribes to {topic}; there is /arm/commands' in row.message
    assert 'remap, or correct the contract' in row.message

    # Of its own, since one node can use a topic with one type alone.
    viewer = Peer(domain=elsewhere.peer.context.get_domain_id(), name='viewer')
    viewer.subscribe(JointState, topic, qos.COMMAND)
    rows.wait(
        'commands',
        lambda r: (
            f'/viewer uses {topic} as sensor_msgs/msg/JointState, '
            'expected std_msgs/msg/Float64MultiArray' in r.message
        ),
    )
    viewer.close()

    elsewhere.peer.subscribe(Float64MultiArray, topic, LATCHED)
    row = rows.wait('commands', lambda r: 'incompatible QoS with' in r.message)
    assert row.level == ERROR
    assert (
        'incompatible QoS with /test_peer: Volatile publisher and transient local subscription'
        in row.message
    )
    process.wait_for_log(f"incompatible QoS on '{topic}'.*durability")

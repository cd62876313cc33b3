"""What users are told when nothing comes, or nobody takes what goes out."""

from __future__ import annotations

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState

from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.silent_topics import PROFILE_VARIABLE, Doctor, Link

pytestmark = pytest.mark.ros

FRONT, WRIST = 'front_camera/image_raw', 'wrist_camera/image_raw'


def wait_reason(policy, *texts):
    """A status from now on whose reason holds all of ``texts``."""
    return policy.status.wait_for(
        lambda m: all(text in m.reason for text in texts), what=f'reason with {texts}'
    )


@pytest.fixture
def silent_policy(policy, feed):
    """The shared policy node, of which the front camera says nothing."""
    feed.start('wrist', 'joints')
    policy.status.wait_for(lambda m: m.state == 'waiting')
    return policy


@pytest.fixture
def one_eyed_policy(policy, peer):
    """The shared policy node, of which nobody publishes the front camera."""
    wrist = peer.publisher(Image, WRIST, qos.CAMERA)
    peer.every(0.05, lambda: wrist.publish(Image()))
    policy.status.wait_for(lambda m: m.state == 'waiting')
    return policy


def test_a_publisher_that_sends_nothing_is_told_from_one_that_is_not_there(
    silent_policy, peer, feed
):
    wait_reason(silent_policy, f'is connected on /{FRONT}, but nothing came yet')
    feed.start('front')
    silent_policy.chunks.wait_for()
    silent_policy.process.wait_for_log(f'/{FRONT}: messages come again')
    feed.stop('front')
    wait_reason(silent_policy, 'but nothing comes any more', f'ros2 topic hz /{FRONT}')


def test_a_topic_nobody_publishes_is_named(one_eyed_policy, peer):
    status = wait_reason(one_eyed_policy, f'nobody publishes on /{FRONT}')
    assert status.state == 'waiting'
    one_eyed_policy.process.wait_for_log(f'nothing comes: nobody publishes on /{FRONT}')
    # One that is published elsewhere is suggested.
    outlet = peer.publisher(Image, 'front_camera/color/image_raw', qos.CAMERA)
    wait_reason(one_eyed_policy, 'there is', '/front_camera/color/image_raw', 'remap, or correct')
    assert outlet.subscribers == 0


def test_a_topic_of_another_type_is_told_with_both_types(one_eyed_policy, peer):
    peer.publisher(CompressedImage, FRONT, qos.CAMERA)
    wait_reason(
        one_eyed_policy,
        f'uses /{FRONT} as sensor_msgs/msg/CompressedImage, expected sensor_msgs/msg/Image',
        'correct the type in the contract',
    )


def test_rows_of_the_diagnostics_hold_rates_ages_and_the_receipt(policy, feed, peer):
    rows = peer.subscribe(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
    feed.start(camera_hz=20.0, joints_hz=50.0)
    policy.chunks.wait_for()
    status = policy.status.wait_for(lambda m: min(m.stream_rates, default=0.0) > 15.0)
    assert status.stream_rates == pytest.approx([20.0, 20.0, 50.0], rel=0.3)

    def row(array, name):
        found = [r for r in array.status if r.name == f'sparkrt: {name}']
        return {v.key: v.value for v in found[0].values} if found else {}

    array = rows.wait_for(lambda m: float(row(m, 'observation').get('front rate [Hz]', 0)) > 15.0)
    observation, served = row(array, 'observation'), row(array, 'policy')
    for key in ('front age [s]', 'state rate [Hz]', 'wrist dropped', 'skew [s]'):
        assert float(observation[key]) >= 0.0
    assert (served['backend'], served['precision']) == ('fused', 'fp32')
    assert len(served['digest']) == 64
    assert float(served['gate cosine']) > 0.999
    assert row(array, 'swap')['swaps'] == '0'
    inference = row(array, 'inference')
    assert 0.0 < float(inference['p50 [s]']) <= float(inference['p99 [s]'])


# The doctor, on a graph of its own


@pytest.fixture
def other(ros_domain):
    from ros_harness import Peer

    node = Peer(domain=ros_domain, name='driver')
    yield node
    node.close()


def link(topic, kind, profile, *, matched=0, count=0):
    return Link(topic=topic, type_name=kind, profile=profile, matched=matched, count=count)


def wait_known(peer, topic, *, publishers=0, subscribers=0):
    """Until the peer knows the endpoints and whose they are, looked at after each message."""
    look = (
        peer.node.get_publishers_info_by_topic
        if publishers
        else (peer.node.get_subscriptions_info_by_topic)
    )
    inbox = peer.subscribe(JointState, '/clock_of_discovery', qos.STATE)
    outlet = peer.publisher(JointState, '/clock_of_discovery', qos.STATE)
    peer.every(0.02, lambda: outlet.publish(JointState()))
    inbox.wait_until(
        lambda: [i.node_name for i in look(topic)].count('driver') >= max(publishers, subscribers)
    )


STRICT = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


def test_policies_that_do_not_fit_are_named(peer, other):
    other.publisher(Image, '/far', qos.CAMERA)
    wait_known(peer, '/far', publishers=1)
    cause = Doctor(peer.node).cause(link('/far', 'sensor_msgs/msg/Image', STRICT))
    assert cause == (
        'incompatible QoS with /driver: Best effort publisher and reliable subscription, '
        'Volatile publisher and transient local subscription'
    )


def test_a_subscriber_with_policies_that_do_not_fit_is_named(peer, other):
    other.subscribe(Image, '/commands', STRICT)
    wait_known(peer, '/commands', subscribers=1)
    ours = link('/commands', 'sensor_msgs/msg/Image', qos.COMMAND, count=None)
    assert Doctor(peer.node).cause(ours) == (
        'incompatible QoS with /driver: Volatile publisher and transient local subscription'
    )
    wrong = link('/commands', 'sensor_msgs/msg/JointState', qos.COMMAND, count=None)
    assert 'as sensor_msgs/msg/Image, expected sensor_msgs/msg/JointState' in Doctor(
        peer.node
    ).cause(wrong)
    nobody = link('/command', 'sensor_msgs/msg/Image', qos.COMMAND, count=None)
    assert 'nobody subscribes to /command; there is /commands' in Doctor(peer.node).cause(nobody)


def test_pictures_without_the_profile_of_the_middleware_name_it(peer, other, monkeypatch):
    other.publisher(Image, '/near', qos.CAMERA)
    wait_known(peer, '/near', publishers=1)
    stuck = link('/near', 'sensor_msgs/msg/Image', qos.CAMERA, matched=1)
    monkeypatch.setenv(PROFILE_VARIABLE, '/x.xml')
    assert 'the driver is stuck or paused' in Doctor(peer.node).cause(stuck)
    monkeypatch.delenv(PROFILE_VARIABLE)
    assert PROFILE_VARIABLE in Doctor(peer.node).cause(stuck)


def test_topics_of_this_package_are_not_suggested(peer, ros_domain):
    from ros_harness import Peer

    streamer = Peer(domain=ros_domain, name='action_streamer')
    streamer.publisher(JointState, '/action_streamer/joint_preview', qos.STATE)
    inbox = peer.subscribe(JointState, '/action_streamer/joint_preview', qos.STATE)
    inbox.wait_until(lambda: inbox.publishers == 1)
    cause = Doctor(peer.node).cause(link('/joint_states', 'sensor_msgs/msg/JointState', qos.STATE))
    streamer.close()
    assert cause.startswith('nobody publishes on /joint_states')
    assert 'preview' not in cause


def test_an_empty_domain_is_suspected(peer):
    cause = Doctor(peer.node).cause(link('/far', 'sensor_msgs/msg/Image', qos.CAMERA))
    assert 'no other node is seen in domain' in cause
    assert 'ROS_AUTOMATIC_DISCOVERY_RANGE' in cause

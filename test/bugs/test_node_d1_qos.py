"""D1: every publisher reaches the node, and a QoS mismatch is never silent."""

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_fixtures import SensorFeed

from sparkrt.msg import ActionChunk
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

OFFERED = {
    'best effort, volatile': (ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE),
    'reliable, volatile': (ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE),
    'reliable, transient local': (ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL),
}


@pytest.mark.parametrize('offered', OFFERED)
def test_pictures_arrive_within_a_second_of_discovery(policy, peer, offered):
    reliability, durability = OFFERED[offered]
    profile = QoSProfile(depth=5, reliability=reliability, durability=durability)
    before = policy.status.wait_for().stream_received[0]
    feed = SensorFeed(peer, camera_qos=profile)
    feed.wait_matched()
    feed.start()
    policy.status.wait_for(lambda m: m.stream_received[0] > before, timeout_s=1.0)


def test_publishers_of_mixed_reliability_and_durability_on_one_topic_are_all_heard(policy, peer):
    feeds = []
    for reliability, durability in OFFERED.values():
        profile = QoSProfile(depth=5, reliability=reliability, durability=durability)
        feeds.append(SensorFeed(peer, camera_qos=profile))
    for feed in feeds:
        feed.wait_matched()
    for feed in feeds:
        before = policy.status.wait_for(count=2).stream_received[0]
        feed.start('front')
        policy.status.wait_for(lambda m, n=before: m.stream_received[0] > n, timeout_s=1.0)
        feed.stop('front')
    assert policy.process.count('incompatible QoS') == 0


def test_an_incompatible_subscription_is_logged_and_in_the_diagnostics(policy, peer):
    rows = peer.subscribe(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    topic = '/sparkrt/action_chunk'
    peer.subscribe(ActionChunk, topic, latched)
    line = policy.process.wait_for_log("incompatible QoS on '/sparkrt/action_chunk'")
    assert 'durability' in line

    def tells(array, text):
        row = next(r for r in array.status if r.name == 'sparkrt: connections')
        return text in row.message and row.level == b'\x02'

    rows.wait_for(lambda m: tells(m, f'incompatible QoS on {topic} (durability)'))
    strict = [s for s in peer.node.subscriptions if s.topic_name == topic]
    for subscription in strict:
        peer.node.destroy_subscription(subscription)
    rows.wait_for(lambda m: not tells(m, 'incompatible QoS'))


def test_diagnostics_come_once_a_second_with_every_row(policy, peer):
    rows = peer.subscribe(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
    rows.wait_for(count=4)
    names = {row.name for row in rows.last.status}
    assert names == {
        f'sparkrt: {row}' for row in ('policy', 'inference', 'observation', 'connections', 'swap')
    }
    assert all(row.hardware_id.startswith('act ') for row in rows.last.status)
    times = rows.times_s
    assert (times[-1] - times[0]) / (len(times) - 1) == pytest.approx(1.0, rel=0.2)

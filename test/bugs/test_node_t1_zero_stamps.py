"""T1: header stamps of zero are never used silently, and never make a message decades old."""

import pytest

pytestmark = pytest.mark.ros


def test_refused_by_default_with_a_warning_that_names_the_topic(start_policy, feed):
    policy = start_policy()
    feed.zero_stamps = {'front'}
    feed.start()
    policy.status.wait_for(lambda m: sum(m.stream_received[:1]) > 0)
    line = policy.process.wait_for_log('front_camera/image_raw.*stamp of zero', timeout_s=2.0)
    assert 'zero_stamp: receive' in line
    status = policy.status.wait_for(lambda m: m.reason.startswith('front_camera/image_raw'))
    assert status.state == 'waiting'
    assert 'e+09' not in status.reason
    assert len(policy.chunks) == 0


def test_dated_by_arrival_where_that_is_chosen(start_policy, feed):
    policy = start_policy(observation__on_zero_stamp='receive')
    feed.zero_stamps = {'front', 'wrist'}
    feed.start(joints_hz=100.0)
    policy.status.wait_for(lambda m: sum(m.stream_received[:1]) > 0)
    policy.process.wait_for_log('front_camera/image_raw: header stamps are zero', timeout_s=2.0)
    policy.chunks.wait_for(count=3)
    first = policy.status.wait_for()
    sent = dict(feed.sent)
    last = policy.status.wait_for(count=20)
    received = last.stream_received[0] - first.stream_received[0]
    assert received >= 0.95 * (feed.sent['front'] - sent['front'])
    assert last.bad_messages == 0
    assert max(last.stream_ages) < 1.0

"""I10: damaged pictures over real topics: dropped, counted, and the last good one ages out."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ros


def test_the_last_good_picture_serves_until_its_age_limit_and_no_longer(policy, feed):
    feed.start('joints', 'wrist')
    feed.wait_matched()
    policy.status.wait_for(lambda m: min(m.stream_ages[1:]) >= 0.0)
    feed.send_image('front')
    policy.chunks.wait_for()
    before = policy.status.wait_for()
    whole = feed.pixels.tobytes()
    cut = {'data': whole[: len(whole) * 6 // 10]}
    feed.peer.every(0.05, lambda: feed.send_image('front', **cut))
    status = policy.status.wait_for(
        lambda m: m.state == 'waiting' and m.bad_messages > before.bad_messages
    )
    assert 'front_camera/image_raw' in status.reason
    policy.chunks.clear()
    status = policy.status.wait_for(count=10)
    assert len(policy.chunks) == 0
    assert status.failures == 0
    assert policy.process.count('Traceback') == 0
    feed.start('front')
    policy.chunks.wait_for()

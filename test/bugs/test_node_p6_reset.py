"""P6(a): after a reset no action comes from an observation of before."""

import pytest
from std_srvs.srv import Trigger

from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros


def test_an_inference_begun_before_the_reset_never_leaves(start_policy, feed):
    policy = start_policy(altered={'SLOW_S': '0.5'})
    feed.start()
    policy.chunks.wait_for()
    for _ in range(3):
        # The inference in progress answers an observation of before.
        epoch = policy.chunks.last.epoch
        policy.chunks.clear()
        reset_ns = feed.peer.now_ns
        assert feed.peer.call(Trigger, '/sparkrt/reset').success
        answered = len(policy.chunks)
        chunk = policy.chunks.wait_for(lambda m, epoch=epoch: m.epoch > epoch)
        assert stamp_to_ns(chunk.observation_stamp) >= reset_ns
        after = policy.chunks.messages[answered:]
        assert all(stamp_to_ns(m.observation_stamp) >= reset_ns for m in after)

"""A policy node that is active: what it publishes and what it answers."""

import numpy as np
import pytest
from ros_fixtures import JOINTS, TINY_ROBOT
from std_srvs.srv import Trigger

from sparkrt.msg import StreamerProgress
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.frame import CameraDecoder
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros


def rows_of(chunk):
    return np.array(chunk.data).reshape(chunk.rows, len(chunk.joint_names))


def expected_rows(folder, feed):
    """What the policy says to the messages of ``feed``, computed here without any node."""
    from sparkrt_ros.runtime.policy import load_policy
    from sparkrt_ros.runtime.types import Observation

    contract = load_contract(TINY_ROBOT)
    images = {
        camera.key: CameraDecoder(camera).decode(feed.send_image(camera.name))
        for camera in contract.cameras
    }
    state = contract.state_to_policy([feed.positions[name] for name in JOINTS])
    with load_policy(folder) as policy:
        chunk = policy.predict_chunk(Observation(images=images, state=state))
    return contract.action_to_si(chunk)


def test_a_chunk_is_what_the_policy_says_to_the_observation(policy, feed, act_folder):
    feed.start()
    chunk = policy.chunks.wait_for()
    assert chunk.joint_names == list(JOINTS)
    assert chunk.dt == pytest.approx(0.05)
    assert chunk.rows == 8
    assert chunk.session_id != 0
    assert chunk.inference_time > 0.0
    assert 0 <= stamp_to_ns(chunk.header.stamp) - stamp_to_ns(chunk.observation_stamp) < 1e9
    np.testing.assert_allclose(rows_of(chunk), expected_rows(act_folder, feed), atol=1e-5)


def test_chunks_count_up_and_their_observations_are_ever_newer(policy, feed):
    feed.start()
    policy.chunks.wait_for(count=5)
    ids = [chunk.chunk_id for chunk in policy.chunks.messages]
    stamps = [stamp_to_ns(chunk.observation_stamp) for chunk in policy.chunks.messages]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert stamps == sorted(set(stamps))
    assert len({chunk.session_id for chunk in policy.chunks.messages}) == 1


def test_reset_begins_a_new_epoch_from_newer_observations(policy, feed):
    feed.start()
    before = policy.chunks.wait_for()
    reset_ns = feed.peer.now_ns
    response = feed.peer.call(Trigger, '/sparkrt/reset')
    assert response.success
    after = policy.chunks.wait_for(lambda chunk: chunk.epoch > before.epoch)
    assert stamp_to_ns(after.observation_stamp) >= reset_ns
    assert response.message == f'epoch {after.epoch}'


def test_pause_and_resume(policy, feed):
    feed.start()
    before = policy.chunks.wait_for()
    assert feed.peer.call(Trigger, '/sparkrt/pause').success
    policy.wait_status('paused')
    policy.chunks.clear()
    policy.wait_status('paused', count=10)
    assert len(policy.chunks) == 0
    resume_ns = feed.peer.now_ns
    assert feed.peer.call(Trigger, '/sparkrt/resume').success
    after = policy.chunks.wait_for()
    assert after.epoch > before.epoch
    assert stamp_to_ns(after.observation_stamp) >= resume_ns


def test_a_camera_that_falls_silent_is_named_and_its_return_is_enough(policy, feed):
    feed.start()
    policy.chunks.wait_for()
    feed.stop('wrist')
    policy.status.wait_for(
        lambda m: (
            m.state == 'waiting'
            and m.reason.startswith('wrist_camera/image_raw: found 1.')
            and 's old; expected at most 1 s' in m.reason
        )
    )
    policy.chunks.clear()
    policy.wait_status('waiting', count=5)
    assert len(policy.chunks) == 0
    feed.start('wrist')
    policy.chunks.wait_for()
    assert policy.wait_status('active').reason == ''


def test_damaged_pictures_are_counted_and_the_last_good_one_serves(policy, feed):
    feed.start('joints', 'wrist')
    feed.wait_matched()
    policy.status.wait_for(lambda m: min(m.stream_ages[1:]) >= 0.0)
    feed.send_image('front')
    policy.chunks.wait_for()
    feed.send_image('front', step=7)
    feed.send_image('front', encoding='rgb9')
    status = policy.status.wait_for(lambda m: m.bad_messages >= 1)
    assert status.failures == 0
    policy.process.wait_for_log('message dropped: front_camera/image_raw')
    policy.chunks.clear()
    feed.start('front')
    policy.chunks.wait_for(count=3)


def test_after_a_reset_pictures_of_before_do_not_serve(policy, feed):
    feed.start()
    policy.chunks.wait_for()
    feed.stop('front', 'wrist')
    assert feed.peer.call(Trigger, '/sparkrt/reset').success
    policy.wait_status('waiting')
    policy.chunks.clear()
    policy.wait_status('waiting', count=10)
    assert len(policy.chunks) == 0


def test_the_progress_of_the_streamer_decides_when_to_infer(policy, feed, peer):
    feed.start()
    policy.chunks.wait_for()
    outlet = peer.publisher(StreamerProgress, '/action_streamer/progress', qos.PROGRESS)
    outlet.wait_matched()
    now = StreamerProgress(state='paused')
    peer.every(0.05, lambda: outlet.publish(now))

    policy.status.wait_for(lambda m: m.reason == 'the streamer is paused')
    policy.chunks.clear()
    policy.status.wait_for(count=10)
    assert len(policy.chunks) == 0

    now.state = 'waiting'
    policy.chunks.wait_for()
    assert policy.wait_status('active').reason == ''

"""``~/debug/input/<camera>``: the pixels that the policy was given, for whoever subscribes."""

from __future__ import annotations

import array
import zlib

import numpy as np
import pytest
from act_folder_factory import feature, features, tiny_config
from ros_fixtures import TINY_ROBOT
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from std_srvs.srv import Trigger

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.frame import CameraDecoder, to_rgb
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

SWAP_S = 60.0
NODE = '/sparkrt'


def watch(peer, camera):
    return peer.subscribe(Image, f'/sparkrt/debug/input/{camera}', qos.DEBUG)


class Pictures:
    """A new picture for every message, remembered by camera and stamp."""

    def __init__(self, feed) -> None:
        self._feed = feed
        self._random = np.random.default_rng(5)
        self.sent = {'front': {}, 'wrist': {}}

    def start(self, *, rate_hz=20.0):
        for camera in self.sent:
            self._feed.peer.every(1.0 / rate_hz, lambda name=camera: self.send(name))

    def send(self, camera):
        """The front camera sends padded bgr8, the other rgb8."""
        padded = 3 * 64 + 8 if camera == 'front' else 3 * 64
        data = self._random.integers(0, 256, 48 * padded, dtype=np.uint8)
        message = self._feed.send_image(
            camera,
            data=array.array('B', data.tobytes()),
            step=padded,
            encoding='bgr8' if camera == 'front' else 'rgb8',
            header=Header(frame_id=f'{camera}_optical'),
        )
        self.sent[camera][stamp_to_ns(message.header.stamp)] = message

    def seen(self, camera, stamp_ns):
        """What the contract makes of the message of this stamp, computed without any node."""
        spec = next(c for c in load_contract(TINY_ROBOT).cameras if c.name == camera)
        return CameraDecoder(spec).decode(self.sent[camera][stamp_ns])


def test_the_pictures_are_what_the_policy_was_given(start_policy, feed, peer):
    policy = start_policy(altered={'TELL_PICTURES': '1'}, chunking__n_action_steps=1)
    pictures = Pictures(feed)
    inboxes = {camera: watch(peer, camera) for camera in ('front', 'wrist')}
    feed.start('joints')
    pictures.start()
    for camera, inbox in inboxes.items():
        inbox.wait_for(count=5)
        for message in inbox.messages[:5]:
            stamp_ns = stamp_to_ns(message.header.stamp)
            assert message.encoding == 'rgb8'
            assert message.header.frame_id == f'{camera}_optical'
            np.testing.assert_array_equal(to_rgb(message), pictures.seen(camera, stamp_ns))
            crc = zlib.crc32(bytes(message.data))
            assert policy.process.count(f'inferred from observation.images.{camera} {crc}') >= 1
    used = {
        stamp_to_ns(stamp)
        for chunk in policy.chunks.messages
        for name, stamp in zip(chunk.stream_names, chunk.stream_stamps, strict=True)
        if name == 'front'
    }
    shown = {stamp_to_ns(m.header.stamp) for m in inboxes['front'].messages}
    assert used & shown, 'chunks name the pictures they were made of'


def test_nothing_is_made_while_nobody_subscribes(start_policy, feed, peer):
    policy = start_policy(altered={'TELL_PICTURES': '1'}, chunking__n_action_steps=1)
    feed.start()
    policy.chunks.wait_for(count=5)
    policy.status.wait_for(count=3)
    assert policy.process.count('picture made') == 0
    front = watch(peer, 'front')
    front.wait_for(count=3)
    policy.process.wait_for_log('picture made')
    topic = '/sparkrt/debug/input/front'
    subscription = next(s for s in peer.node.subscriptions if s.topic_name == topic)
    assert peer.node.destroy_subscription(subscription)
    # The node looks who is there with each status.
    policy.status.wait_for(count=5)
    before = policy.process.count('picture made')
    policy.chunks.wait_for(count=5)
    policy.status.wait_for(count=3)
    assert policy.process.count('picture made') == before


def test_what_fails_while_showing_does_no_harm_to_inference(start_policy, feed, peer):
    policy = start_policy(altered={'BREAK_PICTURES': 'no paper'}, chunking__n_action_steps=1)
    front = watch(peer, 'front')
    feed.start()
    policy.process.wait_for_log('~/debug/input failed')
    policy.process.wait_for_log('RuntimeError: no paper')
    status = policy.status.wait_for(lambda m: m.chunks > 5)
    assert (status.state, status.failures, status.reason) == ('active', 0, '')
    policy.chunks.wait_for(count=5)
    assert len(front) == 0
    assert policy.process.running


def test_the_topics_follow_a_policy_with_other_cameras(start_policy, feed, peer, make_act_folder):
    one = features(
        feature('observation.images.front', 'VISUAL', 3, 64, 64),
        feature('observation.state', 'STATE', 5),
    )
    alone = make_act_folder('front', config=tiny_config(input_features=one))
    policy = start_policy(checkpoint=str(alone))
    front, wrist = watch(peer, 'front'), watch(peer, 'wrist')
    feed.start()
    front.wait_for()
    assert wrist.publishers == 0
    both = make_act_folder('both')
    assert peer.set_parameters(NODE, checkpoint=str(both))[0].successful
    policy.status.wait_for(lambda m: m.swaps == 1, timeout_s=SWAP_S)
    wrist.wait_for()
    front.wait_for()
    assert peer.set_parameters(NODE, checkpoint=str(alone))[0].successful
    policy.status.wait_for(lambda m: m.swaps == 2, timeout_s=SWAP_S)
    wrist.wait_until(lambda: wrist.publishers == 0)
    front.wait_for()


def test_pictures_of_a_slow_camera_a_late_viewer_and_a_node_without_a_policy(
    start_policy, feed, peer
):
    policy = start_policy(chunking__n_action_steps=1)
    front = watch(peer, 'front')
    feed.start('front', camera_hz=4.0)
    feed.start('wrist', 'joints')
    front.wait_for(count=4, timeout_s=30.0)
    used = [stamp_to_ns(chunk.stream_stamps[0]) for chunk in policy.chunks.messages]
    assert len(set(used)) < len(used), 'no picture was used twice'
    stamps = [stamp_to_ns(m.header.stamp) for m in front.messages]
    assert len(set(stamps)) == len(stamps), 'each comes once'

    assert peer.call(Trigger, '/sparkrt/pause').success
    policy.status.wait_for(lambda m: m.state == 'paused')
    picture = watch(peer, 'wrist').wait_for()
    # The inference under way at the pause was of a later picture than the last chunk tells of.
    assert stamp_to_ns(picture.header.stamp) >= stamp_to_ns(policy.chunks.last.stream_stamps[1])

    assert front.publishers == 1
    assert policy.change_state('deactivate')
    assert policy.change_state('cleanup')
    front.wait_until(lambda: front.publishers == 0)

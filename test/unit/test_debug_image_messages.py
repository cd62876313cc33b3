"""Pictures as the network sees them, as messages."""

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='needs ROS 2')

from rclpy.validate_topic_name import validate_topic_name

from sparkrt_ros.convert.frame import to_rgb
from sparkrt_ros.nodes.debug_images import TOPIC, image_message, topic_tokens


def test_a_message_holds_the_picture_bit_for_bit():
    picture = np.random.default_rng(1).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    message = image_message(picture)
    assert (message.encoding, message.height, message.width, message.step) == ('rgb8', 7, 5, 15)
    np.testing.assert_array_equal(to_rgb(message), picture)


def test_a_message_is_a_copy():
    picture = np.zeros((2, 2, 3), dtype=np.uint8)
    message = image_message(picture)
    picture[:] = 255
    assert not any(message.data)


@pytest.mark.parametrize(
    ('name', 'token'),
    [
        ('front', 'front'),
        ('wrist_left', 'wrist_left'),
        ('top-view', 'top_view'),
        ('observation.images.front', 'observation_images_front'),
        ('3d', 'camera_3d'),
        ('a__b', 'a_b'),
        ('.', 'camera'),
        ('köpfe', 'k_pfe'),
    ],
)
def test_every_camera_has_a_topic_that_ros_accepts(name, token):
    assert topic_tokens([name]) == {name: token}
    assert validate_topic_name(f'{TOPIC}/{token}')


def test_no_two_cameras_share_a_topic():
    tokens = topic_tokens(['a-b', 'a_b', 'a.b', 'a_b_x'])
    assert len(set(tokens.values())) == 4

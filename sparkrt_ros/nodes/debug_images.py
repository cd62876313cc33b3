"""What the network sees, on ``~/debug/input/<camera>``, while somebody looks.

The inference thread leaves its last observation behind, which costs nothing; whoever subscribes is
served by the ROS thread.
"""

from __future__ import annotations

import array
import re
from collections.abc import Callable, Iterable, Mapping
from traceback import format_exc
from typing import Any

from rclpy.node import Node
from sensor_msgs.msg import Image

from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.observation_buffer import Sample
from sparkrt_ros.nodes.observation_reader import Reading
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.runtime.types import ImageArray

TOPIC = '~/debug/input'


class DebugImages:
    """All methods but ``inferred`` are for the ROS thread.

    latest: the newest observation that was inferred from; None: there is none.
    """

    def __init__(self, node: Node, latest: Callable[[], Reading | None]) -> None:
        self._node = node
        self._latest = latest
        self._log = ThrottledLog(node.get_logger(), period_s=10.0)
        self._keys: dict[str, str] = {}
        self._publishers: dict[str, Any] = {}
        self._shown: dict[str, Sample] = {}
        self._watched = False
        self._news = node.create_guard_condition(self.publish)

    def follow(self, keys: Mapping[str, str]) -> None:
        """Offer these cameras from now on: name -> key of its picture in an observation."""
        self._keys = dict(keys)
        for name in self._publishers.keys() - keys.keys():
            self._node.destroy_publisher(self._publishers.pop(name))
        for name, token in topic_tokens(keys).items():
            if name not in self._publishers:
                topic = f'{TOPIC}/{token}'
                self._publishers[name] = self._node.create_publisher(Image, topic, qos.DEBUG)

    def inferred(self) -> None:
        """There is a new observation. For any thread."""
        if self._watched:
            self._news.trigger()

    def publish(self) -> None:
        """Publish what somebody subscribes to, each picture once; to be called now and then.

        Whoever subscribes first gets the newest there is, even if the policy is paused.
        """
        try:
            self._publish()
        except Exception:  # a picture for people must not end the node
            self._log.error('failed', f'~/debug/input failed:\n{format_exc().rstrip()}')

    def _publish(self) -> None:
        watched = [n for n, p in self._publishers.items() if p.get_subscription_count() > 0]
        self._watched = bool(watched)
        self._shown = {name: self._shown[name] for name in watched if name in self._shown}
        reading = self._latest() if watched else None
        if reading is None:
            return
        for name in watched:
            picture = reading.observation.images.get(self._keys[name])
            # Where another camera is faster, one picture serves in several observations.
            sample = reading.snapshot.samples.get(name)
            if picture is None or sample is None or self._shown.get(name) is sample:
                continue
            self._shown[name] = sample
            message = image_message(picture)
            message.header.frame_id = sample.payload.header.frame_id
            fill_stamp(message.header.stamp, sample.stamp_ns)
            self._publishers[name].publish(message)


def image_message(picture: ImageArray) -> Image:
    """A tight rgb8 image of (H, W, 3) uint8, C-contiguous."""
    height, width, _ = picture.shape
    message = Image(height=height, width=width, encoding='rgb8', step=3 * width)
    # An array of bytes is taken as it is; any other sequence would be checked byte by byte.
    data = array.array('B')
    data.frombytes(picture.data)
    message.data = data
    return message


def topic_tokens(names: Iterable[str]) -> dict[str, str]:
    """What each name is called in a topic, where only letters, digits and underscores may be."""
    tokens: dict[str, str] = {}
    for name in names:
        token = re.sub(r'\W+', '_', name, flags=re.ASCII).strip('_') or 'camera'
        token = f'camera_{token}' if token[0].isdigit() else token
        # ROS allows no two underscores in a row.
        tokens[name] = token = re.sub('_+', '_', token)
        while [*tokens.values()].count(token) > 1:
            tokens[name] = token = f'{token}_x'
    return tokens

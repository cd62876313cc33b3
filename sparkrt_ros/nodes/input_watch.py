"""What the policy node finds out about its inputs: how often they come, and why they do not."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rclpy.node import Node

from sparkrt_ros.nodes.policy_serving import Serving
from sparkrt_ros.nodes.silent_topics import Doctor, SilenceWatch
from sparkrt_ros.nodes.stream_rates import RateMeter


class InputWatch:
    """ROS thread only."""

    def __init__(self, node: Node) -> None:
        self._doctor = Doctor(node)
        self._silence = SilenceWatch(self._doctor, tell=node.get_logger().warning)
        self._rates = RateMeter()

    @property
    def rates_hz(self) -> Mapping[str, float]:
        """Messages a second, by stream."""
        return self._rates.rates()

    @property
    def silent(self) -> Mapping[str, str]:
        """Topic -> why nothing comes there."""
        return self._silence.causes

    def look(self, serving: Serving | None, *, now_ns: int) -> None:
        """Look at the counters; a few times a second. ``now_ns``: of the node's clock."""
        received = {} if serving is None else serving.received(now_ns)
        links = [] if serving is None else serving.inputs.links()
        self._rates.update(received, now_ns=now_ns)
        self._silence.update(links, now_s=time.monotonic())

    def explain(self, serving: Serving) -> str:
        """Why topics of which nothing ever came are silent."""
        links = serving.inputs.links()
        return '; '.join(self._doctor.cause(link) for link in links if not link.count)

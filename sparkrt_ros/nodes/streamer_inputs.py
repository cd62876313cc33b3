"""The rows of /diagnostics about what the streamer is given: joint states and action chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rclpy.node import Node

from sparkrt_ros.nodes.diagnostics import Health, Level
from sparkrt_ros.nodes.pacing import LatencyTracker
from sparkrt_ros.nodes.polled import PolledSubscription
from sparkrt_ros.nodes.silent_topics import Doctor, Link, SilenceWatch, input_link
from sparkrt_ros.nodes.stream_rates import RateMeter
from sparkrt_ros.nodes.streamer_parts import StreamerParts

LATENCIES = 300


class StreamerInputs:
    """Rates, ages and silence of the inputs. ROS thread only.

    chunks: the subscription to action chunks.
    """

    def __init__(self, node: Node, chunks: PolledSubscription) -> None:
        self._chunks = chunks
        self._chunk_count = 0
        self._doctor = Doctor(node)
        self._silence = SilenceWatch(self._doctor, tell=node.get_logger().warning)
        self._rates = RateMeter()
        self._latency = LatencyTracker(window=LATENCIES)
        self._newest_id = 0

    def chunk_arrived(self) -> None:
        """A message came on the chunk topic."""
        self._chunk_count += 1

    def chunk_taken(self, parts: StreamerParts) -> None:
        """Perhaps the first command of another chunk was sent; then its latency is known."""
        chunk_id = parts.core.snapshot.chunk_id
        if chunk_id != self._newest_id and parts.core.snapshot.state == 'streaming':
            self._newest_id = chunk_id
            self._latency.add(parts.core.latency_s)

    def begin(self) -> None:
        """The node becomes active."""
        self._latency.clear()
        self._newest_id = 0

    def row(self, parts: StreamerParts | None) -> Health:
        """Whether chunks and joint states come, how often, how old."""
        if parts is None:
            return Health(name='inputs', message='not configured')
        now_ns, joints = parts.now_ns(), parts.pose.links()
        counts = {link.topic: link.count or 0 for link in joints}
        chunk_topic = self._chunks.topic_name
        counts[chunk_topic] = self._chunk_count
        self._rates.update(counts, now_ns=now_ns)
        # Of a policy that is there and sends nothing, its own status says why.
        chunks = [link for link in (self._chunk_link(),) if link.matched == 0]
        self._silence.update([*joints, *chunks], now_s=time.monotonic())
        silent = self._silence.causes
        values: dict[str, object] = {
            f'{topic} rate [Hz]': rate_hz for topic, rate_hz in self._rates.rates().items()
        }
        oldest_ns = parts.pose.merger.oldest_ns
        values['pose age [s]'] = -1.0 if oldest_ns is None else (now_ns - oldest_ns) / 1e9
        for percent in (50, 99):
            latency_s = self._latency.percentile(percent)
            key = f'observation to command p{percent} [s]'
            values[key] = 0.0 if latency_s is None else latency_s
        values |= {f'{topic} silent': cause for topic, cause in silent.items()}
        return Health(
            name='inputs',
            level=Level.WARN if silent else Level.OK,
            message='; '.join(silent.values()) or 'ok',
            values=values,
        )

    def undelivered(self, parts: StreamerParts, topics: Sequence[str]) -> list[str]:
        """Why nobody takes the commands on each of ``topics``."""
        links = parts.outlet.links() if topics else []
        return [self._doctor.cause(link) for link in links if link.topic in topics]

    def _chunk_link(self) -> Link:
        subscription = self._chunks.subscription
        return input_link(subscription, count=self._chunk_count, who='policy node')

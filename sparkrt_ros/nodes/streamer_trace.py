"""The streamer's part of ``~/trace``: joint messages, chunks, requests and control ticks."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from rclpy.node import Node

from sparkrt.msg import TraceEntry
from sparkrt_ros.nodes.streamer_core import Options, Pose
from sparkrt_ros.nodes.trace import Tracer
from sparkrt_ros.runtime.types import ActionChunk


class StreamerTrace:
    """A ``Witness`` of the core, and of what arrives; for any thread.

    notify: called after each control tick, from the control thread; must not block.
    unmatched: topics of which the other side is missing.
    """

    def __init__(self, node: Node, *, notify: Callable[[], None]) -> None:
        self._node = node
        self._notify = notify
        self._tracer = Tracer(node)
        self._log = self._tracer.log
        self._publishing = threading.Lock()
        self._chunk_id = 0
        self._tick_ns = 0
        self.unmatched: Callable[[], tuple[str, ...]] = tuple
        self._told_unmatched: tuple[str, ...] | None = None

    @property
    def enabled(self) -> bool:
        return self._tracer.enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._tracer.enabled = enabled

    def request(self, name: str, *, now_ns: int) -> None:
        self._log.add(TraceEntry.REQUEST, clock_ns=now_ns, name=name)

    def options(self, options: Options) -> None:
        self._log.add(
            TraceEntry.OPTIONS,
            clock_ns=self._now_ns(),
            name=options.mode,
            value=options.temporal_ensemble_coeff,
        )

    def taken(self, chunk: ActionChunk, *, session_id: int, now_ns: int) -> None:
        self._log.add(TraceEntry.TAKEN, clock_ns=now_ns, number=chunk.chunk_id, count=session_id)

    def ticked(self, now_ns: int, *, state: str, pose: int, sent: int, stops: int) -> None:
        self._log.add(
            TraceEntry.TICK,
            clock_ns=now_ns,
            name=state,
            number=pose,
            count=sent,
            value=float(stops),
        )
        self._tick_ns = now_ns
        self._notify()

    def joints(self, stream: str, message: Any, *, now_ns: int) -> None:
        """A joint message was taken, or refused."""
        if self.enabled:
            self._log.message(stream, message, clock_ns=now_ns)

    def posed(self, pose: Pose) -> None:
        """The measured pose was renewed."""
        if self.enabled:
            self._log.add(TraceEntry.POSE, clock_ns=self._now_ns(), number=pose.number)

    def chunk(self, chunk_id: int, *, session_id: int) -> None:
        """A chunk arrived."""
        if self.enabled:
            self._chunk_id = chunk_id
            self._log.add(
                TraceEntry.CHUNK, clock_ns=self._now_ns(), number=chunk_id, count=session_id
            )

    def publish(self) -> None:
        """Send what was noted or discovered since the last time, if anything."""
        if self.enabled:
            with self._publishing:
                self._publish()

    def _publish(self) -> None:
        entries, unmatched = len(self._log), self.unmatched()
        if entries == 0 and unmatched == self._told_unmatched:
            return
        self._told_unmatched = unmatched
        self._tracer.publish(
            entries=entries,
            clock_ns=self._now_ns(),
            wait_s=math.inf,
            unmatched=unmatched,
            chunk_id=self._chunk_id,
            tick_ns=self._tick_ns,
        )

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

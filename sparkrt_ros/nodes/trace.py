"""Tells what entered a node and what it did, on ``~/trace``, while the parameter ``trace`` is on.

With it and a bag, a run can be repeated offline, byte for byte (:mod:`sparkrt_ros.replay`), and a
player of bags knows when a node has digested what it was sent.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from rclpy.node import Node

from sparkrt.msg import Trace, TraceEntry
from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes import qos

TRACE_TOPIC = '~/trace'
# A node that is not read keeps this many entries, then forgets the oldest.
KEPT_ENTRIES = 100_000
_FIELDS = ('data', 'position', 'velocity', 'effort')


class TraceLog:
    """Entries in the order of their additions. Any thread adds; one thread takes."""

    def __init__(self) -> None:
        self._entries: deque[TraceEntry] = deque(maxlen=KEPT_ENTRIES)
        self.taken = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        kind: int,
        *,
        clock_ns: int,
        name: str = '',
        stamp_ns: int = 0,
        number: int = 0,
        count: int = 0,
        value: float = 0.0,
    ) -> None:
        """Fields as in TraceEntry.msg."""
        entry = TraceEntry(kind=kind, name=name, number=number, count=count, value=value)
        fill_stamp(entry.stamp, stamp_ns)
        fill_stamp(entry.clock, clock_ns)
        self._entries.append(entry)

    def message(self, name: str, message: Any, *, clock_ns: int) -> None:
        """A message of stream ``name`` was taken."""
        header = getattr(message, 'header', None)
        self.add(
            TraceEntry.MESSAGE,
            clock_ns=clock_ns,
            name=name,
            stamp_ns=0 if header is None else stamp_to_ns(header.stamp),
            number=content_crc(message),
        )

    def take(self, count: int) -> list[TraceEntry]:
        """The oldest ``count`` entries, which are forgotten."""
        entries = [self._entries.popleft() for _ in range(count)]
        self.taken += count
        return entries


class Tracer:
    """The publisher of one node's trace. ``enabled`` may change at any time."""

    def __init__(self, node: Node) -> None:
        self.enabled = False
        self.log = TraceLog()
        self._publisher = qos.create_report_publisher(node, Trace, TRACE_TOPIC, qos.TRACE)

    def publish(
        self,
        *,
        entries: int,
        clock_ns: int,
        wait_s: float,
        unmatched: Sequence[str],
        chunk_id: int,
        tick_ns: int,
    ) -> None:
        """Send the oldest ``entries`` of an idle node; the rest as in Trace.msg."""
        message = Trace(
            first=self.log.taken,
            idle=True,
            wait=wait_s,
            unmatched=list(unmatched),
            chunk_id=chunk_id,
        )
        message.entries = self.log.take(entries)
        fill_stamp(message.header.stamp, clock_ns)
        fill_stamp(message.tick, tick_ns)
        self._publisher.publish(message)


def content_crc(message: Any) -> int:
    """CRC-32 of what a picture or joint message holds, whichever library decoded it."""
    crc = 0
    for name in _FIELDS:
        data = getattr(message, name, None)
        if data is not None and len(data):
            crc = zlib.crc32(memoryview(data).cast('B'), crc)
    return crc

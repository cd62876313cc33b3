"""What a replay went through: what each topic brought, and what happened when."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from sparkrt_ros.replay.result import Event, StreamHistory

# The same thing again within this time is counted, not listed.
REPEAT_NS = 1_000_000_000
MOST_EVENTS = 5000
MOST_TEXTS = 500


@dataclass(kw_only=True)
class TopicLog:
    """Stamps and arrival times of one topic; refused: messages that were not stored."""

    name: str
    topic: str
    stamps_ns: array[int] = field(default_factory=lambda: array('q'))
    received_ns: array[int] = field(default_factory=lambda: array('q'))
    refused: int = 0

    def add(self, *, stamp_ns: int, received_ns: int, stored: bool) -> None:
        """Note one message."""
        self.stamps_ns.append(stamp_ns)
        self.received_ns.append(received_ns)
        self.refused += not stored

    def history(self) -> StreamHistory:
        return StreamHistory(
            name=self.name,
            topic=self.topic,
            stamps_ns=np.array(self.stamps_ns, dtype=np.int64),
            received_ns=np.array(self.received_ns, dtype=np.int64),
            dropped=self.refused,
        )


class EventLog:
    """Events in order; what happens over and over is listed once a second and counted."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.left_out = 0
        self._last_ns: dict[tuple[str, Hashable], int] = {}
        self._texts: dict[tuple[str, Hashable], tuple[str, int]] = {}

    def add(
        self, kind: str, *, time_ns: int, stream: str, text: str, same: Hashable = None
    ) -> None:
        """Note an event; of a kind, those with one ``same`` (default: the stream) are one."""
        self.counts[kind] += 1
        key = (kind, stream if same is None else same)
        if key in self._texts or len(self._texts) < MOST_TEXTS:
            first, count = self._texts.get(key, (text, 0))
            self._texts[key] = (first, count + 1)
        last_ns = self._last_ns.get(key)
        if last_ns is not None and 0 <= time_ns - last_ns < REPEAT_NS:
            return
        self._last_ns[key] = time_ns
        if len(self.events) < MOST_EVENTS:
            self.events.append(Event(time_ns=time_ns, kind=kind, stream=stream, text=text))
        else:
            self.left_out += 1

    def lines(self, *kinds: str) -> list[str]:
        """One line for each thing of these kinds, with how often it happened."""
        return [
            text + (f' ({count} times)' if count > 1 else '')
            for (kind, _), (text, count) in self._texts.items()
            if kind in kinds
        ]

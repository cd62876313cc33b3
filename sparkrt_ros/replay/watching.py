"""The live node's observation reader, watched: what it read last, and why it could not."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sparkrt_ros.nodes.observation_buffer import Snapshot
from sparkrt_ros.nodes.observation_reader import ObservationReader, Reading
from sparkrt_ros.replay.history import EventLog
from sparkrt_ros.runtime.errors import ObservationError, StaleObservation

# What the intake and the reader warn of, by the first part of its key -> kind of event.
_WARNINGS = {
    'zero': 'zero stamp',
    'bad': 'dropped',
    'ahead': 'dropped',
    'state': 'stale',
    'decode': 'picture',
}


class WatchingReader(ObservationReader):
    """last: what the last successful ``read`` returned."""

    def __init__(self, *arguments: Any, events: EventLog, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._events = events
        self.last: Reading | None = None

    def look(self, now_ns: int) -> Snapshot:
        """See ObservationReader; refusals are noted."""
        try:
            return super().look(now_ns)
        except ObservationError as error:
            kind = 'stale' if isinstance(error, StaleObservation) else 'skew'
            self._events.add(kind, time_ns=now_ns, stream=error.where, text=str(error))
            raise

    def read(self, now_ns: int, *, task: str) -> Reading:
        """See ObservationReader."""
        self.last = super().read(now_ns, task=task)
        return self.last


class EventWarnings:
    """Turns the warnings of intake and reader into events; ``now_ns`` is set by the player."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self.now_ns = 0

    def __call__(self, key: Hashable, text: str) -> None:
        kind, where = (key[0], str(key[1])) if isinstance(key, tuple) else (key, 'joints')
        self._events.add(
            _WARNINGS.get(str(kind), str(kind)),
            time_ns=self.now_ns,
            stream=where,
            text=text,
            same=key,
        )

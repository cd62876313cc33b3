"""Durations on a clock that may jump back, as simulated time does."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RisingClock:
    """Seconds for which ``now_ns`` went forward since it began (at 0 it has not). Any thread."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._last_ns = 0
        self._risen_ns = 0

    def __call__(self) -> float:
        with self._lock:
            self._rise()
            return self._risen_ns / 1e9

    def at(self, time_ns: int) -> float:
        """What it said when it was ``time_ns``, unless that clock jumped since."""
        with self._lock:
            self._rise()
            return (self._risen_ns - self._last_ns + time_ns) / 1e9

    def _rise(self) -> None:
        now_ns = self._now_ns()
        if self._last_ns:
            self._risen_ns += max(0, now_ns - self._last_ns)
        self._last_ns = now_ns

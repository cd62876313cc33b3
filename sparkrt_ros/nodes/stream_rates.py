"""How often something happens, from counters that are looked at now and then. ROS-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_NS = 3_000_000_000


class RateMeter:
    """Rates [Hz] over the last seconds, by name. Time is the caller's, in nanoseconds.

    Starts over where time goes back, a counter does, or the names change.
    """

    def __init__(self, *, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._seen: deque[tuple[int, dict[str, int]]] = deque()

    def update(self, counts: Mapping[str, int], *, now_ns: int) -> None:
        """Look at the counters."""
        now = dict(counts)
        if self._seen and not self._follows(now, now_ns):
            self._seen.clear()
        if self._seen and now_ns == self._seen[-1][0]:
            return
        self._seen.append((now_ns, now))
        # One older than the window stays, so that the rates are over all of it.
        while len(self._seen) > 2 and self._seen[1][0] <= now_ns - self._window_ns:
            self._seen.popleft()

    def rates(self) -> dict[str, float]:
        """By name; 0 where nothing is known yet."""
        if not self._seen:
            return {}
        first_ns, first = self._seen[0]
        last_ns, last = self._seen[-1]
        seconds = (last_ns - first_ns) / 1e9
        return {name: (last[name] - first[name]) / seconds if seconds else 0.0 for name in last}

    def _follows(self, counts: Mapping[str, int], now_ns: int) -> bool:
        last_ns, last = self._seen[-1]
        return (
            now_ns >= last_ns
            and last.keys() == counts.keys()
            and all(counts[name] >= last[name] for name in last)
        )

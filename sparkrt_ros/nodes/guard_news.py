"""What the guard did since it was last told, at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class GuardNews:
    """One line for all interventions of ``period_s``; ``clock_s`` is any steady clock."""

    def __init__(
        self, *, period_s: float = 10.0, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._period_s = period_s
        self._clock_s = clock_s
        self.begin()

    def begin(self) -> None:
        """Counters start again at 0."""
        self._told: dict[str, int] = {}
        self._told_s: float | None = None

    def line(self, counts: Mapping[str, int]) -> str:
        """What to log now, given all interventions by kind; '' for nothing."""
        now_s = self._clock_s()
        if self._told_s is not None and now_s - self._told_s < self._period_s:
            return ''
        since = {kind: count - self._told.get(kind, 0) for kind, count in counts.items()}
        since = {kind: count for kind, count in since.items() if count > 0}
        if not since:
            return ''
        self._told, self._told_s = dict(counts), now_s
        listed = ', '.join(f'{kind} {count}' for kind, count in since.items())
        return f'the guard changed or refused commands: {listed}'

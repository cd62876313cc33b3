"""When actions were really played: the record from which a late chunk learns what to skip."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class PlayedTime:
    """Intervals of time during which actions were consumed; times are int nanoseconds.

    The newest ``capacity`` intervals are kept. Forgetting older ones can only make
    :meth:`since` smaller, so that a chunk skips less, never more, than was consumed.
    """

    def __init__(self, *, capacity: int = 64) -> None:
        self._begin_ns: npt.NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)
        self._end_ns: npt.NDArray[np.int64] = np.zeros(capacity, dtype=np.int64)
        self._count = 0
        self._open_begin_ns = 0
        self._open_end_ns = 0
        self._closed_ns = 0
        self.playing = False

    @property
    def total_ns(self) -> int:
        """Time played since construction."""
        if not self.playing:
            return self._closed_ns
        return self._closed_ns + self._open_end_ns - self._open_begin_ns

    def extend(self, now_ns: int) -> None:
        """Actions are being consumed at ``now_ns``; opens an interval or lengthens it."""
        if not self.playing:
            self.playing = True
            self._open_begin_ns = now_ns
            self._open_end_ns = now_ns
        elif now_ns > self._open_end_ns:
            self._open_end_ns = now_ns

    def stop(self) -> None:
        """Close the open interval where it was last extended to."""
        if not self.playing:
            return
        slot = self._count % self._begin_ns.size
        self._begin_ns[slot] = self._open_begin_ns
        self._end_ns[slot] = self._open_end_ns
        self._closed_ns += self._open_end_ns - self._open_begin_ns
        self._count += 1
        self.playing = False

    def since(self, stamp_ns: int) -> int:
        """Nanoseconds played after ``stamp_ns``."""
        played_ns = 0
        if self.playing:
            played_ns += max(0, self._open_end_ns - max(stamp_ns, self._open_begin_ns))
        for index in range(self._count - 1, max(-1, self._count - 1 - self._begin_ns.size), -1):
            slot = index % self._begin_ns.size
            end_ns = int(self._end_ns[slot])
            if end_ns <= stamp_ns:
                break
            played_ns += end_ns - max(stamp_ns, int(self._begin_ns[slot]))
        return played_ns

    def forget(self) -> None:
        """Drop the intervals, whose times no longer mean anything; keep the total."""
        self.stop()
        self._count = 0

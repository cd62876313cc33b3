"""Whether a chunk may still leave, decided at the very moment it is published."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ChunkGate:
    """Open while the node is active and not paused; keeps the epoch.

    An inference takes time. What it was asked for may be void when it ends: the node was
    deactivated, paused or reset meanwhile. So a chunk carries the epoch it was begun in, and
    passes only if that is still the epoch and the gate is open. Any thread may call anything;
    when ``close`` or ``raise_epoch`` has returned, nothing begun before it can pass any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._paused = False
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_open(self) -> bool:
        return self._open and not self._paused

    @property
    def is_paused(self) -> bool:
        return self._paused

    def open(self) -> None:
        """Open, not paused, in a new epoch."""
        with self._lock:
            self._open, self._paused = True, False
            self._epoch += 1

    def close(self) -> None:
        with self._lock:
            self._open = self._paused = False

    def pause(self) -> None:
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        """Let chunks pass again."""
        with self._lock:
            self._paused = False

    def raise_epoch(self) -> int:
        with self._lock:
            self._epoch += 1
            return self._epoch

    def let_pass(self, epoch: int, publish: Callable[[], None]) -> bool:
        """Call ``publish`` if a chunk of ``epoch`` may leave; whether it was called."""
        with self._lock:
            if not self._open or self._paused or epoch != self._epoch:
                return False
            publish()
            return True

"""Captures, and waits for a whole device, take turns.

CUDA forbids waiting for a device while any thread captures on it, whatever the capture's mode:
the wait fails with error 900 and the capture is lost. So while a capture lasts (milliseconds), a
call of ``torch.cuda.synchronize`` by another thread waits for its end, and the other way round.
Waiting for a stream or an event needs no turn. Code that is not Python's is not reached: a capture
that such code breaks is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


class Turns:
    """Any number of waits at a time, or one capture; the capturing thread may also wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits = 0
        self._owner: int | None = None

    def install(self) -> None:
        """Let ``torch.cuda.synchronize`` take turns from now on. Harmless when repeated."""
        with self._changed:
            if not hasattr(torch.cuda.synchronize, 'takes_turns'):
                torch.cuda.synchronize = self.waiting(torch.cuda.synchronize)

    def waiting(self, wait: Callable[..., None]) -> Callable[..., None]:
        """The function ``wait``, taking turns with captures."""

        @wraps(wait)
        def run(*args: Any, **kwargs: Any) -> None:
            mine = self._owner == threading.get_ident()
            if not mine:
                self._begin_wait()
            try:
                wait(*args, **kwargs)
            finally:
                if not mine:
                    self._end_wait()

        run.takes_turns = True  # type: ignore[attr-defined]
        return run

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One thread captures; others wait for their turn meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            # Taken before the waits in progress end, so that waits in a loop let it through.
            self._owner = threading.get_ident()
            self._changed.wait_for(lambda: self._waits == 0)
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()

    def _begin_wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            self._waits += 1

    def _end_wait(self) -> None:
        with self._changed:
            self._waits -= 1
            self._changed.notify_all()


# One for the process: CUDA's rule holds for all backends and threads of it.
CAPTURES = Turns()

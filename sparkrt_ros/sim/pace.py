"""Steady loops on threads of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class SteadyThread:
    """Calls ``work(ticks)`` every ``period_s`` of the monotonic clock, until stopped.

    ``ticks`` is how many periods have passed since the last call: 1 when on time, more when late,
    so that time that counts in ticks never drifts. At most ``most_ticks``; what is beyond is given
    up and counted in ``slipped``. ``failed`` takes what ``work`` raises; the thread then ends.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[int], None],
        *,
        period_s: float,
        most_ticks: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._work = work
        self._period_s = period_s
        self._most_ticks = most_ticks
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.slipped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due_s = time.monotonic() + self._period_s
        try:
            while not self._stop.wait(max(due_s - time.monotonic(), 0.0)):
                late_s = time.monotonic() - due_s
                ticks = 1 + int(max(late_s, 0.0) / self._period_s)
                due_s += ticks * self._period_s
                self.slipped += max(ticks - self._most_ticks, 0)
                self._work(min(ticks, self._most_ticks))
        except BaseException as error:
            self._failed(error)

"""Log lines that would repeat at the rate of the messages, at most once a second each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol


class Logger(Protocol):
    """The part of rclpy's logger that is used here."""

    def warning(self, text: str, /) -> Any: ...

    def error(self, text: str, /) -> Any: ...


class ThrottledLog:
    """Logs each ``key`` at most once per ``period_s`` and says how often it stayed silent.

    rclpy's own throttle is per line of code: one topic would silence all others.
    ``clock_s`` is any steady clock. Any thread may call.
    """

    def __init__(
        self,
        logger: Logger,
        *,
        period_s: float = 1.0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._period_s = period_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._last_s: dict[Hashable, float] = {}
        self._silent: dict[Hashable, int] = {}

    def warning(self, key: Hashable, text: str) -> None:
        if (line := self._line(key, text)) is not None:
            self._logger.warning(line)

    def error(self, key: Hashable, text: str) -> None:
        if (line := self._line(key, text)) is not None:
            self._logger.error(line)

    def _line(self, key: Hashable, text: str) -> str | None:
        now_s = self._clock_s()
        with self._lock:
            last_s = self._last_s.get(key)
            if last_s is not None and now_s - last_s < self._period_s:
                self._silent[key] = self._silent.get(key, 0) + 1
                return None
            self._last_s[key] = now_s
            silent = self._silent.pop(key, 0)
        return f'{text} ({silent} more like it)' if silent else text

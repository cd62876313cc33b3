"""Sleeps of the control thread that a message ends, so that it is answered at once."""

from __future__ import annotations

import threading

from sparkrt_ros.nodes.control_loop import STOP_LATENCY_S, MonotonicPacer
from sparkrt_ros.nodes.message_signal import MessageSignal
from sparkrt_ros.nodes.polled import PolledSubscription

STOP_LATENCY_NS = round(STOP_LATENCY_S * 1e9)


class MessagePacer(MonotonicPacer):
    """The monotonic clock; a sleep also ends when a message of ``subscription`` waits.

    at_once: whether it does. The subscription must not be the executor's meanwhile.
    Raises SignalError where the middleware does not tell of messages.
    """

    def __init__(self, subscription: PolledSubscription) -> None:
        self.at_once = True
        self._signal = MessageSignal(subscription.subscription)

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int | None = None
    ) -> bool:
        if not self.at_once or earliest_ns is None:
            return super().sleep_until(deadline_ns, stop)
        while not stop.is_set():
            now_ns = self.now_ns()
            if now_ns >= deadline_ns:
                return False
            if self._signal.wait(min(deadline_ns, now_ns + STOP_LATENCY_NS)):
                super().sleep_until(min(earliest_ns, deadline_ns), stop)
                return self.now_ns() < deadline_ns
        return False

    def messages_wait(self) -> bool:
        """Whether messages have come since the last time; they are to be taken then."""
        return self._signal.lower()

    def close(self) -> None:
        self._signal.close()

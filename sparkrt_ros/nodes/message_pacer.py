"""Sleeps of the control thread that a message ends, so that it is answered at once."""

from __future__ import annotations

import threading
from typing import Any

from rclpy.context import Context
from rclpy.impl.implementation_singleton import rclpy_implementation

from sparkrt_ros.nodes.control_loop import STOP_LATENCY_S, MonotonicPacer
from sparkrt_ros.nodes.polled import PolledSubscription

STOP_LATENCY_NS = round(STOP_LATENCY_S * 1e9)


class MessagePacer(MonotonicPacer):
    """The monotonic clock; a sleep also ends when a message of ``subscription`` waits.

    at_once: whether it does. The subscription must not be the executor's meanwhile.
    """

    def __init__(self, context: Context, subscription: PolledSubscription) -> None:
        self.at_once = True
        self._handle: Any = subscription.subscription.handle
        assert context.handle is not None
        with context.handle:
            self._wait_set = rclpy_implementation.WaitSet(1, 0, 0, 0, 0, 0, context.handle)

    def sleep_until(
        self, deadline_ns: int, stop: threading.Event, *, earliest_ns: int | None = None
    ) -> bool:
        if not self.at_once or earliest_ns is None:
            return super().sleep_until(deadline_ns, stop)
        while not stop.is_set():
            left_ns = deadline_ns - self.now_ns()
            if left_ns <= 0:
                return False
            if self._message_comes(min(left_ns, STOP_LATENCY_NS)):
                super().sleep_until(min(earliest_ns, deadline_ns), stop)
                return self.now_ns() < deadline_ns
        return False

    def _message_comes(self, limit_ns: int) -> bool:
        with self._handle:
            self._wait_set.clear_entities()
            index = self._wait_set.add_subscription(self._handle)
            self._wait_set.wait(limit_ns)
            return bool(self._wait_set.is_ready('subscription', index))

"""The policy node's part of ``~/trace``: what entered, and when it had thought about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node

from sparkrt_ros.nodes.policy_worker import PolicyWorker
from sparkrt_ros.nodes.trace import Tracer


class PolicyTrace:
    """Messages are noted by the ROS thread, traces published by the inference thread.

    unmatched: topics of the inputs that nobody publishes.
    """

    def __init__(self, node: Node, *, unmatched: Callable[[], Sequence[str]]) -> None:
        self._tracer = Tracer(node)
        self._unmatched = unmatched

    @property
    def enabled(self) -> bool:
        return self._tracer.enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._tracer.enabled = enabled

    def message(self, stream: str, message: Any, *, now_ns: int) -> None:
        """A message was stored, or refused."""
        self._tracer.log.message(stream, message, clock_ns=now_ns)

    def step(self, worker: PolicyWorker) -> float:
        """``worker.step()``; where it leaves nothing to do, tell what it had seen before it."""
        if not self.enabled:
            return worker.step()
        # What arrives during the step may have come too late for it.
        entries, clock_ns = len(self._tracer.log), worker.clocks.now_ns()
        wait_s = worker.step()
        if worker.idle:
            self._tracer.publish(
                entries=entries,
                clock_ns=clock_ns,
                wait_s=wait_s,
                unmatched=self._unmatched(),
                chunk_id=worker.next_chunk_id - 1,
                tick_ns=worker.tick_ns,
            )
        return wait_s

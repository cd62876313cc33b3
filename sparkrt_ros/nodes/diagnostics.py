"""Publishes ``/diagnostics`` at a fixed rate, from functions that each give one status.

``diagnostic_updater`` is not everywhere this package runs, and its frequency task builds a clock
of its own that does not follow simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

from sparkrt_ros.nodes import qos


class Level(IntEnum):
    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True, kw_only=True)
class Health:
    """One row of ``/diagnostics``: a level, one sentence, figures with their unit in the key."""

    name: str
    level: Level = Level.OK
    message: str = 'ok'
    values: Mapping[str, object] = field(default_factory=dict)


Task = Callable[[], Health]


class Diagnostics:
    """Runs every task at ``rate_hz`` on a steady clock and publishes their results together.

    A task that raises is reported as an ERROR row of its own instead of ending the timer.
    every: calls a function at a rate [Hz]; None for a timer of its own.
    """

    def __init__(
        self,
        node: Node,
        tasks: Sequence[Task],
        *,
        hardware_id: str,
        rate_hz: float = 1.0,
        every: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._node = node
        self._tasks = tuple(tasks)
        self.hardware_id = hardware_id
        self._publisher = qos.create_report_publisher(
            node, DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS
        )
        if every is not None:
            every(rate_hz, self.publish)
            return
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(1.0 / rate_hz, self.publish, clock=steady)

    def publish(self) -> None:
        """Publish the state of every task now."""
        message = DiagnosticArray(status=[self._row(task) for task in self._tasks])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def _row(self, task: Task) -> DiagnosticStatus:
        try:
            health = task()
        except Exception as error:  # a defect in one row must not silence the others
            name = getattr(task, '__name__', 'task').strip('_')
            health = Health(
                name=name, level=Level.ERROR, message=f'{type(error).__name__}: {error}'
            )
        return DiagnosticStatus(
            level=bytes([health.level]),
            name=f'{self._node.get_name()}: {health.name}',
            message=health.message,
            hardware_id=self.hardware_id,
            values=[KeyValue(key=k, value=_text(v)) for k, v in health.values.items()],
        )


def _text(value: object) -> str:
    return f'{value:.6g}' if isinstance(value, float) else str(value)

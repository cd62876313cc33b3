"""A command vector in SI units -> the messages of a contract's outputs.

Messages are made once and refilled at each tick, so that the control loop allocates no message.
Their classes come from the caller: nothing here imports ROS.
"""

from __future__ import annotations

import array
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract_types import OUTPUT_TYPES, OutputGroup, RobotContract
from sparkrt_ros.convert.time import fill_stamp, seconds_to_ns
from sparkrt_ros.convert.units import Float64Array
from sparkrt_ros.runtime.errors import ActionError

MakeMessage = Callable[[], Any]

TRAJECTORY_POINT = 'trajectory_msgs/msg/JointTrajectoryPoint'


def needed_message_types(contract: RobotContract) -> tuple[str, ...]:
    """ROS types (``package/msg/Name``) that :class:`CommandSet` makes for ``contract``."""
    kinds = dict.fromkeys(group.type for group in contract.outputs)
    points = [TRAJECTORY_POINT] if 'joint_trajectory' in kinds else []
    return (*(OUTPUT_TYPES[kind] for kind in kinds), *points)


def check_rows(rows: npt.ArrayLike, *, size: int, where: str) -> Float64Array:
    """Return ``rows`` as (T, size) float64, T >= 1; a single (size,) command becomes one row.

    Raises ActionError for empty, mis-sized and non-finite commands.
    """
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim == 1:
        values = values[np.newaxis]
    if values.ndim != 2 or values.shape[0] == 0 or values.shape[1] != size:
        raise ActionError(
            where,
            found=f'a command of shape {np.shape(rows)}',
            expected=f'({size},), or (rows, {size}) with at least one row',
            remedy='nothing is sent',
        )
    if np.count_nonzero(np.isfinite(values)) < values.size:
        bad = sorted({int(column) for column in np.argwhere(~np.isfinite(values))[:, 1]})
        raise ActionError(
            where,
            found=f'values that are not finite in columns {bad}',
            expected='finite values',
            remedy='nothing is sent',
        )
    return values


class CommandSet:
    """All outputs of one robot: checks a command once, then fills every message or none.

    message_classes: ROS type (``std_msgs/msg/Float64MultiArray``) -> class or factory without
    arguments, for all of :func:`needed_message_types`.
    groups, messages: the contract's outputs and their messages, in the same order.
    """

    def __init__(
        self, contract: RobotContract, message_classes: Mapping[str, MakeMessage]
    ) -> None:
        self.groups = contract.outputs
        self._names = contract.action
        self._writers = tuple(
            _WRITERS[group.type](contract, group, message_classes) for group in contract.outputs
        )
        self.messages: tuple[Any, ...] = tuple(writer.message for writer in self._writers)

    def set_period(self, period_s: float) -> None:
        """Commands come this far apart from now on, instead of at the contract's rate."""
        for writer in self._writers:
            writer.period_s = period_s

    def fill(
        self, command: npt.ArrayLike, *, stamp_ns: int = 0, dt_s: float | None = None
    ) -> tuple[Any, ...]:
        """Fill and return one message per output, in the order of ``groups``.

        command: (A,) SI values in action order, or (T, A) rows ``dt_s`` apart where every output
        is a trajectory. stamp_ns goes into the headers of joint states and stamped twists; a
        trajectory's stamp stays 0, which means "on arrival".
        The same messages come back each time. Raises ActionError with no message touched.
        """
        rows = check_rows(command, size=len(self._names), where='command')
        if rows.shape[0] > 1:
            self._check_several_rows(rows.shape[0], dt_s)
        for writer in self._writers:
            writer.write(rows, stamp_ns, dt_s)
        return self.messages

    def _check_several_rows(self, count: int, dt_s: float | None) -> None:
        if dt_s is None or not dt_s > 0.0:
            raise ActionError(
                'command', found=f'{count} rows and dt_s {dt_s}', expected='dt_s above 0'
            )
        others = [group.name for group in self.groups if group.type != 'joint_trajectory']
        if others:
            raise ActionError(
                'command',
                found=f'{count} rows for {", ".join(others)}',
                expected='one row: only a joint_trajectory takes several',
            )


class _Writer(ABC):
    """One output's message and the columns of the command that go into it."""

    def __init__(
        self, contract: RobotContract, group: OutputGroup, classes: Mapping[str, MakeMessage]
    ) -> None:
        self.group = group
        self.columns = contract.output_columns(group)
        self.message = classes[OUTPUT_TYPES[group.type]]()
        self.period_s = 1.0 / contract.control_rate_hz

    @abstractmethod
    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        """Fill the message from checked rows (T, A)."""


class _MultiArrayWriter(_Writer):
    """``std_msgs/Float64MultiArray`` in the controller's order."""

    def __init__(
        self, contract: RobotContract, group: OutputGroup, classes: Mapping[str, MakeMessage]
    ) -> None:
        super().__init__(contract, group, classes)
        self._view = _attach_array(self.message, 'data', len(group.joints))

    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        np.take(rows[0], self.columns, out=self._view)


class _JointStateWriter(_Writer):
    """``sensor_msgs/JointState``: positions, or velocities for velocity joints."""

    def __init__(
        self, contract: RobotContract, group: OutputGroup, classes: Mapping[str, MakeMessage]
    ) -> None:
        super().__init__(contract, group, classes)
        self.message.name = list(group.message_names)
        is_velocity = contract.joints_by_name[group.joints[0]].is_velocity
        field = 'velocity' if is_velocity else 'position'
        self._view = _attach_array(self.message, field, len(group.joints))

    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        fill_stamp(self.message.header.stamp, stamp_ns)
        np.take(rows[0], self.columns, out=self._view)


class _TrajectoryWriter(_Writer):
    """``trajectory_msgs/JointTrajectory`` of positions, due one period after its arrival.

    Or after the contract's ``time_from_start_s``.
    The stamp stays 0 and the first ``time_from_start`` is above 0: a controller drops points that
    lie in its past, and one due at once would be.
    """

    def __init__(
        self, contract: RobotContract, group: OutputGroup, classes: Mapping[str, MakeMessage]
    ) -> None:
        super().__init__(contract, group, classes)
        self.message.joint_names = list(group.message_names)
        self._make_point = classes[TRAJECTORY_POINT]
        self._points: list[Any] = []
        self._views: list[Float64Array] = []

    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        while len(self._points) < rows.shape[0]:
            point = self._make_point()
            self._views.append(_attach_array(point, 'positions', len(self.columns)))
            self._points.append(point)
        first_s = self.group.time_from_start_s or self.period_s
        for i, row in enumerate(rows):
            np.take(row, self.columns, out=self._views[i])
            due_s = first_s + i * (dt_s or 0.0)
            fill_stamp(self._points[i].time_from_start, seconds_to_ns(due_s))
        fill_stamp(self.message.header.stamp, 0)
        self.message.points = self._points[: rows.shape[0]]


class _TwistWriter(_Writer):
    """``geometry_msgs/Twist``; components that no joint is mapped to stay 0."""

    def __init__(
        self, contract: RobotContract, group: OutputGroup, classes: Mapping[str, MakeMessage]
    ) -> None:
        super().__init__(contract, group, classes)
        pairs = (name.split('.') for name in group.message_names)
        self._components = [(getattr(self._twist(), part), axis) for part, axis in pairs]

    def _twist(self) -> Any:
        return self.message

    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        for column, (vector, axis) in zip(self.columns, self._components, strict=True):
            setattr(vector, axis, float(rows[0, column]))


class _TwistStampedWriter(_TwistWriter):
    """``geometry_msgs/TwistStamped``, which newer base controllers take."""

    def _twist(self) -> Any:
        return self.message.twist

    def write(self, rows: Float64Array, stamp_ns: int, dt_s: float | None) -> None:
        fill_stamp(self.message.header.stamp, stamp_ns)
        self.message.header.frame_id = self.group.frame_id
        super().write(rows, stamp_ns, dt_s)


_WRITERS: Mapping[str, type[_Writer]] = {
    'float64_multi_array': _MultiArrayWriter,
    'joint_state': _JointStateWriter,
    'joint_trajectory': _TrajectoryWriter,
    'twist': _TwistWriter,
    'twist_stamped': _TwistStampedWriter,
}


def _attach_array(message: Any, field: str, size: int) -> Float64Array:
    """Give ``message.field`` an array of ``size`` doubles; return a view that writes into it.

    Messages may copy what is assigned, so the view is taken of what they then hold.
    """
    setattr(message, field, array.array('d', bytes(8 * size)))
    return np.frombuffer(getattr(message, field), dtype=np.float64)

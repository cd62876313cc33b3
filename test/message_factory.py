"""The same messages twice: as plain objects, and as the real classes where ROS imports.

Conversions take either. Tests that run with both prove that nothing depends on ROS being there,
and that nothing breaks on what real messages do (typed arrays, copies at assignment).
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

KINDS = ('plain', 'ros')
_TYPES = (
    'sensor_msgs/msg/Image',
    'sensor_msgs/msg/CompressedImage',
    'sensor_msgs/msg/JointState',
    'std_msgs/msg/Float64MultiArray',
    'trajectory_msgs/msg/JointTrajectory',
    'trajectory_msgs/msg/JointTrajectoryPoint',
    'geometry_msgs/msg/Twist',
    'geometry_msgs/msg/TwistStamped',
)


def message_kind(kind: str) -> Messages:
    """``plain`` or ``ros``; the latter skips where the ROS messages cannot be imported."""
    return Messages(_real_classes() if kind == 'ros' else _PLAIN)


class Messages:
    """Builds messages of one kind; ``classes`` maps ROS type names to factories."""

    def __init__(self, classes: Mapping[str, Callable[[], Any]]) -> None:
        self.classes = classes

    def image(
        self,
        pixels: np.ndarray | bytes,
        encoding: str,
        *,
        size: tuple[int, int] | None = None,
        step: int | None = None,
        is_bigendian: int = 0,
    ) -> Any:
        """An array gives width, height and a tight step; bytes need ``size`` and ``step``."""
        msg = self.classes['sensor_msgs/msg/Image']()
        if isinstance(pixels, np.ndarray):
            msg.height, msg.width = pixels.shape[:2]
            msg.step = pixels.nbytes // pixels.shape[0]
            pixels = pixels.tobytes()
        if size is not None:
            msg.width, msg.height = size
        if step is not None:
            msg.step = step
        msg.encoding = encoding
        msg.is_bigendian = is_bigendian
        msg.data = array.array('B', pixels)
        return msg

    def compressed(self, data: bytes, text: str) -> Any:
        msg = self.classes['sensor_msgs/msg/CompressedImage']()
        msg.format = text
        msg.data = array.array('B', data)
        return msg

    def joint_state(
        self,
        names: Sequence[str],
        position: Sequence[float] = (),
        *,
        velocity: Sequence[float] = (),
        effort: Sequence[float] = (),
        stamp_ns: int = 1,
    ) -> Any:
        msg = self.classes['sensor_msgs/msg/JointState']()
        msg.header.stamp.sec, msg.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
        msg.name = list(names)
        msg.position = array.array('d', position)
        msg.velocity = array.array('d', velocity)
        msg.effort = array.array('d', effort)
        return msg

    def multi_array(self, values: Sequence[float]) -> Any:
        msg = self.classes['std_msgs/msg/Float64MultiArray']()
        msg.data = array.array('d', values)
        return msg


def _real_classes() -> dict[str, Callable[[], Any]]:
    classes = {}
    for name in _TYPES:
        package, _, cls = name.split('/')
        module = pytest.importorskip(f'{package}.msg', reason='the ROS messages are not here')
        classes[name] = getattr(module, cls)
    return classes


def _time() -> SimpleNamespace:
    return SimpleNamespace(sec=0, nanosec=0)


def _header() -> SimpleNamespace:
    return SimpleNamespace(stamp=_time(), frame_id='')


def _vector() -> SimpleNamespace:
    return SimpleNamespace(x=0.0, y=0.0, z=0.0)


def _twist() -> SimpleNamespace:
    return SimpleNamespace(linear=_vector(), angular=_vector())


_PLAIN: dict[str, Callable[[], Any]] = {
    'sensor_msgs/msg/Image': lambda: SimpleNamespace(
        header=_header(), height=0, width=0, encoding='', is_bigendian=0, step=0, data=b''
    ),
    'sensor_msgs/msg/CompressedImage': lambda: SimpleNamespace(
        header=_header(), format='', data=b''
    ),
    'sensor_msgs/msg/JointState': lambda: SimpleNamespace(
        header=_header(), name=[], position=[], velocity=[], effort=[]
    ),
    'std_msgs/msg/Float64MultiArray': lambda: SimpleNamespace(data=[]),
    'trajectory_msgs/msg/JointTrajectory': lambda: SimpleNamespace(
        header=_header(), joint_names=[], points=[]
    ),
    'trajectory_msgs/msg/JointTrajectoryPoint': lambda: SimpleNamespace(
        positions=[], velocities=[], accelerations=[], effort=[], time_from_start=_time()
    ),
    'geometry_msgs/msg/Twist': _twist,
    'geometry_msgs/msg/TwistStamped': lambda: SimpleNamespace(header=_header(), twist=_twist()),
}

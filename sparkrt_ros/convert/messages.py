"""The fields of ROS messages that conversions read, as structural types.

Real messages and any object with the same fields serve alike, so that bags read without ROS, and
tests, use the very same functions.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol


class Stamp(Protocol):
    sec: int
    nanosec: int


class Header(Protocol):
    stamp: Any
    frame_id: str


class ImageMessage(Protocol):
    """``sensor_msgs/Image``; ``data`` is anything with the buffer protocol."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


class CompressedImageMessage(Protocol):
    """``sensor_msgs/CompressedImage``; ``data`` is anything with the buffer protocol."""

    format: str
    data: Any


class JointStateMessage(Protocol):
    """``sensor_msgs/JointState``."""

    header: Any
    name: Sequence[str]
    position: Sequence[float]
    velocity: Sequence[float]
    effort: Sequence[float]


class Float64MultiArrayMessage(Protocol):
    """``std_msgs/Float64MultiArray``."""

    data: MutableSequence[float]

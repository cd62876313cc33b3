"""What the cameras see: coloured boxes for the arm, the cube and the tray, and two cameras.

All lengths in metres, in the arm's ``base`` frame; colours are RGB in 0..255.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.arm import ArmSpec, forward, link_pitches
from sparkrt_ros.sim.cube import Cube, TraySpec

FloatArray = npt.NDArray[np.float64]
Color = tuple[int, int, int]

SHELL: Color = (238, 240, 243)
MOTOR: Color = (62, 68, 78)
FINGER: Color = (245, 166, 35)
CAMERA: Color = (28, 30, 34)
CUBE: Color = (222, 52, 44)
TRAY_WALL: Color = (40, 122, 210)
TRAY_FLOOR: Color = (124, 178, 232)

FINGER_THICK_M = 0.010
FINGER_WIDE_M = 0.016
TABLE_M = (-0.16, 0.46, -0.40, 0.40)


@dataclass(frozen=True, kw_only=True)
class Box:
    """center_m (3,), rotation (3, 3) with the box's axes as columns, half_m (3,)."""

    center_m: FloatArray
    rotation: FloatArray
    half_m: tuple[float, float, float]
    color: Color


@dataclass(frozen=True, kw_only=True)
class View:
    """Where a camera is: ``rotation`` (3, 3) has its right, down and forward axes as columns."""

    position_m: FloatArray
    rotation: FloatArray


def look_at(position_m: FloatArray, target_m: FloatArray) -> View:
    """A level camera at ``position_m`` with ``target_m`` in the middle of its picture."""
    ahead = target_m - position_m
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross(ahead, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    return View(
        position_m=position_m,
        rotation=np.stack((right, np.cross(ahead, right), ahead), axis=1),
    )


def front_view() -> View:
    """Across the table from the arm, above it, with the whole workspace in sight."""
    return look_at(np.array([0.66, 0.0, 0.47]), np.array([0.13, 0.0, 0.085]))


def _pitched(pan_rad: float, pitch_rad: float) -> FloatArray:
    """Axes along a link, to its left, and across it in the arm's plane."""
    cos_pan, sin_pan = math.cos(pan_rad), math.sin(pan_rad)
    cosine, sine = math.cos(pitch_rad), math.sin(pitch_rad)
    return np.array(
        [
            [cosine * cos_pan, -sin_pan, -sine * cos_pan],
            [cosine * sin_pan, cos_pan, -sine * sin_pan],
            [sine, 0.0, cosine],
        ]
    )


def wrist_view(spec: ArmSpec, positions: FloatArray) -> View:
    """The camera on the outer side of the hand, looking past the fingers; joints (5,) [rad]."""
    tip = forward(spec, positions)
    hand = _pitched(tip.pan_rad, tip.pitch_rad)
    place = tip.position_m + hand @ np.array([-0.105, 0.0, 0.062])
    tilt = math.radians(24.0)
    along, left, across = hand.T
    ahead = math.cos(tilt) * along - math.sin(tilt) * across
    return View(
        position_m=place, rotation=np.stack((-left, np.cross(ahead, -left), ahead), axis=1)
    )


def arm_boxes(spec: ArmSpec, positions: FloatArray) -> list[Box]:
    """The arm at joints (5,) [rad]; the last box is the body of the wrist camera."""
    pan = float(positions[0])
    pitches = link_pitches(positions)
    lengths = (spec.upper_arm_m, spec.forearm_m, spec.hand_m)
    frames = [_pitched(pan, pitch) for pitch in pitches]
    joints = [np.array([0.0, 0.0, spec.shoulder_height_m])]
    for frame, length in zip(frames, lengths, strict=True):
        joints.append(joints[-1] + frame[:, 0] * length)
    level = _pitched(pan, 0.0)
    boxes = [
        Box(
            center_m=np.array([0, 0, 0.02]),
            rotation=np.eye(3),
            half_m=(0.06, 0.06, 0.02),
            color=MOTOR,
        ),
        Box(
            center_m=np.array([0, 0, 0.065]),
            rotation=level,
            half_m=(0.038, 0.042, 0.025),
            color=SHELL,
        ),
        Box(center_m=joints[0], rotation=level, half_m=(0.028, 0.046, 0.03), color=MOTOR),
        _link(joints[0], frames[0], (0.03, lengths[0] - 0.024), (0.019, 0.016), SHELL),
        Box(center_m=joints[1], rotation=frames[0], half_m=(0.024, 0.034, 0.024), color=MOTOR),
        _link(joints[1], frames[1], (0.024, lengths[1] - 0.02), (0.017, 0.014), SHELL),
        Box(center_m=joints[2], rotation=frames[1], half_m=(0.02, 0.028, 0.02), color=MOTOR),
    ]
    return boxes + _hand_boxes(spec, positions, joints[2], frames[2])


def _link(
    start_m: FloatArray,
    frame: FloatArray,
    span_m: tuple[float, float],
    half_m: tuple[float, float],
    color: Color,
    *,
    left_m: float = 0.0,
) -> Box:
    """A box along ``frame``'s first axis from ``span_m[0]`` to ``span_m[1]``."""
    middle = (span_m[0] + span_m[1]) / 2
    return Box(
        center_m=start_m + frame @ np.array([middle, left_m, 0.0]),
        rotation=frame,
        half_m=((span_m[1] - span_m[0]) / 2, *half_m),
        color=color,
    )


def _hand_boxes(
    spec: ArmSpec, positions: FloatArray, wrist_m: FloatArray, frame: FloatArray
) -> list[Box]:
    opening = float(positions[-1]) * spec.opening_m_per_rad
    aside = opening / 2 + FINGER_THICK_M / 2
    half = (FINGER_THICK_M / 2, FINGER_WIDE_M / 2)
    fingers = [
        _link(wrist_m, frame, (0.071, spec.hand_m), half, FINGER, left_m=side * aside)
        for side in (1.0, -1.0)
    ]
    return [
        _link(wrist_m, frame, (0.02, 0.053), (0.02, 0.016), SHELL),
        _link(wrist_m, frame, (0.054, 0.07), (0.05, 0.013), MOTOR),
        *fingers,
        Box(
            center_m=wrist_m + frame @ np.array([0.03, 0.0, 0.040]),
            rotation=frame,
            half_m=(0.016, 0.014, 0.022),
            color=CAMERA,
        ),
    ]


def cube_box(cube: Cube) -> Box:
    """The cube as it lies, or as it hangs between the fingers."""
    half = cube.spec.side_m / 2
    rotation = _pitched(cube.yaw_rad, 0.0)
    center = cube.position_m.copy()
    return Box(center_m=center, rotation=rotation, half_m=(half, half, half), color=CUBE)


def tray_boxes(spec: TraySpec, tray_m: FloatArray) -> list[Box]:
    """Floor and four walls of the tray at ``tray_m`` (2,)."""
    inner, wall = spec.inner_m / 2, spec.wall_m / 2
    floor, height = spec.floor_height_m / 2, spec.wall_height_m / 2
    shapes = [
        ((0.0, 0.0, floor), (inner, inner, floor), TRAY_FLOOR),
        ((inner + wall, 0.0, height), (wall, inner, height), TRAY_WALL),
        ((-inner - wall, 0.0, height), (wall, inner, height), TRAY_WALL),
        ((0.0, inner + wall, height), (inner + 2 * wall, wall, height), TRAY_WALL),
        ((0.0, -inner - wall, height), (inner + 2 * wall, wall, height), TRAY_WALL),
    ]
    base = np.array([tray_m[0], tray_m[1], 0.0])
    return [
        Box(center_m=base + np.array(center), rotation=np.eye(3), half_m=half, color=color)
        for center, half, color in shapes
    ]

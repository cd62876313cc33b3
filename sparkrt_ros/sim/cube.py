"""The cube, and how fingers, gravity and the tray move it.

Kinematic contact, without forces. A cube whose centre is between the open fingers is centred and
turned by closing fingers until its faces meet them, and is then carried; any other finger that
comes into the cube pushes it aside. What is let go falls to what is below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.arm import TipPose

FloatArray = npt.NDArray[np.float64]

GRAVITY_M_S2 = 9.81


@dataclass(frozen=True, kw_only=True)
class CubeSpec:
    """``side_m`` of the cube; ``pad_m``: how far off the pads' middle it can still be gripped;
    ``finger_m``: half width of a finger; ``bite_m``: least overlap in height of pad and cube.
    """

    side_m: float = 0.032
    pad_m: float = 0.014
    finger_m: float = 0.008
    bite_m: float = 0.006
    slack_m: float = 0.002


@dataclass(frozen=True, kw_only=True)
class TraySpec:
    """A square tray fixed to the table, sides along x and y; ``inner_m`` is its clear width."""

    inner_m: float = 0.085
    wall_m: float = 0.006
    wall_height_m: float = 0.014
    floor_height_m: float = 0.003


def fold_quarter(angle_rad: float) -> float:
    """The same orientation of a square, within [-pi/4, pi/4]."""
    quarter = math.pi / 2
    return angle_rad - quarter * round(angle_rad / quarter)


class Cube:
    """One cube in a scene with one tray.

    ``position_m`` (3,) is its centre, ``yaw_rad`` its heading; ``held`` while the fingers carry
    it. ``tray_m`` (2,) is the centre of the tray.
    """

    def __init__(
        self,
        spec: CubeSpec,
        tray: TraySpec,
        *,
        position_m: FloatArray,
        yaw_rad: float,
        tray_m: FloatArray,
    ) -> None:
        self.spec = spec
        self.tray = tray
        self.position_m = np.array(position_m, dtype=np.float64)
        self.yaw_rad = yaw_rad
        self.tray_m = np.array(tray_m, dtype=np.float64)
        self.held = False
        self.fall_m_s = 0.0
        self._grip_m = np.zeros(3)
        self._grip_yaw_rad = 0.0

    @property
    def resting(self) -> bool:
        """Neither held nor falling."""
        return not self.held and bool(self.position_m[2] <= self._floor_m() + 1e-6)

    @property
    def in_tray(self) -> bool:
        """Wholly inside the walls of the tray, seen from above."""
        clear = self.tray.inner_m / 2 - self._reach_m(0.0) + 1e-6
        return bool(np.all(np.abs(self.position_m[:2] - self.tray_m) <= clear))

    def step(self, dt_s: float, *, tip: TipPose, opening_m: float) -> float:
        """Advance by ``dt_s``; returns the least opening [m] that the cube leaves the fingers."""
        if self.held and opening_m > self.spec.side_m + self.spec.slack_m:
            self.held = False
            self.fall_m_s = 0.0
        if self.held:
            self._follow(tip)
            return self.spec.side_m
        least_m = self._touch(tip, opening_m)
        if not self.held:
            self._fall(dt_s)
        return least_m

    def take(self, tip: TipPose) -> None:
        """Attach to the hand where it is now."""
        self.held = True
        self._grip_m = self._in_hand(tip)
        self._grip_yaw_rad = fold_quarter(self.yaw_rad - tip.pan_rad)

    def _follow(self, tip: TipPose) -> None:
        along, across, above = self._grip_m
        forward, left = _axes(tip.pan_rad)
        self.position_m = tip.position_m + forward * along + left * across
        self.position_m[2] += above
        self.yaw_rad = tip.pan_rad + self._grip_yaw_rad
        lowest_m = self._floor_m()
        if self.position_m[2] < lowest_m:
            # Pressed on what is below, the cube slides up between the pads.
            self._grip_m[2] += lowest_m - self.position_m[2]
            self.position_m[2] = lowest_m

    def _touch(self, tip: TipPose, opening_m: float) -> float:
        """Grip, centre or push the cube; returns the least opening [m] it allows."""
        half = self.spec.side_m / 2
        along, across, above = self._in_hand(tip)
        if above < self.spec.bite_m - half:
            return 0.0
        if abs(along) < self.spec.pad_m and abs(across) < opening_m / 2:
            return self._squeeze(tip, opening_m)
        for side in (-1.0, 1.0):
            self._push(tip, side * (opening_m / 2 + self.spec.finger_m))
        return 0.0

    def _squeeze(self, tip: TipPose, opening_m: float) -> float:
        """Closing pads turn the cube until its width fits, centre it, and hold it at its side."""
        side = self.spec.side_m
        across = float(self._in_hand(tip)[1])
        turn = fold_quarter(self.yaw_rad - tip.pan_rad)
        if 2 * self._reach_m(turn) > opening_m:
            # Width of a square turned by t: side * sqrt(2) * cos(pi/4 - t).
            ratio = min(max(opening_m / (side * math.sqrt(2)), -1.0), 1.0)
            allowed = max(math.pi / 4 - math.acos(ratio), 0.0)
            turned = math.copysign(min(abs(turn), allowed), turn)
            self.yaw_rad += turned - turn
            turn = turned
        room = max(opening_m / 2 - self._reach_m(turn), 0.0)
        _, left = _axes(tip.pan_rad)
        self.position_m += left * (min(max(across, -room), room) - across)
        if opening_m <= side + 1e-4:
            self.take(tip)
        return side

    def _push(self, tip: TipPose, across_m: float) -> None:
        """Move the cube out of a round finger ``across_m`` to the left of the tip."""
        _, left = _axes(tip.pan_rad)
        finger = (tip.position_m + left * across_m)[:2]
        cosine, sine = math.cos(self.yaw_rad), math.sin(self.yaw_rad)
        offset = finger - self.position_m[:2]
        local = np.array(
            [cosine * offset[0] + sine * offset[1], cosine * offset[1] - sine * offset[0]]
        )
        half = self.spec.side_m / 2
        nearest = np.clip(local, -half, half)
        gap = local - nearest
        distance = float(np.hypot(*gap))
        if distance >= self.spec.finger_m:
            return
        if distance < 1e-9:
            axis = int(np.argmax(np.abs(local)))
            normal = np.zeros(2)
            normal[axis] = math.copysign(1.0, local[axis])
            depth = self.spec.finger_m + half - abs(float(local[axis]))
        else:
            normal = gap / distance
            depth = self.spec.finger_m - distance
        world = np.array(
            [cosine * normal[0] - sine * normal[1], sine * normal[0] + cosine * normal[1]]
        )
        self.position_m[:2] -= world * depth

    def _fall(self, dt_s: float) -> None:
        self._clear_walls()
        floor = self._floor_m()
        if self.position_m[2] <= floor:
            self.position_m[2], self.fall_m_s = floor, 0.0
            return
        self.fall_m_s += GRAVITY_M_S2 * dt_s
        self.position_m[2] = max(self.position_m[2] - self.fall_m_s * dt_s, floor)

    def _clear_walls(self) -> None:
        """Let a cube that comes down on a wall slide to the side its centre is on."""
        if self.position_m[2] - self.spec.side_m / 2 >= self.tray.wall_height_m:
            return
        offset = self.position_m[:2] - self.tray_m
        reach = self._reach_m(self.yaw_rad)
        inner, outer = self.tray.inner_m / 2, self.tray.inner_m / 2 + self.tray.wall_m
        if np.all(np.abs(offset) < (inner + outer) / 2):
            inside = np.clip(offset, reach - inner, inner - reach)
            self.position_m[:2] = self.tray_m + inside
        elif np.all(np.abs(offset) < outer + reach):
            axis = int(np.argmax(np.abs(offset)))
            offset[axis] = math.copysign(outer + reach, offset[axis])
            self.position_m[:2] = self.tray_m + offset

    def _floor_m(self) -> float:
        """Height [m] of the centre of a cube at rest here."""
        inner = self.tray.inner_m / 2
        over = bool(np.all(np.abs(self.position_m[:2] - self.tray_m) < inner))
        return self.spec.side_m / 2 + (self.tray.floor_height_m if over else 0.0)

    def _reach_m(self, turn_rad: float) -> float:
        """Half width [m] of the cube along an axis it is turned against by ``turn_rad``."""
        turn = abs(fold_quarter(turn_rad))
        return self.spec.side_m / 2 * (math.cos(turn) + math.sin(turn))

    def _in_hand(self, tip: TipPose) -> FloatArray:
        """(3,) centre of the cube from the tip: forward, left and up [m]."""
        forward, left = _axes(tip.pan_rad)
        offset = self.position_m - tip.position_m
        return np.array([offset @ forward, offset @ left, offset[2]])


def _axes(pan_rad: float) -> tuple[FloatArray, FloatArray]:
    cosine, sine = math.cos(pan_rad), math.sin(pan_rad)
    return np.array([cosine, sine, 0.0]), np.array([-sine, cosine, 0.0])

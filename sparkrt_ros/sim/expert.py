"""A scripted expert that sees the simulation's state and solves the task from wherever it is.

It remembers nothing: each command follows from the present state alone, so a disturbed arm, a
dropped cube or a missed grasp need no special case, and what it shows can be learned from a single
observation. It steers by putting the command a short way ahead of the measured tip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.arm import TipPose, inverse
from sparkrt_ros.sim.task import PickPlace

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExpertSpec:
    """Heights are of the fingertips above the table."""

    ahead_m: float = 0.030
    grasp_height_m: float = 0.010
    place_height_m: float = 0.020
    hover_m: float = 0.065
    clear_height_m: float = 0.075
    centered_m: float = 0.012
    level_m: float = 0.006
    slope: float = 2.0
    ready_opening_m: float = 0.058
    open_rad: float = 1.0
    closed_rad: float = 0.2
    gripper_ahead_rad: float = 0.3


class Expert:
    """Commands for a ``PickPlace``."""

    def __init__(self, spec: ExpertSpec | None = None) -> None:
        self.spec = spec or ExpertSpec()

    def command(self, task: PickPlace) -> FloatArray:
        """Joint command (5,) [rad] for the present state."""
        if task.cube.held:
            goal, gripper = self._carry(task)
        elif task.cube.in_tray:
            goal, gripper = self._retreat(task)
        else:
            goal, gripper = self._fetch(task)
        measured = float(task.arm.positions_rad[-1])
        ahead = self.spec.gripper_ahead_rad
        gripper = min(max(gripper, measured - ahead), measured + ahead)
        return np.append(inverse(task.spec.arm, self._toward(task.arm.tip, goal)), gripper)

    def _fetch(self, task: PickPlace) -> tuple[TipPose, float]:
        """Above the cube with open fingers, down around it, close."""
        spec, tip = self.spec, task.arm.tip
        pan, reach, distance = _course(tip, task.cube.position_m)
        opening = task.arm.opening_m
        low = tip.height_m < spec.grasp_height_m + spec.level_m
        around = distance < spec.centered_m and opening > task.cube.spec.side_m - 0.002
        if low and around:
            goal = TipPose(pan_rad=pan, reach_m=reach, height_m=spec.grasp_height_m)
            return goal, spec.closed_rad
        above = spec.slope * (distance - 0.75 * spec.centered_m)
        if opening < spec.ready_opening_m and distance < 0.05:
            above = spec.hover_m
        height = spec.grasp_height_m + min(max(above, 0.0), spec.hover_m)
        return TipPose(pan_rad=pan, reach_m=reach, height_m=height), spec.open_rad

    def _carry(self, task: PickPlace) -> tuple[TipPose, float]:
        """Up, over to the tray, down into it, open."""
        spec, tip = self.spec, task.arm.tip
        pan, reach, distance = _course(tip, task.cube.tray_m)
        above = spec.slope * (distance - spec.centered_m)
        height = spec.place_height_m + min(max(above, 0.0), spec.hover_m)
        if distance < spec.centered_m and tip.height_m < spec.place_height_m + spec.level_m:
            return TipPose(pan_rad=pan, reach_m=reach, height_m=height), spec.open_rad
        lifted = (tip.height_m - spec.grasp_height_m) / (spec.hover_m / 2)
        share = min(max(lifted, 0.0), 1.0) if distance > 3 * spec.centered_m else 1.0
        goal = TipPose(
            pan_rad=tip.pan_rad + share * (pan - tip.pan_rad),
            reach_m=tip.reach_m + share * (reach - tip.reach_m),
            height_m=height,
        )
        return goal, spec.closed_rad

    def _retreat(self, task: PickPlace) -> tuple[TipPose, float]:
        """Straight up, then home."""
        spec, tip, home = self.spec, task.arm.tip, task.spec.home
        share = min(max((tip.height_m - 0.03) / (spec.clear_height_m - 0.03), 0.0), 1.0)
        goal = TipPose(
            pan_rad=tip.pan_rad + share * (home.pan_rad - tip.pan_rad),
            reach_m=tip.reach_m + share * (home.reach_m - tip.reach_m),
            height_m=home.height_m,
        )
        return goal, spec.open_rad

    def _toward(self, tip: TipPose, goal: TipPose) -> TipPose:
        """The point ``ahead_m`` from the tip on the way to the goal, or the goal if nearer."""
        turn = goal.pan_rad - tip.pan_rad
        stretch = goal.reach_m - tip.reach_m
        rise = goal.height_m - tip.height_m
        length = math.hypot(turn * max(tip.reach_m, 0.1), stretch, rise)
        share = min(1.0, self.spec.ahead_m / max(length, 1e-9))
        return TipPose(
            pan_rad=tip.pan_rad + share * turn,
            reach_m=tip.reach_m + share * stretch,
            height_m=tip.height_m + share * rise,
        )


def _course(tip: TipPose, place_m: FloatArray) -> tuple[float, float, float]:
    """Pan [rad] and reach [m] that put the tip over a place, and how far off it is [m]."""
    distance = float(np.hypot(*(tip.position_m[:2] - place_m[:2])))
    return math.atan2(place_m[1], place_m[0]), float(np.hypot(*place_m[:2])), distance

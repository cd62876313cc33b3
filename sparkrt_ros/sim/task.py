"""The task of the embedded robot: pick the cube up and put it into the tray.

``PickPlace`` is the whole robot without ROS: arm, cube, cameras and the measure of success.
Everything follows from the seed of the episode and the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.arm import ArmDynamics, ArmSpec, TipPose, inverse
from sparkrt_ros.sim.cube import Cube, CubeSpec, TraySpec
from sparkrt_ros.sim.render import FRONT_CAMERA, WRIST_CAMERA, Renderer
from sparkrt_ros.sim.scene import (
    Box,
    View,
    arm_boxes,
    cube_box,
    front_view,
    tray_boxes,
    wrist_view,
)

FloatArray = npt.NDArray[np.float64]
ImageArray = npt.NDArray[np.uint8]

CAMERAS = ('front', 'wrist')


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What an episode is drawn from; ranges are (least, most), places polar about the pan axis."""

    arm: ArmSpec = field(default_factory=ArmSpec)
    cube: CubeSpec = field(default_factory=CubeSpec)
    tray: TraySpec = field(default_factory=TraySpec)
    time_limit_s: float = 30.0
    substep_s: float = 0.005
    policy_rate_hz: float = 20.0
    cube_angle_rad: tuple[float, float] = (-0.25, 0.9)
    cube_reach_m: tuple[float, float] = (0.16, 0.29)
    tray_angle_rad: tuple[float, float] = (-0.92, -0.68)
    tray_reach_m: tuple[float, float] = (0.20, 0.24)
    apart_m: float = 0.11
    home: TipPose = field(
        default_factory=lambda: TipPose(pan_rad=0.0, reach_m=0.19, height_m=0.17)
    )
    home_spread: tuple[float, float, float] = (0.25, 0.02, 0.02)
    gripper_rad: tuple[float, float] = (0.7, 1.0)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One instant, ready to be drawn; the last box is the body of the wrist camera."""

    boxes: tuple[Box, ...]
    wrist: View


class Eyes:
    """The two cameras."""

    def __init__(self) -> None:
        self._front = Renderer(FRONT_CAMERA, fixed_view=front_view())
        self._wrist = Renderer(WRIST_CAMERA)

    def draw(self, picture: Picture) -> Mapping[str, ImageArray]:
        """By camera, (240, 320, 3) uint8 RGB."""
        return {
            'front': self._front.render(picture.boxes),
            'wrist': self._wrist.render(picture.boxes[:-1], picture.wrist),
        }


class PickPlace:
    """One episode at a time; ``reset(seed)`` begins the next."""

    def __init__(self, spec: TaskSpec | None = None, *, seed: int = 0) -> None:
        self.spec = spec or TaskSpec()
        self._eyes = Eyes()
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Begin the episode of ``seed``: tray, cube and arm where that seed puts them."""
        random = np.random.default_rng(seed)
        spec = self.spec
        self.seed = seed
        self.elapsed_s = 0.0
        tray_m = _polar(random, spec.tray_angle_rad, spec.tray_reach_m)
        cube_m = _polar(random, spec.cube_angle_rad, spec.cube_reach_m)
        while np.hypot(*(cube_m - tray_m)) < spec.apart_m:
            cube_m = _polar(random, spec.cube_angle_rad, spec.cube_reach_m)
        self.cube = Cube(
            spec.cube,
            spec.tray,
            position_m=np.append(cube_m, spec.cube.side_m / 2),
            yaw_rad=float(random.uniform(-np.pi / 4, np.pi / 4)),
            tray_m=tray_m,
        )
        pan, reach, height = random.uniform(-1.0, 1.0, 3) * spec.home_spread
        pose = TipPose(
            pan_rad=spec.home.pan_rad + pan,
            reach_m=spec.home.reach_m + reach,
            height_m=spec.home.height_m + height,
        )
        gripper = random.uniform(*spec.gripper_rad)
        self.arm = ArmDynamics(spec.arm, np.append(inverse(spec.arm, pose), gripper))
        self._tray_boxes = tray_boxes(spec.tray, tray_m)

    @property
    def success(self) -> bool:
        """The cube lies in the tray, let go and at rest."""
        return self.cube.in_tray and self.cube.resting

    @property
    def timed_out(self) -> bool:
        return self.elapsed_s >= self.spec.time_limit_s

    def advance(self, duration_s: float) -> None:
        """Let physics run for ``duration_s``, in whole substeps, under the last command."""
        for _ in range(max(round(duration_s / self.spec.substep_s), 1)):
            self.substep()

    def substep(self) -> None:
        """One step of ``spec.substep_s``: the cube first, since it may block the fingers."""
        dt_s = self.spec.substep_s
        arm = self.arm
        least_m = self.cube.step(dt_s, tip=arm.tip, opening_m=arm.opening_m)
        arm.step(dt_s, least_gripper_rad=least_m / arm.spec.opening_m_per_rad)
        self.elapsed_s += dt_s

    def step(self, action: FloatArray) -> None:
        """One period of the policy: the command goes linearly from the last to ``action`` (5,)."""
        start = self.arm.commands_rad.copy()
        target = np.asarray(action, dtype=np.float64)
        steps = round(1.0 / (self.spec.policy_rate_hz * self.spec.substep_s))
        for index in range(1, steps + 1):
            self.arm.command(start + (target - start) * (index / steps))
            self.substep()

    def picture(self) -> Picture:
        """What there is to see now; drawing it may take place later, on another thread."""
        spec, arm = self.spec.arm, self.arm.positions_rad
        boxes = (*self._tray_boxes, cube_box(self.cube), *arm_boxes(spec, arm))
        return Picture(boxes=boxes, wrist=wrist_view(spec, arm))

    def render(self) -> Mapping[str, ImageArray]:
        """What both cameras see now: by camera, (240, 320, 3) uint8 RGB."""
        return self._eyes.draw(self.picture())


def _polar(
    random: np.random.Generator,
    angle_rad: tuple[float, float],
    reach_m: tuple[float, float],
) -> FloatArray:
    """A point (2,) of a ring sector, uniform in angle and in distance."""
    angle, reach = random.uniform(*angle_rad), random.uniform(*reach_m)
    return np.array([reach * np.cos(angle), reach * np.sin(angle)])

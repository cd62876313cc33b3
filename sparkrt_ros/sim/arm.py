"""A small desktop arm: geometry, kinematics and joint dynamics.

Frame ``base``: origin on the table under the pan axis, x forward, y left, z up. Metres, radians.
Joints: ``shoulder_pan`` turns about z. ``shoulder_lift`` is 0 with the upper arm upright and
positive leaning forward; ``elbow_flex`` and ``wrist_flex`` bend the next link downwards.
``gripper`` is the angle of the pinion that drives two parallel fingers: 0 closed, 1 wide open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ActionError

FloatArray = npt.NDArray[np.float64]

JOINT_NAMES = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'gripper')
ARM_JOINTS = 4
DOWN_RAD = -math.pi / 2


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """Sizes, limits and servo constants; five joints in the order of ``JOINT_NAMES``."""

    shoulder_height_m: float = 0.12
    upper_arm_m: float = 0.20
    forearm_m: float = 0.18
    hand_m: float = 0.13
    opening_m_per_rad: float = 0.075
    lower_rad: tuple[float, ...] = (-1.9, -0.9, 0.0, -1.4, 0.0)
    upper_rad: tuple[float, ...] = (1.9, 1.9, 2.7, 2.3, 1.0)
    max_velocity_rad_s: tuple[float, ...] = (3.0, 3.0, 3.0, 4.0, 3.0)
    max_acceleration_rad_s2: tuple[float, ...] = (40.0, 40.0, 40.0, 50.0, 60.0)
    natural_frequency_rad_s: tuple[float, ...] = (18.0, 18.0, 18.0, 20.0, 25.0)


@dataclass(frozen=True, kw_only=True)
class TipPose:
    """Point between the fingertips: heading about z, reach, height and pitch of the hand."""

    pan_rad: float
    reach_m: float
    height_m: float
    pitch_rad: float = DOWN_RAD

    @property
    def position_m(self) -> FloatArray:
        """(3,) float64 in ``base``."""
        x = self.reach_m * math.cos(self.pan_rad)
        y = self.reach_m * math.sin(self.pan_rad)
        return np.array([x, y, self.height_m])


def link_pitches(positions: FloatArray) -> tuple[float, float, float]:
    """Pitch above the horizon of upper arm, forearm and hand [rad] for joints (5,) [rad]."""
    upper = math.pi / 2 - float(positions[1])
    forearm = upper - float(positions[2])
    return upper, forearm, forearm - float(positions[3])


def forward(spec: ArmSpec, positions: FloatArray) -> TipPose:
    """Tip pose for joint positions (5,) [rad]."""
    upper, forearm, hand = link_pitches(positions)
    links = ((spec.upper_arm_m, upper), (spec.forearm_m, forearm), (spec.hand_m, hand))
    reach = sum(length * math.cos(pitch) for length, pitch in links)
    height = spec.shoulder_height_m + sum(length * math.sin(pitch) for length, pitch in links)
    return TipPose(pan_rad=float(positions[0]), reach_m=reach, height_m=height, pitch_rad=hand)


def inverse(spec: ArmSpec, pose: TipPose) -> FloatArray:
    """Arm joints (4,) [rad], elbow up, that put the tip at ``pose``.

    A pose beyond the arm's length is pulled onto its reach (law of cosines, clamped), and the
    result is clamped to the joint limits, so that a caller steering by it never gets a jump.
    """
    along = pose.reach_m - spec.hand_m * math.cos(pose.pitch_rad)
    above = pose.height_m - spec.hand_m * math.sin(pose.pitch_rad) - spec.shoulder_height_m
    a, b = spec.upper_arm_m, spec.forearm_m
    distance = min(max(math.hypot(along, above), abs(a - b) + 1e-6), a + b - 1e-6)
    bend = math.acos((a * a + b * b - distance * distance) / (2 * a * b))
    lift = math.acos((a * a + distance * distance - b * b) / (2 * a * distance))
    upper = math.atan2(above, along) + lift
    elbow = math.pi - bend
    joints = np.array([pose.pan_rad, math.pi / 2 - upper, elbow, upper - elbow - pose.pitch_rad])
    return np.clip(joints, spec.lower_rad[:ARM_JOINTS], spec.upper_rad[:ARM_JOINTS])


class ArmDynamics:
    """Joints that follow commanded positions as critically damped second-order servos.

    Acceleration, velocity and position limits hold at every step; integration is semi-implicit
    Euler. ``positions_rad``, ``velocities_rad_s`` and ``commands_rad`` are (5,) float64.
    """

    def __init__(self, spec: ArmSpec, positions_rad: FloatArray) -> None:
        self.spec = spec
        self._lower = np.array(spec.lower_rad)
        self._upper = np.array(spec.upper_rad)
        self._max_velocity = np.array(spec.max_velocity_rad_s)
        self._max_acceleration = np.array(spec.max_acceleration_rad_s2)
        frequency = np.array(spec.natural_frequency_rad_s)
        self._stiffness = frequency**2
        self._damping = 2 * frequency
        self.positions_rad = np.clip(positions_rad, self._lower, self._upper)
        self.velocities_rad_s = np.zeros(len(JOINT_NAMES))
        self.commands_rad = self.positions_rad.copy()

    @property
    def opening_m(self) -> float:
        """Distance between the fingers [m]."""
        return float(self.positions_rad[-1]) * self.spec.opening_m_per_rad

    @property
    def tip(self) -> TipPose:
        return forward(self.spec, self.positions_rad)

    def command(self, positions_rad: FloatArray) -> None:
        """Take a new target (5,) [rad], clamped to the limits.

        Raises ActionError if it is mis-sized or not finite; the old target then stays.
        """
        target = np.asarray(positions_rad, dtype=np.float64)
        expected = f'{len(JOINT_NAMES)} finite joint positions'
        if target.shape != (len(JOINT_NAMES),):
            raise ActionError('arm command', found=f'shape {target.shape}', expected=expected)
        if not np.isfinite(target).all():
            raise ActionError('arm command', found=str(target.tolist()), expected=expected)
        self.commands_rad = np.clip(target, self._lower, self._upper)

    def step(self, dt_s: float, *, least_gripper_rad: float = 0.0) -> None:
        """Advance by ``dt_s``; something between the fingers blocks at ``least_gripper_rad``."""
        before = self.positions_rad
        pull = self._stiffness * (self.commands_rad - before)
        pull -= self._damping * self.velocities_rad_s
        np.clip(pull, -self._max_acceleration, self._max_acceleration, out=pull)
        velocities = self.velocities_rad_s + dt_s * pull
        np.clip(velocities, -self._max_velocity, self._max_velocity, out=velocities)
        after = before + dt_s * velocities
        free = np.clip(after, self._lower, self._upper)
        free[-1] = max(free[-1], min(least_gripper_rad, before[-1]))
        velocities[free != after] = 0.0
        self.positions_rad, self.velocities_rad_s = free, velocities
        if forward(self.spec, free).height_m < 0.0:
            self._rest_on_table(before)

    def _rest_on_table(self, before: FloatArray) -> None:
        """Keep the pose whose fingertips touch the table; pan and gripper stay free to move."""
        self.positions_rad[1:ARM_JOINTS] = before[1:ARM_JOINTS]
        self.velocities_rad_s[1:ARM_JOINTS] = 0.0

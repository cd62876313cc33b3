"""What a robot contract says, as frozen values.

A contract binds the names, units and order a policy was trained with to the topics of one robot.
Sizes: ``S`` entries of the state vector, ``A`` of the action vector, ``T`` rows of a chunk.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.units import (
    VELOCITY_UNITS,
    AffineMap,
    Float64Array,
    unit_factor_and_base,
)
from sparkrt_ros.runtime.types import FloatArray

# contract word -> ROS type
CAMERA_TYPES = {
    'image': 'sensor_msgs/msg/Image',
    'compressed_image': 'sensor_msgs/msg/CompressedImage',
}
STATE_TYPES = {
    'joint_state': 'sensor_msgs/msg/JointState',
    'float64_multi_array': 'std_msgs/msg/Float64MultiArray',
}
OUTPUT_TYPES = {
    'float64_multi_array': 'std_msgs/msg/Float64MultiArray',
    'joint_trajectory': 'trajectory_msgs/msg/JointTrajectory',
    'joint_state': 'sensor_msgs/msg/JointState',
    'twist': 'geometry_msgs/msg/Twist',
    'twist_stamped': 'geometry_msgs/msg/TwistStamped',
}
TWIST_COMPONENTS = tuple(f'{part}.{axis}' for part in ('linear', 'angular') for axis in 'xyz')
STATE_FIELDS = ('position', 'velocity', 'effort')
ALIGNMENTS = ('latest', 'asof', 'hold')
CLOCKS = ('header', 'receive')
ZERO_STAMPS = ('refuse', 'receive')
INTERPOLATIONS = ('nearest', 'linear', 'cubic', 'area', 'lanczos')


@dataclass(frozen=True, kw_only=True)
class StreamTiming:
    """How samples of one stream are dated, chosen for a snapshot, and given up.

    align: ``latest`` sample; ``asof``: newest at or before the reference time; ``hold``: like
        ``asof`` and never too old once received (for values published only when they change).
    clock: ``header`` stamp, or time of ``receive``.
    zero_stamp: what a header stamp of zero means: ``refuse`` the message, or date it by
        ``receive`` time.
    """

    max_age_s: float
    align: str = 'asof'
    clock: str = 'header'
    zero_stamp: str = 'refuse'

    @property
    def by_header_alone(self) -> bool:
        """Whether a message has the same date whenever somebody looks at it."""
        return self.clock == 'header' and self.zero_stamp == 'refuse'


@dataclass(frozen=True, kw_only=True)
class CameraSpec:
    """One camera: where its pictures come from and how they become the policy's input.

    key: the policy's name of this camera, ``observation.images.front``.
    type: a key of ``CAMERA_TYPES``.
    encoding: overrides the encoding in the message; needed for those without a colour order.
    source_size: (width, height) the driver sends, where known; any other size is refused.
    crop: (x, y, width, height) in source pixels, applied before ``resize``; None: whole picture.
    resize: (width, height), as in training; None: size unchanged.
    depth_range_m: (near, far) mapped to 0..255, for a depth stream used as a picture.
    max_frozen_s: refuse pictures that have stayed the same, bit for bit, for longer than this
        although their stamps went on; None: any picture is good, as of a simulated camera.
    """

    name: str
    key: str
    topic: str
    type: str
    timing: StreamTiming
    encoding: str | None = None
    source_size: tuple[int, int] | None = None
    crop: tuple[int, int, int, int] | None = None
    resize: tuple[int, int] | None = None
    interpolation: str = 'area'
    depth_range_m: tuple[float, float] | None = None
    max_frozen_s: float | None = None

    @property
    def max_age_s(self) -> float:
        return self.timing.max_age_s

    @property
    def output_size(self) -> tuple[int, int] | None:
        """(width, height) that reaches the policy; None while only the driver knows it."""
        if self.resize is not None:
            return self.resize
        return self.source_size if self.crop is None else self.crop[2:]


@dataclass(frozen=True, kw_only=True)
class JointSpec:
    """One scalar channel of the robot: a joint, or one component of a base velocity.

    unit: the policy's, one of ``units.UNITS``. SI = sign * (policy in SI) + offset.
    range: SI values [rad or m] at both ends of a ``range_*`` unit; None for other units.
        Apart from the limits, so that narrowing these never rescales what the policy sees.
    min, max: limits of the command in SI: rad or m, for velocity units rad/s or m/s.
    max_velocity: [rad/s or m/s]; None for velocity units.
    max_acceleration: [rad/s^2 or m/s^2]; None: not limited.
    max_step: largest change from one command to the next, whatever the rate of commands, in the
        unit of the limits; None: not limited.
    urdf_joint: its name in the URDF; None: its own name, '': it is not in there.
    """

    name: str
    unit: str
    min: float
    max: float
    sign: int = 1
    offset: float = 0.0
    range: tuple[float, float] | None = None
    max_velocity: float | None = None
    max_acceleration: float | None = None
    max_step: float | None = None
    urdf_joint: str | None = None

    @property
    def is_velocity(self) -> bool:
        """Whether the command is a velocity: 0 stops such a joint, not its last value."""
        return self.unit in VELOCITY_UNITS

    @property
    def scale_and_bias(self) -> tuple[float, float]:
        """``(scale, bias)`` of si = scale * policy + bias."""
        factor, base = unit_factor_and_base(self.unit, self.range)
        return self.sign * factor, self.sign * base + self.offset


@dataclass(frozen=True, kw_only=True)
class StateStream:
    """One topic that reports joints.

    type: a key of ``STATE_TYPES``.
    joints: contract names that come from here; message_names: the same joints as the message
        calls them. Both empty: every joint of the contract, under its own name (``joint_state``).
    field: what a ``float64_multi_array`` holds; its values are in the order of ``joints``.
    """

    name: str
    topic: str
    type: str
    timing: StreamTiming
    joints: tuple[str, ...] = ()
    message_names: tuple[str, ...] = ()
    field: str = 'position'

    @property
    def max_age_s(self) -> float:
        return self.timing.max_age_s


@dataclass(frozen=True, kw_only=True, order=True)
class StateEntry:
    """One element of ``observation.state``."""

    joint: str
    field: str = 'position'

    def __str__(self) -> str:
        return self.joint if self.field == 'position' else f'{self.joint}.{self.field}'


@dataclass(frozen=True, kw_only=True)
class OutputGroup:
    """One topic that takes commands for a part of the action vector.

    type: a key of ``OUTPUT_TYPES``.
    joints: contract names in the order the controller wants; message_names: what the message
        calls them, for a twist its components (``linear.x``).
    time_from_start_s: when a trajectory's first row is due after its arrival.
    frame_id: of a ``twist_stamped``.
    """

    name: str
    topic: str
    type: str
    joints: tuple[str, ...]
    message_names: tuple[str, ...]
    time_from_start_s: float | None = None
    frame_id: str = ''


@dataclass(frozen=True, kw_only=True, eq=False)
class ActionLimits:
    """Limits of the command vector, SI, each (A,) float64; inf where there is none.

    low, high: of the command itself. max_rate: of its first derivative (velocity of a position
    joint, acceleration of a velocity joint); max_rate_change: of its second derivative.
    max_step: of its change from one command to the next; None: no joint has such a limit.
    """

    low: Float64Array
    high: Float64Array
    max_rate: Float64Array
    max_rate_change: Float64Array
    max_step: Float64Array | None = None


@dataclass(frozen=True, kw_only=True)
class RobotContract:
    """Everything that ties a policy to one robot.

    policy_rate_hz: rate of a chunk's rows, the frame rate of the training data.
    control_rate_hz: rate of commands.
    hold_s: how long the streamer holds after the actions end before it stops sending.
    max_skew_s: largest difference between the stamps within one snapshot.
    source: the file it was read from (not part of the digest).
    """

    name: str
    policy_rate_hz: float
    control_rate_hz: float
    hold_s: float
    max_skew_s: float
    joints: tuple[JointSpec, ...]
    action: tuple[str, ...]
    outputs: tuple[OutputGroup, ...]
    cameras: tuple[CameraSpec, ...] = ()
    state: tuple[StateEntry, ...] = ()
    state_streams: tuple[StateStream, ...] = ()
    description: str = ''
    source: str = field(default='', compare=False)

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of the meaning: comments, key order and the file's place do not change it."""
        content = asdict(self)
        content.pop('source')
        text = json.dumps(content, sort_keys=True, separators=(',', ':'))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def joints_by_name(self) -> dict[str, JointSpec]:
        return {joint.name: joint for joint in self.joints}

    @property
    def action_joints(self) -> tuple[JointSpec, ...]:
        """The joints of the action vector, in its order."""
        return tuple(self.joints_by_name[name] for name in self.action)

    @cached_property
    def state_map(self) -> AffineMap:
        """Policy <-> SI of the state vector; velocities and efforts take no offset."""
        pairs = [self._entry_scale_and_bias(entry) for entry in self.state]
        return _affine(pairs)

    @cached_property
    def action_map(self) -> AffineMap:
        """Policy <-> SI of the action vector."""
        return _affine([joint.scale_and_bias for joint in self.action_joints])

    def state_to_policy(self, state_si: npt.ArrayLike) -> FloatArray:
        """Convert (..., S) SI state to (..., S) float32 in policy units and order."""
        return self.state_map.to_policy(state_si).astype(np.float32)

    def action_to_si(self, action: npt.ArrayLike) -> Float64Array:
        """Convert (A,) or (T, A) actions in policy units to the same shape, float64 SI."""
        return self.action_map.to_si(action)

    def action_to_policy(self, action_si: npt.ArrayLike) -> FloatArray:
        """Convert (A,) or (T, A) SI actions to the same shape, float32 in policy units."""
        return self.action_map.to_policy(action_si).astype(np.float32)

    @cached_property
    def velocity_mask(self) -> npt.NDArray[np.bool_]:
        """(A,) bool: columns of the action that are velocities; hold and stop set these to 0."""
        return np.array([joint.is_velocity for joint in self.action_joints], dtype=np.bool_)

    @cached_property
    def action_limits(self) -> ActionLimits:
        joints = self.action_joints
        no_limit = float('inf')

        def column(values: list[float | None]) -> Float64Array:
            finite = [no_limit if value is None else value for value in values]
            return _frozen(np.array(finite, dtype=np.float64))

        return ActionLimits(
            low=column([j.min for j in joints]),
            high=column([j.max for j in joints]),
            max_rate=column(
                [j.max_acceleration if j.is_velocity else j.max_velocity for j in joints]
            ),
            max_rate_change=column(
                [None if j.is_velocity else j.max_acceleration for j in joints]
            ),
            max_step=column([j.max_step for j in joints]),
        )

    def output_columns(self, group: OutputGroup) -> npt.NDArray[np.intp]:
        """Columns of the action vector that ``group`` sends, in the group's own order."""
        return np.array([self.action.index(name) for name in group.joints], dtype=np.intp)

    def stream_joints(self, stream: StateStream) -> tuple[str, ...]:
        """Contract names of the joints ``stream`` may report."""
        return stream.joints or tuple(joint.name for joint in self.joints)

    def _entry_scale_and_bias(self, entry: StateEntry) -> tuple[float, float]:
        joint = self.joints_by_name[entry.joint]
        scale, bias = joint.scale_and_bias
        if entry.field == 'velocity' and not joint.is_velocity:
            return scale, 0.0
        # efforts stay in N or N m: only the joint's direction applies to them
        return (float(joint.sign), 0.0) if entry.field == 'effort' else (scale, bias)


def _affine(pairs: list[tuple[float, float]]) -> AffineMap:
    values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return AffineMap(scale=_frozen(values[:, 0]), bias=_frozen(values[:, 1]))


def _frozen(values: Float64Array) -> Float64Array:
    """Copy ``values`` into an array that no caller can change: it is shared by all of them."""
    result = values.copy()
    result.flags.writeable = False
    return result

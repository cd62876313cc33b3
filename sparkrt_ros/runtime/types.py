"""Values that travel between the parts of the runtime.

Shapes: ``H`` image rows, ``W`` image columns, ``S`` state size, ``A`` action size, ``T`` rows of
an action chunk (the horizon).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
ImageArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One synchronized view of the robot, in the policy's own units and order.

    images: by policy key (``observation.images.front``) or by its last part (``front``);
        each (H, W, 3) uint8 RGB.
    state: (S,) float32, or None for a policy without ``observation.state``.
    environment_state: (E,) float32, or None.
    task: the instruction, for policies that read one.
    stamp_ns: the reference time of the snapshot, in nanoseconds of the clock it was taken on.
    """

    images: Mapping[str, ImageArray] = field(default_factory=dict)
    state: FloatArray | None = None
    environment_state: FloatArray | None = None
    task: str | None = None
    stamp_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ActionChunk:
    """The actions one inference yielded; row ``i`` is due at ``observation_stamp_ns + i * dt``.

    actions: (T, A) float32, finite, never a view of a buffer that a later inference overwrites.
    joint_names: A names, the columns of ``actions``.
    observation_stamp_ns: time of the observation the chunk was computed from.
    dt_s: time between rows.
    epoch: rises at every reset and backward jump of time, and when another policy takes over;
        chunks of an older epoch are void.
    chunk_id: counts the chunks of one policy process, from 1.
    inference_time_s: what computing it took, preprocessing and postprocessing included.
    frozen_rows: so many rows the policy was told will be played from the chunk before, so that it
        goes on from them (real-time chunking); 0: it was told of no chunk.
    sample_stamps_ns: what the observation was made of: camera or joint topic (by its name in the
        contract) -> when its sample was taken.
    received_ns: when the last of these samples arrived.
    """

    actions: FloatArray
    joint_names: tuple[str, ...]
    observation_stamp_ns: int
    dt_s: float
    epoch: int = 0
    chunk_id: int = 0
    inference_time_s: float = 0.0
    frozen_rows: int = 0
    sample_stamps_ns: Mapping[str, int] = field(default_factory=dict)
    received_ns: int = 0

    @property
    def rows(self) -> int:
        return int(self.actions.shape[0])


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a policy needs and yields; everything a caller has to know to feed and follow it.

    image_shapes: policy key -> (C, H, W), in the order the policy consumes cameras.
    state_size, environment_state_size: 0 where the policy takes none.
    noise_shape: of the random start of one chunk; empty where the policy draws none.
    supports_rtc: whether a chunk can be told what it goes on from (real-time chunking).
    """

    model_type: str
    image_shapes: Mapping[str, tuple[int, int, int]]
    state_size: int
    environment_state_size: int
    action_size: int
    chunk_size: int
    n_action_steps: int
    requires_task: bool = False
    is_iterative: bool = False
    num_inference_steps: int = 1
    supports_temporal_ensemble: bool = False
    temporal_ensemble_coeff: float | None = None
    noise_shape: tuple[int, ...] = ()
    supports_rtc: bool = False

    @property
    def camera_keys(self) -> tuple[str, ...]:
        return tuple(self.image_shapes)

"""What a parity run found, as plain values: for the receipt, the report and the exit code.

Shapes: ``N`` chunks, ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.parity import Agreement
from sparkrt_ros.runtime.types import FloatArray, ImageArray

BANDS = ('pass', 'warn', 'fail')


@dataclass(frozen=True, kw_only=True)
class ChunkRecord:
    """One observation that was inferred from. Times in ns, as in the bag.

    reference_ns: reference time of the snapshot. taken_ns: when it was taken.
    samples_ns: stamp of the sample of each stream. See ``Snapshot`` for ages_s and skew_s.
    """

    index: int
    reference_ns: int
    taken_ns: int
    samples_ns: Mapping[str, int]
    ages_s: Mapping[str, float]
    skew_s: float


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of computing the actions.

    normalized: (N, T, A) in model space; None where only robot units are known (a recording).
    actions: (N, T, A) in SI units of the robot. inference_s: (N,); empty where nothing was run.
    receipt: what served, from ``Policy.receipt``.
    """

    label: str
    normalized: FloatArray | None
    actions: npt.NDArray[np.float64]
    inference_s: npt.NDArray[np.float64]
    receipt: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SpaceAgreement:
    """One arm against another in one space, ``model`` or ``robot``.

    chunks: of each chunk. joints: of each joint over all chunks. overall: over everything.
    """

    space: str
    overall: Agreement
    chunks: tuple[Agreement, ...]
    joints: tuple[Agreement, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A candidate against the reference, judged.

    band: ``pass``, ``warn`` or ``fail``; reasons: why it is not ``pass``.
    worst_chunk: index of the chunk with the largest difference in the judged space.
    of_commands: whether commands over time were compared, not chunks: then chunk i stands for the
        time in which it was the newest, with NaN where nothing was recorded meanwhile.
    """

    candidate: str
    reference: str
    band: str
    reasons: tuple[str, ...]
    spaces: tuple[SpaceAgreement, ...]
    worst_chunk: int
    follows_input: bool
    thresholds: Mapping[str, float] = field(default_factory=dict)
    of_commands: bool = False


@dataclass(frozen=True, kw_only=True)
class StreamHistory:
    """What one stream brought: (M,) stamps and arrival times in ns, and how many were dropped."""

    name: str
    topic: str
    stamps_ns: npt.NDArray[np.int64]
    received_ns: npt.NDArray[np.int64]
    dropped: int


@dataclass(frozen=True, kw_only=True)
class CommandTrack:
    """Commands over time: of the streamer, offline, for one arm's chunks; or as recorded.

    times_ns: (K,) int64. commands: (K, A) SI; NaN where nothing was commanded.
    """

    label: str
    times_ns: npt.NDArray[np.int64]
    commands: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something worth seeing on the time line: ``dropped``, ``stale``, ``skew``, ``jump`` …"""

    time_ns: int
    kind: str
    stream: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ParityResult:
    """Everything about one run.

    A comparison of commands names tracks of ``commands`` (``recorded`` is the reference's label)
    instead of arms, and has the space ``robot`` alone; see ``Comparison.of_commands``.
    joint_names and units (SI): of the A columns. worst_frames: candidate label -> camera key ->
    picture (H, W, 3) RGB of that comparison's worst chunk. provenance: digests of bag,
    checkpoint and configuration, environment, options.
    """

    bag: str
    robot: str
    joint_names: tuple[str, ...]
    units: tuple[str, ...]
    dt_s: float
    records: tuple[ChunkRecord, ...]
    arms: tuple[Arm, ...]
    comparisons: tuple[Comparison, ...]
    streams: tuple[StreamHistory, ...]
    events: tuple[Event, ...]
    worst_frames: Mapping[str, Mapping[str, ImageArray]]
    provenance: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    commands: tuple[CommandTrack, ...] = ()

    @property
    def band(self) -> str:
        """The worst band of all comparisons."""
        return max((c.band for c in self.comparisons), key=BANDS.index, default='pass')

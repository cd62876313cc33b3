"""What the tests of the timeline share."""

from __future__ import annotations

import numpy as np

from sparkrt_ros.runtime.chunking.timeline import Timeline
from sparkrt_ros.runtime.types import ActionChunk

NAMES = ('pan', 'lift')
DT_S = 0.02
DT_NS = 20_000_000


def timeline(*, mode: str = 'queue', coeff: float = 0.01, names: tuple[str, ...] = NAMES):
    return Timeline(joint_names=names, mode=mode, temporal_ensemble_coeff=coeff)


def ramp(rows: int) -> np.ndarray:
    """(rows, 2) float64: i, -i."""
    return np.arange(rows, dtype=np.float64)[:, None] * np.array([1.0, -1.0])


def chunk(
    rows: np.ndarray,
    *,
    stamp_ns: int,
    chunk_id: int = 1,
    dt_s: float = DT_S,
    epoch: int = 0,
    names: tuple[str, ...] = NAMES,
) -> ActionChunk:
    return ActionChunk(
        actions=rows,
        joint_names=names,
        observation_stamp_ns=stamp_ns,
        dt_s=dt_s,
        epoch=epoch,
        chunk_id=chunk_id,
    )


def sample(held: Timeline, now_ns: int) -> list[float] | None:
    """The action due, or None on underrun."""
    out = np.full(len(held.joint_names), np.nan)
    return out.tolist() if held.sample(now_ns, out=out) else None


def drive(held: Timeline, begin_ns: int, end_ns: int, *, step_ns: int = DT_NS // 4) -> None:
    """Sample as a control loop does, both ends included."""
    for now_ns in range(begin_ns, end_ns + 1, step_ns):
        sample(held, now_ns)

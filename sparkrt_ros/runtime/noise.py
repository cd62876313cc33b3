"""The random start of iterative policies, so that every arm begins each chunk alike."""

from __future__ import annotations

import numpy as np

from sparkrt_ros.runtime.types import FloatArray


def chunk_noise(seed: int, index: int, shape: tuple[int, ...]) -> FloatArray | None:
    """Standard normal float32 of ``shape`` for chunk ``index``; None where shape is empty.

    One generator for each chunk (Philox, keyed by seed and index): the same on every machine, and
    independent of which chunks were computed before.
    """
    if not shape:
        return None
    generator = np.random.Generator(np.random.Philox(key=[seed, index]))
    return generator.standard_normal(shape, dtype=np.float32)

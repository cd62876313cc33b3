"""Numbers that any environment can derive from a name: weights, images and vectors.

A golden file then holds outputs only: whoever checks it derives the same weights and inputs.
Values come from the raw bits of ``numpy.random.Philox``, whose stream is fixed for all time, with
the SHA-256 of the name as its key. Needs numpy alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
ImageArray = npt.NDArray[np.uint8]

_QUANTILES = {
    'min': -2.9,
    'max': 3.1,
    'q01': -2.2,
    'q10': -1.2,
    'q50': 0.1,
    'q90': 1.3,
    'q99': 2.4,
}
_TO_UNIT = np.float32(2.0**-24)


def seeded_uniform(name: str, shape: tuple[int, ...]) -> FloatArray:
    """Uniform float32 values in [0, 1)."""
    count = math.prod(shape)
    bits = _bits(name, -(-count // 2)).view(np.uint32)[:count]
    return ((bits >> 8).astype(np.float32) * _TO_UNIT).reshape(shape)


def seeded_vector(name: str, shape: tuple[int, ...]) -> FloatArray:
    """Float32 values of mean 0 and standard deviation 1, uniform in +-sqrt(3)."""
    return (seeded_uniform(name, shape) * 2 - 1) * np.float32(math.sqrt(3.0))


def seeded_image(name: str, height: int, width: int) -> ImageArray:
    """A picture (height, width, 3) uint8: noise on a gradient, so that places differ."""
    noise = seeded_uniform(name, (height, width, 3)) * np.float32(128)
    rows = np.linspace(0, 80, height, dtype=np.float32)[:, None, None]
    columns = np.linspace(0, 40, width, dtype=np.float32)[None, :, None]
    return (noise + rows + columns).astype(np.uint8)


def seeded_tensor(name: str, shape: tuple[int, ...]) -> FloatArray:
    """The weight called ``name``, scaled by what its name and shape say it is.

    Norm weights lie in [0.8, 1.2], running variances in [0.5, 1.5], biases and running means are
    small; everything else has the standard deviation that keeps activations in range (He for
    convolutions, 1/sqrt(fan-in) for the rest, 1 for embeddings).
    """
    leaf = name.rsplit('.', 1)[-1]
    if leaf == 'running_var':
        return seeded_uniform(name, shape) + np.float32(0.5)
    if leaf == 'weight' and len(shape) == 1:
        return seeded_uniform(name, shape) * np.float32(0.4) + np.float32(0.8)
    if len(shape) == 1:
        return seeded_vector(name, shape) * np.float32(0.1)
    if 'embed' in name:
        return seeded_vector(name, shape)
    gain = 2.0 if len(shape) == 4 else 1.0
    return seeded_vector(name, shape) * np.float32(math.sqrt(gain / math.prod(shape[1:])))


def seeded_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, FloatArray]:
    """A whole state dict; names as in the policy, without a ``model.`` prefix."""
    return {name: seeded_tensor(name, shape) for name, shape in shapes.items()}


def seeded_statistics(
    features: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, FloatArray]]:
    """Every statistic LeRobot may store, by feature; images (C, 1, 1), vectors (N,).

    ``features`` is as ``config.json`` writes them. The quantiles are ordered, as real ones are.
    """
    statistics = {}
    for key, feature in features.items():
        image = feature['type'] == 'VISUAL'
        shape = (feature['shape'][0], 1, 1) if image else tuple(feature['shape'])
        mean = seeded_uniform(f'{key}.mean', shape) * np.float32(0.4) + np.float32(0.3)
        std = seeded_uniform(f'{key}.std', shape) * np.float32(0.3) + np.float32(0.1)
        values = {name: mean + np.float32(factor) * std for name, factor in _QUANTILES.items()}
        statistics[key] = {'mean': mean, 'std': std, **values}
    return statistics


def _bits(name: str, count: int) -> npt.NDArray[np.uint64]:
    digest = hashlib.sha256(name.encode()).digest()
    key = np.frombuffer(digest[:16], dtype='<u8').astype(np.uint64)
    return np.random.Philox(key=key).random_raw(count).astype('<u8')

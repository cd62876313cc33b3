"""Eight-bit layers computed with plain integers, for judging those of oneDNN by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sparkrt_ros.runtime.cpu import INT8, cpu_flags
from sparkrt_ros.runtime.kernels.forms import ConvWeights
from sparkrt_ros.runtime.precision.calibration import Calibration, Levels, Range

needs_int8 = pytest.mark.skipif(
    INT8.isdisjoint(cpu_flags()), reason='this processor has no int8 instructions'
)
CPU = torch.device('cpu')


def span(low: float, high: float) -> Range:
    return Range(low=np.array([low]), high=np.array([high]))


def calibration(**ranges: Range) -> Calibration:
    return Calibration(ranges=ranges, coverage=1.0, source='test', observations=1)


def nearest_levels(x: np.ndarray, levels: Levels, axis: int) -> np.ndarray:
    """Values to levels as float64 integers in 0..255; axis: that of the channels."""
    shape = [1] * x.ndim
    shape[axis] = -1
    low, step = levels.low.reshape(shape), levels.step.reshape(shape)
    return np.clip(np.rint((x.astype(np.float64) - low) / step), 0, 255)


def near_levels(
    rng: np.random.Generator, levels: Levels, shape: tuple[int, ...], *, axis: int
) -> np.ndarray:
    """Random float32 values, none so near to the middle of two levels that either might do."""
    at = [1] * len(shape)
    at[axis] = -1
    where = rng.integers(0, 256, shape) + rng.uniform(-0.4, 0.4, shape)
    x = levels.low.reshape(at) + where * levels.step.reshape(at)
    return np.broadcast_to(x, shape).astype(np.float32)


def rounded_weights(weight: np.ndarray, reads: Levels) -> tuple[np.ndarray, np.ndarray]:
    """Signed levels (O, I, ...) of weights times the input's step, and the step of each output."""
    shape = (1, -1, *[1] * (weight.ndim - 2))
    wide = weight.astype(np.float64) * reads.step.reshape(shape)
    steps = (np.abs(wide).reshape(len(wide), -1).max(axis=1) / 127).astype(np.float32)
    steps = np.where(steps == 0, 1, steps).astype(np.float64)
    return np.rint(wide / steps.reshape(-1, *[1] * (weight.ndim - 1))), steps


def conv_reference(x: np.ndarray, weights: ConvWeights, reads: Levels) -> np.ndarray:
    """``conv(x)``, without the bias, of rounded input and weights: (B, O, h, w) float64.

    The border is padded with the level nearest to 0.
    """
    rounded, steps = rounded_weights(weights.weight.numpy(), reads)
    levels = nearest_levels(x, reads, axis=1)
    down, across = weights.padding
    edge = nearest_levels(np.zeros((1, x.shape[1], 1, 1)), reads, axis=1)
    height, width = x.shape[2] + 2 * down, x.shape[3] + 2 * across
    full = np.broadcast_to(edge, (*x.shape[:2], height, width)).copy()
    full[:, :, down : down + x.shape[2], across : across + x.shape[3]] = levels
    # Input values in units of their step; these are what the integers stand for, exactly.
    offset = np.broadcast_to(reads.low / reads.step, x.shape[1]).reshape(1, -1, 1, 1)
    total = F.conv2d(
        torch.from_numpy(full + offset),
        torch.from_numpy(rounded),
        None,
        weights.stride,
        0,
        weights.dilation,
    )
    return total.numpy() * steps.reshape(1, -1, 1, 1)


def linear_reference(x: np.ndarray, weight: np.ndarray, reads: Levels) -> np.ndarray:
    """``x W`` of rounded input and weights: (M, O) float64."""
    rounded, steps = rounded_weights(weight, reads)
    values = nearest_levels(x, reads, axis=1) + reads.low / reads.step
    return values @ rounded.T * steps


def values_of(found: torch.Tensor, levels: Levels) -> np.ndarray:
    """What bytes mean."""
    assert found.dtype == torch.uint8
    return levels.low[0] + found.numpy().astype(np.float64) * levels.step[0]

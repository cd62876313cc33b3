"""Temporal ensembling: the weighted mean of what all chunks so far say about the same step.

Imports no torch. Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import math

import numpy as np

from sparkrt_ros.runtime.errors import ActionError, ConfigError
from sparkrt_ros.runtime.types import FloatArray

_ONCE = np.ones((1, 1), dtype=np.int64)


def ensemble_weights(coefficient: float, chunk_size: int) -> FloatArray:
    """``w_i = exp(-coefficient * i)`` (chunk_size,) float32, ``i = 0`` the oldest prediction.

    Correctly rounded; a library's own exponential may differ in the last bit.
    """
    exponent = np.float32(-coefficient) * np.arange(chunk_size, dtype=np.float32)
    with np.errstate(over='ignore'):
        return np.exp(exponent.astype(np.float64)).astype(np.float32)


class TemporalEnsembler:
    """Algorithm 2 of arXiv:2304.13705 as a running mean, in the order of operations of LeRobot.

    A step that ``n`` chunks have predicted holds their mean weighted by ``w_0 .. w_(n-1)``, the
    oldest first, so a positive coefficient favours the oldest. One update per control step.

    weights: (chunk_size,) float32, non-negative; ``ensemble_weights`` where None. Give those of
        another library to reproduce its results to the last bit.
    Raises ConfigError for a coefficient that is not finite, or weights that do not fit.
    """

    def __init__(
        self, *, coefficient: float, chunk_size: int, weights: FloatArray | None = None
    ) -> None:
        if not math.isfinite(coefficient):
            raise ConfigError(
                'temporal_ensemble_coeff', found=str(coefficient), expected='a finite number'
            )
        if weights is None:
            weights = ensemble_weights(coefficient, chunk_size)
        self._check_weights(weights, coefficient=coefficient, chunk_size=chunk_size)
        self._chunk_size = chunk_size
        self._weights = weights
        # Summed in double and rounded once per entry, as torch sums fp32 on a CPU.
        self._sums = np.cumsum(weights.astype(np.float64)).astype(np.float32)
        self._mean: FloatArray | None = None
        self._counts = np.ones((chunk_size, 1), dtype=np.int64)

    def update(self, chunk: FloatArray) -> FloatArray:
        """Take the newest chunk (T, A) float32, return the action (A,) for this step.

        Raises ActionError, and changes nothing, when the chunk does not fit those before it.
        """
        self._check_chunk(chunk)
        if self._mean is None:
            mean = chunk.copy()
            counts = np.ones((self._chunk_size, 1), dtype=np.int64)
        else:
            mean, counts = self._merge(self._mean, self._counts, chunk)
        self._mean, self._counts = mean[1:], counts[1:]
        action: FloatArray = mean[0].copy()
        return action

    def reset(self) -> None:
        """Forget all chunks."""
        self._mean = None

    def _merge(
        self, mean: FloatArray, counts: np.ndarray, chunk: FloatArray
    ) -> tuple[FloatArray, np.ndarray]:
        """Extend the running mean of (T - 1) steps by a chunk of T rows."""
        merged = mean * self._sums[counts - 1]
        merged += chunk[:-1] * self._weights[counts]
        merged /= self._sums[counts]
        grown = np.minimum(counts + 1, self._chunk_size)
        return np.concatenate((merged, chunk[-1:])), np.concatenate((grown, _ONCE))

    def _check_chunk(self, chunk: FloatArray) -> None:
        width = None if self._mean is None else self._mean.shape[1]
        fits = chunk.ndim == 2 and chunk.shape[0] == self._chunk_size
        if not fits or (width is not None and chunk.shape[1] != width):
            raise ActionError(
                'temporal ensembler',
                found=f'a chunk of shape {chunk.shape}',
                expected=f'({self._chunk_size}, {"actions" if width is None else width})',
            )

    @staticmethod
    def _check_weights(weights: FloatArray, *, coefficient: float, chunk_size: int) -> None:
        usable = weights.shape == (chunk_size,) and bool((weights >= 0).all())
        # A sum beyond fp32 would make every later action NaN.
        if not usable or not weights.sum(dtype=np.float32) < np.inf:
            raise ConfigError(
                'temporal_ensemble_coeff',
                found=f'{coefficient}, whose weights of shape {weights.shape} reach '
                f'{weights.max(initial=0.0):g}',
                expected=f'{chunk_size} weights with a finite sum in fp32',
                remedy='choose a coefficient closer to 0 (the original ACT uses 0.01)',
            )

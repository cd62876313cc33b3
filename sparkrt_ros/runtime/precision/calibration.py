"""What is known about the tensors inside a network: the ranges their values lie in.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import BackendError

Values = npt.NDArray[np.float64]

TOP = 255
"""The highest level of a byte."""
HEADROOM = 1.1
"""Observations to come may reach further than those of the calibration did."""

# Of what is narrower, float32 could not hold the reciprocal of a step.
_NARROWEST = 1e-30


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Evenly spaced values: level ``q`` of 0..255 means ``low + q * step``.

    low, step: (1,) for a whole tensor, or one for each of its channels; every step is above 0.
    """

    low: Values
    step: Values


@dataclass(frozen=True, kw_only=True)
class Range:
    """The interval that values lie in, or are cut off to.

    low, high: (1,) for a whole tensor, or one for each of its channels.
    is_final: whether no value can lie outside (pixels of a camera), so that no headroom is needed.
    """

    low: Values
    high: Values
    is_final: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and (self.low <= self.high).all()):
            raise BackendError(
                'calibration',
                found=f'a range from {self.low} to {self.high}',
                expected='finite values, the low ones not above the high ones',
                remedy='calibrate with observations for which the policy yields finite actions',
            )

    def join(self, other: Range) -> Range:
        """The smallest interval that holds both."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Range(low=low, high=high, is_final=self.is_final)

    def cut(self, size: float) -> Range:
        """What of it lies between ``-size`` and ``size``."""
        return Range(low=self.low.clip(-size, size), high=self.high.clip(-size, size))

    def levels(self) -> Levels:
        """Levels from end to end.

        Unless it is final it gets its headroom and reaches to 0, which is exact where no value is
        below it: what ReLU and padding make 0.
        """
        low, high = self.low, self.high
        if not self.is_final:
            low, high = np.minimum(low, 0) * HEADROOM, np.maximum(high, 0) * HEADROOM
        width = high - low
        return Levels(low=low, step=np.where(width > _NARROWEST, width, TOP) / TOP)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Ranges by the name of a tensor (see ``kernels.forms.Wires``), and where they are from.

    coverage: share of the values that the ranges were made to hold; 1 holds all of them.
    source: the observations, in words. observations: how many.
    """

    ranges: Mapping[str, Range]
    coverage: float
    source: str
    observations: int

    def __post_init__(self) -> None:
        object.__setattr__(self, 'ranges', MappingProxyType(dict(self.ranges)))

    def levels(self, name: str) -> Levels:
        """The levels of a tensor; a name that was not calibrated is a BackendError."""
        found = self.ranges.get(name)
        if found is None:
            raise BackendError(
                'calibration',
                found=f'no range of {name!r}',
                expected=f'one of {", ".join(self.ranges) or "none at all"}',
            )
        return found.levels()

    def receipt(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            'source': self.source,
            'observations': self.observations,
            'coverage': self.coverage,
        }

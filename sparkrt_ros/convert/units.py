"""The unit a policy was trained in, and its affine map to SI.

Every unit here is affine: ``si = sign * (factor * policy + base) + offset``, so that one scale and
one bias per joint convert a whole chunk in one vectorised expression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

# policy unit -> factor to SI, for units of positions and of velocities
POSITION_UNITS = {'rad': 1.0, 'deg': math.pi / 180.0, 'm': 1.0, 'mm': 1e-3}
VELOCITY_UNITS = {'m/s': 1.0, 'rad/s': 1.0, 'deg/s': math.pi / 180.0}
# policy unit -> the two policy values that the ends of the joint's `range` have.
# The first two carry the names LeRobot's motor buses use for the same normalisation.
RANGE_UNITS = {
    'range_0_100': (0.0, 100.0),
    'range_m100_100': (-100.0, 100.0),
    'range_0_1': (0.0, 1.0),
    'range_m1_1': (-1.0, 1.0),
}
UNITS = (*POSITION_UNITS, *VELOCITY_UNITS, *RANGE_UNITS)


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineMap:
    """Elementwise ``si = scale * policy + bias`` over the last axis.

    scale, bias: (N,) float64; scale is never zero. Both directions compute in float64.
    """

    scale: Float64Array
    bias: Float64Array

    def to_si(self, policy: npt.ArrayLike) -> Float64Array:
        """Convert (..., N) policy values to (..., N) float64 SI values, a new array."""
        result: Float64Array = np.asarray(policy, dtype=np.float64) * self.scale + self.bias
        return result

    def to_policy(self, si: npt.ArrayLike) -> Float64Array:
        """Convert (..., N) SI values to (..., N) float64 policy values, a new array."""
        result: Float64Array = (np.asarray(si, dtype=np.float64) - self.bias) / self.scale
        return result


def unit_factor_and_base(unit: str, span: tuple[float, float] | None) -> tuple[float, float]:
    """Return ``(factor, base)`` of ``si = factor * policy + base``, before sign and offset.

    ``span`` holds the SI values [rad or m] at the two ends of a range unit, and is None for every
    other unit. Raises KeyError for an unknown unit.
    """
    if unit in RANGE_UNITS:
        if span is None:
            raise ValueError(f'unit {unit} needs the SI range it is mapped onto')
        low, high = RANGE_UNITS[unit]
        factor = (span[1] - span[0]) / (high - low)
        return factor, span[0] - factor * low
    factors = {**POSITION_UNITS, **VELOCITY_UNITS}
    return factors[unit], 0.0

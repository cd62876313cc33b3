"""Between the rows of a chunk: a line, or a cubic that stays between its two rows.

Cubic: Hermite pieces whose tangents are those of Catmull and Rom (half the distance between both
neighbours), limited to twice the smaller of the two steps and to 0 where the course turns round.
Within [0, 3] times the step of a piece such a cubic is monotone (Fritsch and Carlson, SIAM J.
Numer. Anal. 17, 1980), so it overshoots neither of its rows, by nothing. It is at most
``CUBIC_SPEED`` times as fast as the largest step between two rows. Both are exact at rows.

Behind the last row the course stands still, so the last tangent is 0; before the first there is
nothing, so the first tangent is the first step. Imports no torch.
Shapes: ``T`` rows, ``A`` joints.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

INTERPOLATIONS = ('linear', 'cubic')
CUBIC_SPEED = 1.5

Float64Array = npt.NDArray[np.float64]


def tangents(rows: Float64Array) -> Float64Array:
    """Change per row at each row of (T, A): (T, A) float64."""
    if len(rows) < 2:
        return np.zeros_like(rows)
    step = np.diff(rows, axis=0)
    before = np.concatenate([step[:1], step])
    after = np.concatenate([step, np.zeros_like(step[:1])])
    mean = 0.5 * (before + after)
    most = 2.0 * np.minimum(np.abs(before), np.abs(after))
    limited = np.clip(mean, -most, most)
    result: Float64Array = np.where(np.sign(before) == np.sign(after), limited, 0.0)
    return result


def steepest(rows: Float64Array, *, cubic: bool) -> Float64Array:
    """The largest change per row anywhere between the rows of (T, A): (A,) float64."""
    if len(rows) < 2:
        return np.zeros(rows.shape[1])
    step = np.diff(rows, axis=0)
    fastest: Float64Array = np.abs(step).max(axis=0)
    if not cubic:
        return fastest
    at_row = tangents(rows)
    low, high = at_row[:-1], at_row[1:]
    # The speed is low + 2 slope x + 3 bend x^2 for x from 0 to 1.
    bend = low + high - 2.0 * step
    slope = step - low - bend
    curved = np.where(bend == 0.0, 1.0, bend)
    place = -slope / (3.0 * curved)
    inside = (bend != 0.0) & (place > 0.0) & (place < 1.0)
    peak = np.where(inside, low + slope * place, 0.0)
    np.maximum(np.abs(at_row).max(axis=0), np.abs(peak).max(axis=0), out=fastest)
    return fastest

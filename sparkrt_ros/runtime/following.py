"""Does an output follow its input? For candidates that replay what they saw before.

Such a candidate can pass any tolerance while the robot moves little, since all chunks look alike.
What gives it away is not the size of its error but that the error is better explained by another
input. ``N`` chunks of ``D`` values; every test is written for chunks that came in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

YES, NO, UNCLEAR = 'yes', 'no', 'unclear'

_Matrix = npt.NDArray[np.float64]

# A faithful candidate has the slope 1 on the reference, one that stands still 0.
LEAST_SLOPE = 0.5
# Beyond this multiple of the signal's own energy the error hides whether anything follows.
MOST_NOISE = 4.0
LONGEST_LAG = 8
# How far apart a single chunk of old input may be from where it belongs.
NEIGHBOURS = 32
# A single chunk counts as old input where it is this many times nearer to another chunk of the
# reference than to its own, and its error this many times the median.
CLEARLY = 4.0


def follows_input(found: npt.ArrayLike, wanted: npt.ArrayLike) -> str:
    """Whether ``found`` (N, …) changes with the input as ``wanted`` (N, …) does.

    ``no``: it stands still, it lags behind, or single chunks belong to another input.
    ``unclear``: the reference itself hardly changes, or less than the candidate errs. Constant
    errors play no part in this.
    """
    candidate, reference = _rows(found), _rows(wanted)
    if len(reference) < 2 or not np.isfinite(candidate).all():
        return UNCLEAR
    tests: list[Any] = [_stands_still, _lags, _has_old_chunks]
    verdicts = [test(candidate, reference) for test in tests]
    if NO in verdicts:
        return NO
    return UNCLEAR if verdicts[0] == UNCLEAR else YES


def _stands_still(found: _Matrix, wanted: _Matrix) -> str:
    """Regress the candidate's changes on the reference's: the slope is 1, or 0 for old input."""
    change, signal = found - found.mean(axis=0), wanted - wanted.mean(axis=0)
    energy = float((signal * signal).sum())
    if energy == 0.0:
        return UNCLEAR
    slope = float((change * signal).sum()) / energy
    if slope >= LEAST_SLOPE:
        return YES
    noise = float(((change - signal) ** 2).sum())
    return NO if noise <= MOST_NOISE * energy else UNCLEAR


def _lags(found: _Matrix, wanted: _Matrix) -> str:
    """Compare with the reference moved in time: a candidate that lags fits better there."""
    count = len(wanted)
    for lag in range(1, min(LONGEST_LAG, count - 2) + 1):
        for now, moved in (
            (slice(lag, None), slice(None, count - lag)),
            (slice(None, count - lag), slice(lag, None)),
        ):
            own, other = _spread(found[now] - wanted[now]), _spread(found[now] - wanted[moved])
            signal = _spread(wanted[now] - wanted[moved])
            if own - other > 0.5 * signal and other <= MOST_NOISE * signal:
                return NO
    return YES


def _has_old_chunks(found: _Matrix, wanted: _Matrix) -> str:
    """Look for chunks that are far from where they belong and very near to a neighbour."""
    own = np.abs(found - wanted).max(axis=1)
    for index in np.flatnonzero(own > CLEARLY * np.median(own)):
        near = slice(max(0, index - NEIGHBOURS), index + NEIGHBOURS + 1)
        if CLEARLY * np.abs(wanted[near] - found[index]).max(axis=1).min() <= own[index]:
            return NO
    return YES


def _spread(difference: _Matrix) -> float:
    """Energy of (n, D) around its mean."""
    return float(((difference - difference.mean(axis=0)) ** 2).sum())


def _rows(chunks: npt.ArrayLike) -> _Matrix:
    values: _Matrix = np.asarray(chunks, dtype=np.float64)
    return values.reshape(len(values), -1)

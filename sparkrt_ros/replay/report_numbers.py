"""What the report draws and tells, as arrays and short texts. No plotting here.

Shapes: ``N`` chunks, ``T`` rows of a chunk, ``A`` action size. Times are in s since the first
thing that happened in the bag.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.replay.result import Arm, Comparison, ParityResult

Float64 = npt.NDArray[np.float64]
PREFIXED_UNITS = frozenset({'rad', 'm', 's', 'rad/s', 'm/s', 'rad/s^2', 'm/s^2', 'N', 'N m', 'Nm'})
_PREFIXES = ((1.0, ''), (1e-3, 'm'), (1e-6, 'µ'), (1e-9, 'n'), (1e-12, 'p'))
_RAISED = str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹')
_BREAK_FACTOR = 5.0
_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Lines of an arm over time, one for each of the A joints.

    x: s. y: SI; NaN where the line is to break. bad: the x at which a value is not finite.
    """

    label: str
    x: tuple[Float64, ...]
    y: tuple[Float64, ...]
    bad: tuple[Float64, ...]


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """Curves of the arms over each other, and of each candidate less its reference."""

    values: tuple[Curve, ...]
    differences: tuple[Curve, ...]


def arm_named(result: ParityResult, label: str) -> Arm | None:
    """The arm of that label, or None."""
    return next((arm for arm in result.arms if arm.label == label), None)


def judged_space(result: ParityResult, comparison: Comparison) -> str:
    """``model`` where both sides are known in model space, else ``robot``."""
    arms = [arm_named(result, name) for name in (comparison.candidate, comparison.reference)]
    known = all(arm is not None and arm.normalized is not None for arm in arms)
    return 'model' if known and not comparison.of_commands else 'robot'


def values(arm: Arm, space: str) -> npt.NDArray[np.floating]:
    """(N, T, A) of an arm in that space."""
    if space == 'model' and arm.normalized is not None:
        return arm.normalized
    return arm.actions


def errors(result: ParityResult, comparison: Comparison) -> Float64:
    """(N, A): largest difference over the rows of each chunk, in the judged space.

    Infinite where a value of either side is not finite; (0, A) where a side is missing.
    """
    none = np.empty((0, len(result.joint_names)))
    candidate = arm_named(result, comparison.candidate)
    reference = arm_named(result, comparison.reference)
    if candidate is None or reference is None:
        return none
    space = judged_space(result, comparison)
    found, wanted = values(candidate, space), values(reference, space)
    if found.shape != wanted.shape or found.size == 0:
        return none
    largest = np.empty((found.shape[0], found.shape[2]))
    with np.errstate(invalid='ignore', over='ignore'):
        # In blocks: the differences of a long bag would need as much memory as its actions.
        for start in range(0, len(largest), _BLOCK):
            part = slice(start, start + _BLOCK)
            difference = np.subtract(found[part], wanted[part], dtype=np.float64)
            largest[part] = np.abs(difference, out=difference).max(axis=1)
    largest[~np.isfinite(largest)] = np.inf
    return largest


def differs(table: Float64) -> bool:
    """Whether anything in a table of errors is known and not zero."""
    return bool((np.nan_to_num(table) != 0).any())


def origin_ns(result: ParityResult) -> int:
    """The time that the report calls zero: the first arrival, or snapshot, or event."""
    streams = [stream.received_ns for stream in result.streams if stream.received_ns.size]
    arrivals = [int(times_ns.min()) for times_ns in streams]
    taken = [record.taken_ns for record in result.records]
    return min((*arrivals, *taken), default=min((e.time_ns for e in result.events), default=0))


def since(result: ParityResult, times_ns: npt.NDArray[np.int64]) -> Float64:
    """Times of the bag in s since ``origin_ns``; subtracted as integers, which are exact."""
    return np.asarray((times_ns - origin_ns(result)) * 1e-9, dtype=np.float64)


def end_s(result: ParityResult) -> float:
    """The last arrival or snapshot, in s since ``origin_ns``; at least a little more than 0."""
    zero = origin_ns(result)
    last = [int(stream.received_ns.max()) for stream in result.streams if stream.received_ns.size]
    last += [record.taken_ns for record in result.records]
    return max((max(last, default=zero) - zero) * 1e-9, 1e-3)


def chunk_times(result: ParityResult) -> Float64:
    """(N,) when each snapshot was taken."""
    return since(result, np.array([record.taken_ns for record in result.records], np.int64))


def chunk_axis(result: ParityResult) -> tuple[Float64, str]:
    """(N,) where to draw the chunks, and what that is: their number where time went back."""
    times = chunk_times(result)
    if (np.diff(times) < 0).any():
        return np.arange(len(times), dtype=np.float64), 'chunk'
    return times, 'time in the bag [s]'


def references(result: ParityResult, *, of_commands: bool) -> list[str]:
    """What was compared with, each once."""
    chosen = [c.reference for c in result.comparisons if c.of_commands == of_commands]
    return list(dict.fromkeys(chosen))


def first_rows(result: ParityResult, reference: str, *, points: int) -> Overlay:
    """Row 0 of every chunk of a reference and of what was compared with it.

    Along ``chunk_axis``, each curve of at most ``points``; the reference comes first.
    """
    times, _ = chunk_axis(result)
    compared = [c for c in result.comparisons if c.reference == reference and not c.of_commands]
    arms = [arm_named(result, name) for name in (reference, *(c.candidate for c in compared))]
    rows = {arm.label: arm.actions[: len(times), 0] for arm in arms if arm and arm.actions.size}
    return _overlay(rows, times, compared, points=points)


def whole_chunk(result: ParityResult, comparison: Comparison) -> Overlay:
    """Every row of the worst chunk of a comparison, in robot units; x is time in the chunk."""
    index = comparison.worst_chunk
    rows = {
        arm.label: arm.actions[index]
        for arm in result.arms
        if arm.label in (comparison.candidate, comparison.reference)
        and 0 <= index < arm.actions.shape[0]
    }
    length = max((len(row) for row in rows.values()), default=0)
    times = np.arange(length, dtype=np.float64) * result.dt_s
    return _overlay(rows, times, (comparison,), points=4 * length)


def _overlay(
    rows: Mapping[str, npt.NDArray[np.floating]],
    x: Float64,
    comparisons: Sequence[Comparison],
    *,
    points: int,
) -> Overlay:
    differences = []
    for comparison in comparisons:
        found, wanted = rows.get(comparison.candidate), rows.get(comparison.reference)
        if found is not None and wanted is not None and found.shape == wanted.shape:
            with np.errstate(invalid='ignore'):
                less = np.subtract(found, wanted, dtype=np.float64)
            differences.append(make_curve(comparison.candidate, x, less, points=points))
    return Overlay(
        values=tuple(make_curve(label, x, row, points=points) for label, row in rows.items()),
        differences=tuple(differences),
    )


def make_curve(
    label: str,
    x: Float64,
    rows: npt.ArrayLike,
    *,
    points: int,
    may_be_unknown: bool = False,
) -> Curve:
    """Lines of at most ``points`` from (K, A) rows.

    may_be_unknown: NaN means that nothing is known then, and is left out; else it is marked.
    """
    table = np.array(rows, dtype=np.float64)
    lines = []
    for y in table.T:
        bad = np.isinf(y) if may_be_unknown else ~np.isfinite(y)
        known = ~np.isnan(y) if may_be_unknown else np.ones(len(y), dtype=bool)
        places = _spread_out(x[: len(y)][bad])
        y[bad] = np.nan
        thin = thinned(*broken_at_gaps(x[: len(y)][known], y[known]), points=points)
        lines.append((*thin, places))
    return Curve(
        label=label,
        x=tuple(line[0] for line in lines),
        y=tuple(line[1] for line in lines),
        bad=tuple(line[2] for line in lines),
    )


def _spread_out(x: Float64, *, limit: int = 100) -> Float64:
    return x if len(x) <= limit else x[np.linspace(0, len(x) - 1, limit).astype(np.intp)]


def broken_at_gaps(x: Float64, y: Float64) -> tuple[Float64, Float64]:
    """A NaN where time goes back, or leaps by more than some usual steps. x, y: (K,)."""
    if len(x) < 3:
        return x, y
    steps = np.diff(x)
    usual = float(np.median(steps))
    breaks = np.flatnonzero((steps < 0) | (steps > _BREAK_FACTOR * max(usual, 1e-9))) + 1
    return np.insert(x, breaks, x[breaks]), np.insert(y, breaks, np.nan)


def thinned(x: Float64, y: Float64, *, points: int) -> tuple[Float64, Float64]:
    """At most ``points`` of (K,): the smallest and largest value of every run.

    No peak gets lost; a run of nothing but NaN stays a gap.
    """
    if len(x) <= points:
        return x, y
    starts = np.linspace(0, len(x), points // 2, endpoint=False).astype(np.intp)
    thin = np.empty(2 * len(starts))
    thin[0::2], thin[1::2] = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    return np.repeat(x[starts], 2), thin


def columns(table: Float64, *, limit: int) -> tuple[Float64, int]:
    """(N, A) as at most ``limit`` rows, the largest of every run; and how long the runs are.

    NaN, which stands for nothing known, remains only where a whole run is NaN.
    """
    run = max(math.ceil(table.shape[0] / limit), 1)
    if run == 1:
        return table, 1
    largest: Float64 = np.fmax.reduceat(table, np.arange(0, table.shape[0], run), axis=0)
    return largest, run


def plain(value: float) -> str:
    """Three significant digits: ``0.0123``, ``1.2e-7``, ``NaN``, ``∞``."""
    if math.isnan(value):
        return 'NaN'
    if math.isinf(value):
        return '∞' if value > 0 else '−∞'
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f'{value:.3g}'
    mantissa, exponent = f'{value:.1e}'.split('e')
    return f'{mantissa}e{int(exponent)}'


def power_of_ten(value: float) -> str:
    """The power of ten nearest to a positive value: ``10⁻³``."""
    exponent = str(round(math.log10(value))).translate(_RAISED)
    return f'10{exponent}'


def quantity(value: float, unit: str) -> str:
    """A value with its unit, scaled by a prefix where people use one: ``12.3 µrad``."""
    if not math.isfinite(value) or not unit:
        return plain(value)
    if value == 0 or unit not in PREFIXED_UNITS:
        return f'{plain(value)} {unit}'
    size = abs(value)
    scale, prefix = next(((s, p) for s, p in _PREFIXES if size >= s), (0.0, ''))
    if scale == 0 or size >= 1e4:
        return f'{plain(value)} {unit}'
    return f'{value / scale:.3g} {prefix}{unit}'


def cosine(value: float) -> str:
    """Seven decimals; ``1`` only where it is 1 but for the rounding of long sums in float64."""
    if not math.isfinite(value):
        return plain(value)
    return '1' if value > 1 - 1e-11 else f'{min(value, 0.9999999):.7f}'


def seconds(value: float) -> str:
    """A duration: ``12.3 s``, ``4 min 05 s``."""
    if not math.isfinite(value):
        return plain(value)
    if value < 60:
        return f'{value:.3g} s'
    return f'{int(value // 60)} min {int(value % 60):02d} s'


def milliseconds(value_s: float) -> str:
    """A latency or a gap: ``0.84 ms``, ``12.3 ms``, ``2.4 s``."""
    return f'{1e3 * value_s:.3g} ms' if abs(value_s) < 1 else seconds(value_s)

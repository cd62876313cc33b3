"""Commands over time for the report: those of each arm's streamer against the recorded ones.

Shapes: ``N`` chunks, ``A`` action size. Times are in s since the first thing in the bag.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparkrt_ros.replay.report_numbers import (
    Curve,
    Float64,
    Overlay,
    chunk_times,
    end_s,
    errors,
    make_curve,
    since,
)
from sparkrt_ros.replay.result import CommandTrack, Comparison, ParityResult

Times = npt.NDArray[np.int64]

# How much is shown before and after the time of the worst chunk.
MARGIN_S = 0.5


def all_commands(result: ParityResult, reference: str, *, points: int) -> Overlay:
    """A recording and what was compared with it: the whole bag, at most ``points`` each."""
    comparisons = [c for c in result.comparisons if c.of_commands and c.reference == reference]
    return _overlay(result, comparisons, points=points, start_s=-np.inf, stop_s=np.inf)


def worst_commands(result: ParityResult, comparison: Comparison, *, points: int) -> Overlay:
    """What was commanded while the worst chunk was the newest, and a little around it."""
    times = chunk_times(result)
    index = comparison.worst_chunk
    if not 0 <= index < len(times):
        return Overlay(values=(), differences=())
    stop_s = times[index + 1] if index + 1 < len(times) else end_s(result)
    return _overlay(
        result,
        [comparison],
        points=points,
        start_s=times[index] - MARGIN_S,
        stop_s=stop_s + MARGIN_S,
    )


def errors_of(result: ParityResult, comparison: Comparison) -> Float64:
    """(N, A): largest difference of each chunk and joint, of chunks or of commands.

    NaN where nothing is known, infinite where a value is not finite.
    """
    found = command_errors if comparison.of_commands else errors
    return found(result, comparison)


def command_errors(result: ParityResult, comparison: Comparison) -> Float64:
    """(N, A): largest difference while each chunk was the newest.

    NaN where nothing was recorded meanwhile, infinite where a command was not finite.
    """
    taken_ns = np.array([record.taken_ns for record in result.records], dtype=np.int64)
    table = np.full((len(taken_ns), len(result.joint_names)), np.nan)
    found = _differences(result, comparison)
    if found is None or not _rises(taken_ns):
        return table
    times_ns, rows = found
    newest = np.searchsorted(taken_ns, times_ns, side='right') - 1
    for index in np.unique(newest[newest >= 0]):
        table[index] = np.fmax.reduce(np.abs(rows[newest == index]), axis=0)
    return table


def _overlay(
    result: ParityResult,
    comparisons: Sequence[Comparison],
    *,
    points: int,
    start_s: float,
    stop_s: float,
) -> Overlay:
    def curve(label: str, times_ns: Times, rows: Float64) -> Curve:
        x = since(result, times_ns)
        shown = (x >= start_s) & (x <= stop_s)
        return make_curve(label, x[shown], rows[shown], points=points, may_be_unknown=True)

    names = [name for c in comparisons for name in (c.reference, c.candidate)]
    tracks = [t for name in dict.fromkeys(names) if (t := _track(result, name)) is not None]
    differences = []
    for comparison in comparisons:
        found = _differences(result, comparison)
        if found is not None:
            differences.append(curve(comparison.candidate, *found))
    return Overlay(
        values=tuple(curve(track.label, track.times_ns, track.commands) for track in tracks),
        differences=tuple(differences),
    )


def _track(result: ParityResult, label: str) -> CommandTrack | None:
    return next((t for t in result.commands if t.label == label and t.times_ns.size), None)


def _differences(result: ParityResult, comparison: Comparison) -> tuple[Times, Float64] | None:
    """Times of the reference's commands, and candidate less reference then: (M,), (M, A).

    The candidate's are taken linearly between two of its commands. NaN where either side
    commanded nothing, infinite where a command was.
    """
    candidate = _track(result, comparison.candidate)
    reference = _track(result, comparison.reference)
    if candidate is None or reference is None:
        return None
    if not (_rises(candidate.times_ns) and _rises(reference.times_ns)):
        return None
    after = np.searchsorted(candidate.times_ns, reference.times_ns, side='right')
    known = (after > 0) & (after < len(candidate.times_ns))
    times_ns, after = reference.times_ns[known], after[known]
    start_ns, end_ns = candidate.times_ns[after - 1], candidate.times_ns[after]
    share = ((times_ns - start_ns) / np.maximum(end_ns - start_ns, 1))[:, None]
    before, wanted = candidate.commands[after - 1], reference.commands[known]
    with np.errstate(invalid='ignore'):
        found = before + share * (candidate.commands[after] - before)
        rows = found - wanted
    rows[np.isinf(before) | np.isinf(candidate.commands[after]) | np.isinf(wanted)] = np.inf
    return times_ns, rows


def _rises(times_ns: Times) -> bool:
    return bool((np.diff(times_ns) >= 0).all())

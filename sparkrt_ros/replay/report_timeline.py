"""The time line of a bag: when each stream brought messages, what was lost, and how old it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparkrt_ros.replay.report_numbers import (
    Float64,
    broken_at_gaps,
    chunk_times,
    end_s,
    milliseconds,
    origin_ns,
    since,
    thinned,
)
from sparkrt_ros.replay.report_plots import WIDTH_IN, short
from sparkrt_ros.replay.result import Event, ParityResult, StreamHistory
from sparkrt_ros.report_page import figure_style, table
from sparkrt_ros.report_style import FAIL, INK, NOT_FINITE, REFERENCE, SERIES, SOFT, WARN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 700
POINTS = 1200
_WHOLE_BAG = 'whole bag'
_GAP_FACTOR = 3.0
# Kind -> marker, colour, height in the lane: the kinds stay apart without colour too.
_LOOKS = {
    'dropped': ('v', FAIL, 0.30),
    'stale': ('s', WARN, 0.10),
    'skew': ('D', NOT_FINITE, -0.10),
    'jump': ('|', INK, 0.0),
}
_OTHER_LOOK = ('o', SOFT, -0.30)


def has_timeline(result: ParityResult) -> bool:
    """Whether there is anything to put on a time line."""
    return bool(result.streams or result.records or result.events)


@figure_style()
def timeline_figure(result: ParityResult) -> Figure:
    """A lane per stream with its events, and below it skew and oldest age of every snapshot."""
    from matplotlib.figure import Figure

    lanes = _lanes(result)
    figure = Figure(figsize=(WIDTH_IN, 2.0 + 0.42 * len(lanes)), layout='constrained')
    upper, lower = figure.subplots(
        2, 1, sharex=True, height_ratios=(0.25 + 0.42 * len(lanes), 1.3), squeeze=True
    )
    draw_lanes(upper, result, lanes)
    draw_ages(lower, result)
    lower.set_xlim(-0.005 * end_s(result), 1.005 * end_s(result))
    lower.set_xlabel('time in the bag [s]')
    return figure


def _lanes(result: ParityResult) -> list[str]:
    names = list(dict.fromkeys(stream.name for stream in result.streams))
    others = any(_WHOLE_BAG in lanes_of(result, event) for event in result.events)
    return [*names, *([_WHOLE_BAG] if others else []), 'snapshots']


def lanes_of(result: ParityResult, event: Event) -> tuple[str, ...]:
    """The streams an event belongs to, by name or topic (several: ``a, b``); else the whole bag.

    Topics are told as in the robot contract, without the namespace.
    """
    parts = event.stream.split(', ')
    found = [
        stream.name
        for stream in result.streams
        for part in parts
        if part and (part in (stream.name, stream.topic) or stream.topic.endswith(f'/{part}'))
    ]
    return tuple(dict.fromkeys(found)) or (_WHOLE_BAG,)


def draw_lanes(axis: Axes, result: ParityResult, lanes: Sequence[str]) -> None:
    """Bars where messages came, marks where something happened, ticks for the snapshots."""
    zero, last = origin_ns(result), end_s(result)
    for stream in result.streams:
        bars = present(since(result, stream.received_ns), last)
        axis.broken_barh(
            bars, (lanes.index(stream.name) - 0.36, 0.72), facecolor=REFERENCE, alpha=0.4
        )
    ticks = np.unique((chunk_times(result) / last * BINS).round()) / BINS * last
    axis.vlines(ticks, len(lanes) - 1.3, len(lanes) - 0.7, color=SERIES[0], lw=0.8)
    _draw_events(axis, result, lanes, zero_ns=zero, last_s=last)
    axis.set_ylim(len(lanes) - 0.4, -0.6)
    axis.set_yticks(range(len(lanes)), labels=[short(name, 30) for name in lanes])
    axis.tick_params(axis='y', labelcolor=INK, length=0)
    axis.grid(visible=False, axis='y')


def _draw_events(
    axis: Axes, result: ParityResult, lanes: Sequence[str], *, zero_ns: int, last_s: float
) -> None:
    seen: dict[str, set[tuple[int, int]]] = {}
    for event in result.events:
        place = round(min(max((event.time_ns - zero_ns) * 1e-9 / last_s, 0.0), 1.0) * BINS)
        for lane in lanes_of(result, event):
            seen.setdefault(event.kind, set()).add((place, lanes.index(lane)))
    # Matplotlib leaves out labels that begin with an underscore: the count comes first.
    for kind, places in seen.items():
        marker, colour, height = _LOOKS.get(kind, _OTHER_LOOK)
        points = np.array(sorted(places), dtype=np.float64)
        axis.plot(
            points[:, 0] / BINS * last_s,
            points[:, 1] - height,
            marker,
            color=colour,
            ms=14 if marker == '|' else 4.5,
            mew=1.4 if marker == '|' else 0,
            label=f'{sum(event.kind == kind for event in result.events)} {short(kind, 24)}',
        )
    if seen:
        axis.legend(loc='lower right', bbox_to_anchor=(1, 1), ncols=6, frameon=False, fontsize=8)


def draw_ages(axis: Axes, result: ParityResult) -> None:
    """Skew of every snapshot, and the age of its oldest sample, in ms."""
    times = chunk_times(result)
    if len(times):
        ages = [max(record.ages_s.values(), default=np.nan) for record in result.records]
        skews = [record.skew_s for record in result.records]
        style = 'o' if len(times) < 3 else '-'
        named = (('age of oldest sample', ages, SERIES[0]), ('skew of samples', skews, SERIES[1]))
        for label, values, colour in named:
            y = 1e3 * np.array(values, dtype=np.float64)
            y[~np.isfinite(y)] = np.nan
            x, y = thinned(*broken_at_gaps(times, y), points=POINTS)
            axis.plot(x, y, style, color=colour, lw=1.1, ms=4, label=label)
        axis.legend(loc='lower right', bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
    axis.set_ylim(bottom=0)
    axis.set_ylabel('[ms]')


def present(times_s: Float64, last_s: float) -> list[tuple[float, float]]:
    """(start, length) of the spans in which messages came; a span ends at a long gap."""
    if times_s.size == 0:
        return []
    times = np.sort(times_s)
    gaps = np.diff(times)
    usual = float(np.median(gaps)) if gaps.size else 0.0
    width = last_s / BINS
    breaks = np.flatnonzero(gaps > max(_GAP_FACTOR * usual, width))
    starts = times[np.concatenate(([0], breaks + 1))]
    ends = times[np.concatenate((breaks, [len(times) - 1]))]
    return [(a, max(b - a, width)) for a, b in zip(starts, ends, strict=True)]


def stream_table(result: ParityResult) -> str:
    """How each stream did, as a table in HTML."""
    counts = Counter((lane, e.kind) for e in result.events for lane in lanes_of(result, e))
    kinds = sorted({event.kind for event in result.events} - {'dropped'})
    rows = [_stream_row(stream, counts, kinds) for stream in result.streams]
    whole = [str(counts[_WHOLE_BAG, kind]) for kind in ('dropped', *kinds)]
    if any(count != '0' for count in whole):
        rows.append((_WHOLE_BAG, '', '', '', '', *whole))
    heads = ('stream', 'topic', 'messages', 'rate', 'longest gap', 'dropped', *kinds)
    return table(rows, heads=heads)


def _stream_row(
    stream: StreamHistory, counts: Counter[tuple[str, str]], kinds: Sequence[str]
) -> tuple[str, ...]:
    gaps = np.diff(np.sort(stream.received_ns)) * 1e-9
    usual = float(np.median(gaps)) if gaps.size else 0.0
    return (
        stream.name,
        stream.topic,
        str(len(stream.received_ns)),
        f'{1 / usual:.3g} Hz' if usual > 0 else '',
        milliseconds(float(gaps.max())) if gaps.size else '',
        str(stream.dropped),
        *(str(counts[stream.name, kind]) for kind in kinds),
    )


def event_list(events: Sequence[Event], *, zero_ns: int, limit: int) -> str:
    """The first events of every kind, as a table in HTML."""
    rows = []
    for kind in sorted({event.kind for event in events}):
        same = sorted((e for e in events if e.kind == kind), key=lambda event: event.time_ns)
        rows += [
            (f'{(e.time_ns - zero_ns) * 1e-9:.3f} s', kind, e.stream or _WHOLE_BAG, e.text)
            for e in same[:limit]
        ]
        if len(same) > limit:
            rows.append(('…', kind, '', f'and {len(same) - limit} more'))
    return table(rows, heads=('time', 'kind', 'stream', 'what'))

"""The parity report: one page a person understands at a glance, and one figure for papers."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sparkrt_ros.replay import report_parts as parts
from sparkrt_ros.replay import report_plots as plots
from sparkrt_ros.replay import report_timeline as timeline
from sparkrt_ros.replay.report_commands import all_commands, errors_of, worst_commands
from sparkrt_ros.replay.report_numbers import (
    Float64,
    Overlay,
    chunk_axis,
    differs,
    end_s,
    first_rows,
    judged_space,
    origin_ns,
    references,
    seconds,
    whole_chunk,
)
from sparkrt_ros.replay.report_paper import paper_figure
from sparkrt_ros.replay.result import Arm, Comparison, ParityResult
from sparkrt_ros.report_page import svg, write_page
from sparkrt_ros.report_style import NOT_FINITE, UNKNOWN, ZERO, css
from sparkrt_ros.runtime.whole_file import write_whole

CURVE_POINTS = 1000
EVENTS_LISTED = 40
WARNINGS_SHOWN = 20
MAP_COLOURS = {'exactly zero': ZERO, 'not finite': NOT_FINITE, 'not known': UNKNOWN}
PAPER_DPI = 220

Judged = tuple[Comparison, Float64]


def write_report(result: ParityResult, path: Path) -> None:
    """Write the page to ``path``: self-contained, without scripts, a few MB at most.

    Joints x chunks beyond what a page can show are thinned; no peak is left out.
    Raises FileNotWritten.
    """
    name = Path(result.bag).name or result.bag
    title = f'{result.band}: parity of {name}' if result.comparisons else f'parity of {name}'
    write_page(path, title=title, parts_html=_page(result, name), style=parts.STYLE)


def _page(result: ParityResult, name: str) -> Iterator[str]:
    yield _head(result, name)
    ranked = parts.worst_first(result.comparisons)
    yield from (parts.verdict(result, comparison) for comparison in ranked)
    if not ranked:
        yield parts.nothing_compared()
    yield _warnings(result)
    yield from _curves(result)
    yield from _commands(result)
    yield from _joints(result, ranked)
    found = [(comparison, errors_of(result, comparison)) for comparison in ranked]
    yield from _maps(result, found)
    yield from _worst(result, found)
    yield from _latencies(result)
    yield from _timeline(result)
    yield from _provenance(result)


def _head(result: ParityResult, name: str) -> str:
    chunks = len(result.records)
    facts = (
        f'{chunks} chunk{"" if chunks == 1 else "s"} in {seconds(end_s(result))}',
        f'{len(result.joint_names)} joints',
        f'rows every {1e3 * result.dt_s:g} ms',
        f'{len(result.streams)} streams',
    )
    sent = ['commands'] if any(c.of_commands for c in result.comparisons) else []
    links = ('curves', *sent, 'joints', 'errors', 'worst', 'latency', 'timeline', 'provenance')
    nav = ''.join(f'<a href="#{link}">{link}</a>' for link in links)
    return (
        f'<p class="eyebrow">sparkrt parity · robot {html.escape(result.robot)}</p>'
        f'<h1>{html.escape(name)}</h1>'
        f'<p class="note">{html.escape(" · ".join(facts))}</p><nav>{nav}</nav>'
    )


def _warnings(result: ParityResult) -> str:
    if not result.warnings:
        return ''
    more = len(result.warnings) - WARNINGS_SHOWN
    lines = [*result.warnings[:WARNINGS_SHOWN], *([f'and {more} more'] if more > 0 else [])]
    items = ''.join(f'<li>{html.escape(line)}</li>' for line in lines)
    return (
        '<section class="verdict none"><div class="mark"><b>i</b>NOTE</div>'
        f'<div class="text"><h3>About this run</h3><ul>{items}</ul></div></section>'
    )


def _curves(result: ParityResult) -> Iterator[str]:
    yield '<h2 id="curves">The first action of every chunk</h2>'
    yield (
        '<p class="note">Where a candidate lies on the broad grey line, it does what the '
        'reference does; on the right is how far it is from it, on a log scale. A purple cross '
        'marks a value that is not finite.</p>'
    )
    shown = False
    _, x = chunk_axis(result)
    for index, reference in enumerate(references(result, of_commands=False)):
        overlay = first_rows(result, reference, points=CURVE_POINTS)
        if overlay.values:
            shown = True
            yield f'<h3>Against {html.escape(reference)}</h3>'
            hues = plots.colours(result, reference)
            label = f'first action of every chunk, against {reference}'
            yield _overlay(result, overlay, hues, x=x, name=f'curves{index}', label=label)
    if not shown:
        yield '<p class="note">No chunks were compared.</p>'


def _commands(result: ParityResult) -> Iterator[str]:
    for reference in references(result, of_commands=True):
        yield '<h2 id="commands">The commands sent to the robot</h2>'
        yield (
            '<p class="note">Grey: what was recorded. The others: what the streamer of this build '
            'sends for the chunks of each arm, under the conditions of the bag.</p>'
        )
        hues = plots.colours(result, reference)
        overlay = all_commands(result, reference, points=CURVE_POINTS)
        yield _overlay(result, overlay, hues, name='commands', label='commands of each joint')


def _overlay(
    result: ParityResult,
    overlay: Overlay,
    hues: Mapping[str, str],
    *,
    name: str,
    label: str,
    x: str = 'time in the bag [s]',
    logarithmic: bool = True,
) -> str:
    """The figure of an overlay with its legend above it."""
    figure = plots.overlay_figure(
        overlay,
        hues,
        names=result.joint_names,
        units=result.units,
        x=x,
        logarithmic=logarithmic,
    )
    legend = parts.legend({curve.label: css(hues[curve.label]) for curve in overlay.values})
    return legend + svg(figure, name=name, label=label)


def _joints(result: ParityResult, ranked: Sequence[Comparison]) -> Iterator[str]:
    yield '<h2 id="joints">Agreement, joint by joint</h2>'
    yield (
        '<p class="note">Model space is what the network computes, before it is scaled to the '
        'robot. The last line holds the worst figures of any single chunk: those are judged. '
        'Beyond a threshold they are coloured.</p>'
    )
    for comparison in ranked:
        yield _title(result, comparison)
        yield f'<p class="note">{html.escape(parts.thresholds(comparison))}</p>'
        yield parts.joint_table(result, comparison)


def _title(result: ParityResult, comparison: Comparison) -> str:
    if len(result.comparisons) == 1:
        return ''
    text = f'{comparison.candidate} against {comparison.reference}'
    return f'<h3>{html.escape(text)}</h3>'


def _maps(result: ParityResult, found: Sequence[Judged]) -> Iterator[str]:
    yield '<h2 id="errors">Where the differences are</h2>'
    yield '<p class="note">The largest difference within each chunk, on a log scale.</p>'
    yield parts.legend(MAP_COLOURS, box=True)
    scales: dict[str, list[Float64]] = {}
    for comparison, table in found:
        scales.setdefault(judged_space(result, comparison), []).append(table)
    for index, (comparison, table) in enumerate(found):
        yield _title(result, comparison)
        if not len(table):
            yield '<p class="note">Not known chunk by chunk.</p>'
            continue
        space = judged_space(result, comparison)
        figure = plots.error_map(
            table,
            names=result.joint_names,
            worst=comparison.worst_chunk,
            scale=plots.map_scale(scales[space]),
            limits=parts.limits_of(comparison, 'max_abs'),
            label=_map_label(result, space),
        )
        yield svg(figure, name=f'map{index}', label='largest difference of each joint and chunk')


def _map_label(result: ParityResult, space: str) -> str:
    unit = 'model space' if space == 'model' else f'[{", ".join(dict.fromkeys(result.units))}]'
    return f'max |Δ| {unit}'


def _worst(result: ParityResult, found: Sequence[Judged]) -> Iterator[str]:
    yield '<h2 id="worst">The worst chunk</h2>'
    yield '<p class="note">All rows of the chunk that differs most, and what the cameras saw.</p>'
    for index, (comparison, table) in enumerate(found):
        title = html.escape(f'{comparison.candidate} against {comparison.reference}')
        if not np.isnan(table).all() and not differs(table):
            yield f'<p><b>{title}</b>: no chunk differs.</p>'
            continue
        yield f'<details{"" if index else " open"}><summary><b>{title}</b>: '
        yield f'chunk {comparison.worst_chunk}</summary>{parts.worst_facts(result, comparison)}'
        yield _worst_curves(result, comparison, name=f'worst{index}')
        yield '</details>'


def _worst_curves(result: ParityResult, comparison: Comparison, *, name: str) -> str:
    label = 'the worst chunk, for each joint'
    hues = plots.colours(result, comparison.reference)
    if comparison.of_commands:
        overlay = worst_commands(result, comparison, points=CURVE_POINTS)
    else:
        overlay = whole_chunk(result, comparison)
    if not overlay.values:
        return ''
    x = 'time in the bag [s]' if comparison.of_commands else 'time in the chunk [s]'
    return _overlay(result, overlay, hues, x=x, name=name, label=label, logarithmic=False)


def _timed(result: ParityResult) -> list[Arm]:
    return [arm for arm in result.arms if np.isfinite(arm.inference_s).any()]


def _latencies(result: ParityResult) -> Iterator[str]:
    yield '<h2 id="latency">Latency</h2>'
    arms = _timed(result)
    if not arms:
        yield '<p class="note">Nothing was run.</p>'
        return
    first = next(iter(references(result, of_commands=False)), '')
    figure = plots.latency_figure(arms, plots.colours(result, first))
    yield svg(figure, name='latency', label='histogram of the time per chunk of each arm')


def _timeline(result: ParityResult) -> Iterator[str]:
    yield '<h2 id="timeline">Streams</h2>'
    if not timeline.has_timeline(result):
        yield '<p class="note">The bag brought nothing.</p>'
        return
    yield (
        '<p class="note">Grey: messages came. A mark is a message that was dropped or stale, a '
        'snapshot whose samples lay too far apart, or a jump of time. Blue ticks: snapshots.</p>'
    )
    figure = timeline.timeline_figure(result)
    yield svg(figure, name='timeline', label='messages and events of every stream over time')
    yield timeline.stream_table(result)
    if result.events:
        listed = timeline.event_list(result.events, zero_ns=origin_ns(result), limit=EVENTS_LISTED)
        yield f'<details><summary>{len(result.events)} events</summary>{listed}</details>'


def _provenance(result: ParityResult) -> Iterator[str]:
    yield '<h2 id="provenance">Provenance</h2>'
    yield parts.provenance({'bag': result.bag, 'robot': result.robot, **result.provenance})
    for arm in result.arms:
        if arm.receipt:
            title = html.escape(arm.label)
            body = parts.provenance(arm.receipt)
            yield f'<details><summary>What served as {title}</summary>{body}</details>'


def write_png(result: ParityResult, path: Path) -> None:
    """Write one figure for papers: the worst candidate's curves, error map and latencies.

    It shows the joints that differ most. Raises OSError where the file cannot be written.
    """
    figure = paper_figure(result)
    image = io.BytesIO()
    figure.savefig(image, format='png', dpi=PAPER_DPI, metadata={'Software': None})
    write_whole(path, image.getvalue())

"""Texts and tables of the parity report in HTML: verdicts, joints, worst chunk, provenance."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparkrt_ros.replay.report_numbers import (
    arm_named,
    chunk_times,
    cosine,
    judged_space,
    milliseconds,
    plain,
    quantity,
    seconds,
)
from sparkrt_ros.replay.result import BANDS, Comparison, ParityResult, SpaceAgreement
from sparkrt_ros.report_page import picture, table
from sparkrt_ros.runtime.parity import Agreement, least
from sparkrt_ros.runtime.types import ImageArray

SYMBOLS = {'pass': '✓', 'warn': '!', 'fail': '✕'}
_METRICS = (('cosine', 'cosine'), ('max_abs', 'max |Δ|'), ('p99_abs', 'p99 |Δ|'))
_LONGEST_VALUE = 400
_MOST_ROWS = 120
_MOST_UNFOLDED = 12

STYLE = """
.eyebrow { color: var(--soft); text-transform: uppercase; letter-spacing: .08em;
  font-size: .75rem; margin: 0 0 .2rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1.2rem 0 0; padding: .5rem 0;
  border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); font-size: .88rem; }
nav a { text-decoration: none; }
.verdict { display: grid; grid-template-columns: 5.2rem 1fr; border-radius: 12px;
  margin: .7rem 0; overflow: hidden; border: 1px solid var(--band); background: var(--bandpaper);
  break-inside: avoid; }
.verdict > .mark { background: var(--band); color: var(--paper); text-align: center;
  padding: .9rem 0; font-weight: 700; letter-spacing: .06em; }
.mark b { display: block; font-size: 2rem; line-height: 1.15; }
.verdict > .text { padding: .75rem 1.1rem .85rem; min-width: 0; }
.verdict h3 { margin: 0; font-size: 1.1rem; overflow-wrap: anywhere; }
.verdict h3 small { color: var(--soft); font-weight: 400; font-size: .95rem; }
.verdict ul { margin: .35rem 0 .2rem; padding-left: 1.15rem; }
.verdict ul.reasons { font-weight: 600; color: var(--band); }
.facts { display: flex; flex-wrap: wrap; gap: .35rem 1.7rem; margin-top: .45rem;
  font-variant-numeric: tabular-nums; }
.facts span { white-space: nowrap; font-weight: 600; min-width: 5.4rem; }
.facts i { display: block; font-style: normal; font-weight: 400; color: var(--soft);
  font-size: .78rem; line-height: 1.3; }
.limits { color: var(--soft); font-size: .85rem; margin: .35rem 0 0; }
.verdict.pass > .mark { padding: .55rem 0; font-size: .85rem; }
.verdict.pass > .mark b { font-size: 1.5rem; }
.verdict.pass > .text { padding: .5rem 1.1rem .55rem; }
.verdict.pass .facts { margin-top: .15rem; }
.pass { --band: var(--pass); --bandpaper: var(--passpaper); }
.warn { --band: var(--warn); --bandpaper: var(--warnpaper); }
.fail { --band: var(--fail); --bandpaper: var(--failpaper); }
.none { --band: var(--reference); --bandpaper: var(--panel); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; margin: .3rem 0 .5rem;
  font-size: .88rem; }
.legend i { display: inline-block; width: 1.5rem; height: .28rem; border-radius: 2px;
  vertical-align: middle; margin-right: .4rem; background: var(--swatch); }
.legend i.box { width: .9rem; height: .9rem; }
table { font-size: .9rem; } th { font-weight: 600; color: var(--soft); }
.joints { font-variant-numeric: tabular-nums; width: 100%; }
.joints td, .joints th { padding: .22rem .8rem .22rem 0; white-space: nowrap; }
.joints td:not(:first-child), .joints th:not(:first-child) { text-align: right; }
.joints th[colspan] { text-align: center !important; border-bottom: 1px solid var(--line); }
.joints tr + tr td { border-top: 1px solid var(--line); }
.joints tr.all td { font-weight: 650; border-top: 2px solid var(--line); }
.joints td.warn, .joints td.fail { color: var(--band); font-weight: 650; }
.joints .unit { color: var(--soft); }
.frames { display: flex; flex-wrap: wrap; gap: .6rem; margin: .6rem 0; }
.frames div { flex: 0 1 360px; } .frames img { width: 100%; border-radius: 6px; display: block; }
.frames small { color: var(--soft); }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--soft); }
summary b { color: var(--ink); }
.provenance td:first-child { color: var(--soft); white-space: nowrap; }
.provenance td { font: .82rem/1.45 ui-monospace, 'DejaVu Sans Mono', monospace;
  overflow-wrap: anywhere; }
@media print { nav { display: none; }
  details::details-content { content-visibility: visible; block-size: auto; }
  .joints td, .joints th { padding-right: .5rem; } }
"""


def verdict(result: ParityResult, comparison: Comparison) -> str:
    """The banner of one candidate: band, reasons, the figures that count, the thresholds."""
    band = comparison.band if comparison.band in SYMBOLS else 'none'
    reasons = ''.join(f'<li>{html.escape(reason)}</li>' for reason in comparison.reasons)
    facts = ''.join(
        f'<span><i>{html.escape(name)}</i> {html.escape(value)}</span>'
        for name, value in _facts(result, comparison)
    )
    limits = '' if band == 'pass' else thresholds(comparison)
    return (
        f'<section class="verdict {band}"><div class="mark"><b>{SYMBOLS.get(band, "–")}</b>'
        f'{html.escape(comparison.band.upper())}</div><div class="text">'
        f'<h3>{html.escape(comparison.candidate)} '
        f'<small>against {html.escape(comparison.reference)}</small></h3>'
        f'{f"<ul class=reasons>{reasons}</ul>" if reasons else ""}'
        f'<div class="facts">{facts}</div>'
        f'{f"<p class=limits>Thresholds: {html.escape(limits)}</p>" if limits else ""}'
        '</div></section>'
    )


def _facts(result: ParityResult, comparison: Comparison) -> Iterator[tuple[str, str]]:
    units = set(result.units)
    for space in comparison.spaces:
        unit = next(iter(units)) if space.space == 'robot' and len(units) == 1 else ''
        title = {'model': 'model space', 'robot': 'robot units'}.get(space.space, space.space)
        found = worst_of(comparison, space)
        yield f'{title}: cosine', cosine(found.cosine)
        yield 'max |Δ|', quantity(found.max_abs, unit)
        yield 'p99 |Δ|', quantity(found.p99_abs, unit)
    if comparison.of_commands:
        return
    yield 'follows its input', 'yes' if comparison.follows_input else 'NO'
    own = _median_s(result, comparison.candidate)
    other = _median_s(result, comparison.reference)
    if own > 0:
        gain = f' ({other / own:.3g}×)' if other > 0 else ''
        yield 'latency p50', f'{milliseconds(own)}{gain}'


def _median_s(result: ParityResult, label: str) -> float:
    """Of the time per chunk of an arm; 0 where it was not run."""
    arm = arm_named(result, label)
    if arm is None or not np.isfinite(arm.inference_s).any():
        return 0.0
    return float(np.nanmedian(arm.inference_s))


def worst_of(comparison: Comparison, space: SpaceAgreement) -> Agreement:
    """What is judged: the least agreement of any chunk; of commands, that over all of them."""
    if comparison.of_commands or not space.chunks:
        return space.overall
    found = least(space.chunks)
    # A cosine that is no number has to be seen as such.
    unknown = any(math.isnan(chunk.cosine) for chunk in space.chunks)
    return replace(found, cosine=math.nan) if unknown else found


def thresholds(comparison: Comparison) -> str:
    """The thresholds as a sentence."""
    signs = {'cosine': '≥', 'max_abs': '≤', 'p99_abs': '≤', 'rms_of_motion': '≤'}
    names = {**dict(_METRICS), 'rms_of_motion': 'rms Δ as a share of the joint’s recorded motion'}
    limits = dict(comparison.thresholds)
    warn = limits.pop('warn', None)
    texts = [
        f'{names.get(name, name)} {signs.get(name, "")} {value:g}'.replace('  ', ' ')
        for name, value in limits.items()
    ]
    share = '' if warn is None else f'; a warning from {warn:.0%} of that on'
    return f'{", ".join(texts)}{share}'


def nothing_compared() -> str:
    """The banner where there is no comparison."""
    return (
        '<section class="verdict none"><div class="mark"><b>–</b>NONE</div><div class="text">'
        '<h3>Nothing was compared</h3></div></section>'
    )


def worst_first(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons in the order in which a person has to look at them."""
    return sorted(comparisons, key=lambda c: BANDS.index(c.band), reverse=True)


def joint_table(result: ParityResult, comparison: Comparison) -> str:
    """Cosine, max and p99 of the differences: joint by joint, in every space that is known."""
    judged = judged_space(result, comparison)
    heads = ''.join(
        f'<th colspan="3" scope="colgroup">{html.escape(_space_title(s.space, judged))}</th>'
        for s in comparison.spaces
    )
    metrics = ''.join(f'<th scope="col">{label}</th>' for _, label in _METRICS)
    rows = []
    for joint, (name, unit) in enumerate(zip(result.joint_names, result.units, strict=True)):
        title = f'{html.escape(name)} <span class="unit">{html.escape(unit)}</span>'
        found = [(space, space.joints[joint], ('max_abs',)) for space in comparison.spaces]
        rows.append(_row(title, comparison, found, unit=unit, judged=judged))
    unit = result.units[0] if len(set(result.units)) == 1 else ''
    everything = [(space, space.overall, ('max_abs',)) for space in comparison.spaces]
    rows.append(_row('all joints', comparison, everything, unit=unit, judged=judged, kind='all'))
    if not comparison.of_commands:
        judgement = [
            (space, worst_of(comparison, space), tuple(dict(_METRICS)))
            for space in comparison.spaces
        ]
        rows.append(_row('worst chunk', comparison, judgement, unit=unit, judged=judged))
    return (
        f'<div class="wide"><table class="joints"><thead><tr><th></th>{heads}</tr>'
        f'<tr><th scope="col">joint</th>{metrics * len(comparison.spaces)}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div>'
    )


def _row(
    title_html: str,
    comparison: Comparison,
    found: Sequence[tuple[SpaceAgreement, Agreement, tuple[str, ...]]],
    *,
    unit: str,
    judged: str,
    kind: str = '',
) -> str:
    """found: of each space, what to tell, and which of its figures the thresholds are for."""
    cells = []
    for space, agreement, coloured in found:
        for metric, _ in _METRICS:
            value = float(getattr(agreement, metric))
            shown = unit if space.space == 'robot' else ''
            text = cosine(value) if metric == 'cosine' else quantity(value, shown)
            known = not math.isnan(agreement.max_abs)
            text = text if known else '–'
            applies = known and space.space == judged and metric in coloured
            band = cell_band(comparison, metric, value) if applies else ''
            cells.append(f'<td class="{band}">{html.escape(text)}</td>')
    return f'<tr class="{kind}"><td>{title_html}</td>{"".join(cells)}</tr>'


def _space_title(space: str, judged: str) -> str:
    title = {'model': 'model space', 'robot': 'robot units'}.get(space, space)
    return f'{title}, judged' if space == judged else title


def limits_of(comparison: Comparison, metric: str) -> dict[str, float]:
    """``warn`` and ``fail`` of a metric, as far as they are known."""
    limit, share = comparison.thresholds.get(metric), comparison.thresholds.get('warn')
    if limit is None:
        return {}
    if share is None:
        return {'fail': limit}
    # A cosine is the better the nearer it is to 1, a difference the nearer it is to 0.
    best = 1.0 if metric == 'cosine' else 0.0
    return {'warn': best + share * (limit - best), 'fail': limit}


def cell_band(comparison: Comparison, metric: str, value: float) -> str:
    """``fail`` or ``warn`` where the value is beyond that threshold, else nothing."""
    limits = limits_of(comparison, metric)
    for band in ('fail', 'warn'):
        if band in limits:
            good = value >= limits[band] if metric == 'cosine' else value <= limits[band]
            if not good:
                return band
    return ''


def legend(hues: Mapping[str, str], *, box: bool = False) -> str:
    """Names beside their colours; hues: name -> colour, as CSS writes it."""
    kind = ' class="box"' if box else ''
    items = ''.join(
        f'<span><i{kind} style="--swatch: {colour}"></i>{html.escape(label)}</span>'
        for label, colour in hues.items()
    )
    return f'<div class="legend">{items}</div>'


def worst_facts(result: ParityResult, comparison: Comparison) -> str:
    """When the worst chunk was taken, how old its samples were, and its camera frames."""
    index = comparison.worst_chunk
    lines = []
    if 0 <= index < len(result.records):
        record = result.records[index]
        lines.append(('time in the bag', seconds(float(chunk_times(result)[index]))))
        lines.append(('reference time', f'{record.reference_ns} ns'))
        lines.append(('skew', milliseconds(record.skew_s)))
        lines += [(f'age of {name}', milliseconds(age)) for name, age in record.ages_s.items()]
    for space in comparison.spaces:
        if 0 <= index < len(space.chunks):
            chunk = space.chunks[index]
            text = f'max |Δ| {plain(chunk.max_abs)}, cosine {cosine(chunk.cosine)}'
            lines.append((f'{space.space} space', text))
    facts = ''.join(
        f'<span><i>{html.escape(name)}</i> {html.escape(value)}</span>' for name, value in lines
    )
    pictures = ''.join(
        picture(image, caption=key) for key, image in _frames(result, comparison).items()
    )
    return f'<div class="facts">{facts}</div><div class="frames">{pictures}</div>'


def _frames(result: ParityResult, comparison: Comparison) -> Mapping[str, ImageArray]:
    """Its pictures; those that are kept belong to the candidate's first comparison."""
    first = next(c for c in result.comparisons if c.candidate == comparison.candidate)
    if comparison.worst_chunk != first.worst_chunk:
        return {}
    return result.worst_frames.get(comparison.candidate, {})


def provenance(values: Mapping[str, Any]) -> str:
    """A tree of plain values: tables with dotted names, large branches folded."""
    rows, folded = [], []
    for key, value in values.items():
        leaves = list(flat({key: value}))
        if len(leaves) <= _MOST_UNFOLDED:
            rows += leaves
        else:
            folded.append(
                f'<details><summary>{html.escape(key)}</summary>{_leaves(leaves)}</details>'
            )
    return _leaves(rows) + ''.join(folded)


def _leaves(rows: Sequence[tuple[str, str]]) -> str:
    more = [('…', f'{len(rows) - _MOST_ROWS} more in the receipt')][: len(rows) > _MOST_ROWS]
    return f'<div class="provenance">{table([*rows[:_MOST_ROWS], *more])}</div>'


def flat(values: Mapping[str, Any], prefix: str = '') -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every leaf; long texts are cut."""
    for key, value in values.items():
        name = f'{prefix}{key}'
        if isinstance(value, Mapping) and value:
            yield from flat(value, f'{name}.')
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        text = '; '.join(value)
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'

"""Figures of the parity report about actions and speed: curves, error map, latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkrt_ros.replay.report_numbers import (
    Curve,
    Float64,
    Overlay,
    columns,
    differs,
    milliseconds,
    power_of_ten,
    quantity,
)
from sparkrt_ros.replay.result import Arm, ParityResult
from sparkrt_ros.report_page import figure_style
from sparkrt_ros.report_style import FAIL, INK, NOT_FINITE, REFERENCE, SERIES, SOFT, UNKNOWN, ZERO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure, SubFigure

WIDTH_IN = 11.0
MAP_COLUMNS = 700
NAME_LENGTH = 44
_DECADES_SHOWN = 6.0
# The pale end is lost in the paper: the smallest error still has to be seen.
_PALEST = 0.12


def colours(result: ParityResult, reference: str) -> dict[str, str]:
    """Label -> colour: grey for what is compared with, a hue of its own for every other.

    The hue of an arm is the same in every figure, also where it was the reference in another.
    """
    known = {comparison.reference for comparison in result.comparisons}
    labels = [arm.label for arm in result.arms] + [track.label for track in result.commands]
    ordered = sorted(dict.fromkeys(labels), key=lambda label: label in known)
    hues = {label: SERIES[index % len(SERIES)] for index, label in enumerate(ordered)}
    return {**hues, reference: REFERENCE}


def short(text: str, length: int = NAME_LENGTH) -> str:
    """The text, its middle left out where it is longer than ``length``."""
    half = (length - 1) // 2
    return text if len(text) <= length else f'{text[:half]}…{text[-half:]}'


@figure_style()
def overlay_figure(
    overlay: Overlay,
    hues: Mapping[str, str],
    *,
    names: Sequence[str],
    units: Sequence[str],
    x: str,
    logarithmic: bool,
) -> Figure:
    """A row per joint: left the values of all arms, right candidate less reference.

    logarithmic: the right side shows the size of the difference on a log axis, for candidates
    that are far from each other.
    """
    figure, axes = _rows_of_two(max(len(names), 1))
    for joint, (name, unit) in enumerate(zip(names, units, strict=True)):
        left, right = axes[joint]
        left.set_title(f'{short(name)}  [{unit}]', loc='left', color=INK, pad=3)
        draw_curves(left, overlay.values, hues, joint)
        differences = _sizes(overlay.differences) if logarithmic else overlay.differences
        draw_curves(right, differences, hues, joint)
        _difference_axis(right, differences, joint, unit, logarithmic=logarithmic)
    title = '|candidate − reference|' if logarithmic else 'candidate − reference'
    axes[0, 1].set_title(title, loc='left', color=SOFT, pad=3)
    for axis in axes[-1]:
        axis.set_xlabel(x)
    return figure


def _rows_of_two(count: int) -> tuple[Figure, Any]:
    """A figure of ``count`` rows, the left column twice as wide; (count, 2) axes.

    With margins in inches: a layout that measures all texts takes half of the time of a page.
    """
    from matplotlib.figure import Figure

    row_in, gap_in, top_in, bottom_in = 0.8, 0.31, 0.27, 0.47
    height_in = top_in + bottom_in + count * row_in + (count - 1) * gap_in
    figure = Figure(figsize=(WIDTH_IN, height_in))
    margins = {
        'left': 0.5 / WIDTH_IN,
        'right': 1 - 0.06 / WIDTH_IN,
        'top': 1 - top_in / height_in,
        'bottom': bottom_in / height_in,
        'hspace': gap_in / row_in,
        'wspace': 0.18,
        'width_ratios': (2.1, 1.0),
    }
    return figure, figure.subplots(count, 2, sharex=True, squeeze=False, gridspec_kw=margins)


def draw_curves(axis: Axes, curves: Sequence[Curve], hues: Mapping[str, str], joint: int) -> None:
    """The curves of one joint; the reference broad and below, so that both stay visible."""
    from matplotlib.ticker import MaxNLocator

    for order, curve in enumerate(curves):
        colour = hues.get(curve.label, INK)
        reference = colour == REFERENCE
        # One chunk, or one row, is a point and no line.
        marker = 'o' if np.isfinite(curve.y[joint]).sum() < 3 else None
        axis.plot(
            curve.x[joint],
            curve.y[joint],
            color=colour,
            lw=4.0 if reference else 1.2,
            alpha=0.55 if reference else 1.0,
            marker=marker,
            ms=6 if reference else 3,
            zorder=2 if reference else 3 + order,
        )
        if curve.bad[joint].size:
            floor = np.zeros_like(curve.bad[joint]) + 0.04
            transform = axis.get_xaxis_transform()
            axis.plot(
                curve.bad[joint], floor, 'x', color=NOT_FINITE, ms=5, transform=transform, zorder=9
            )
    axis.yaxis.set_major_locator(MaxNLocator(4))
    axis.margins(x=0.01)


def _sizes(curves: Sequence[Curve]) -> list[Curve]:
    return [replace(curve, y=tuple(np.abs(y) for y in curve.y)) for curve in curves]


def _difference_axis(
    axis: Axes, curves: Sequence[Curve], joint: int, unit: str, *, logarithmic: bool
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    found = np.concatenate([np.abs(curve.y[joint]) for curve in curves] or [np.empty(0)])
    found = found[found > 0]
    if not found.size:
        _flat_axis(axis, curves, joint)
        return
    largest = float(found.max())
    texts = FuncFormatter(lambda value, _: quantity(value, unit))
    if not logarithmic:
        axis.yaxis.set_major_formatter(texts)
        axis.set_ylim(-1.15 * largest, 1.15 * largest)
        axis.yaxis.set_major_locator(MaxNLocator(3, symmetric=True))
        axis.axhline(0, color=REFERENCE, lw=0.7, zorder=1)
        return
    # The smallest are left out: single tiny differences would squeeze all the rest.
    floor = max(10 ** np.floor(np.log10(np.percentile(found, 5))), largest * 10**-_DECADES_SHOWN)
    # A difference of zero is drawn on the floor: it is less than everything shown.
    axis.set_yscale('log', nonpositive='clip')
    axis.set_ylim(floor, largest * 2)
    axis.yaxis.set_major_locator(LogLocator(numticks=4))
    axis.yaxis.set_major_formatter(texts)
    axis.yaxis.set_minor_locator(NullLocator())


def _flat_axis(axis: Axes, curves: Sequence[Curve], joint: int) -> None:
    bad = any(curve.bad[joint].size for curve in curves)
    text = 'not finite' if bad else 'identical' if curves else 'not compared'
    axis.set_ylim(-1, 1)
    axis.set_yticks([0], labels=['0'])
    axis.text(0.5, 0.72, text, transform=axis.transAxes, ha='center', color=SOFT, fontsize=8)


@figure_style()
def error_map(
    table: Float64,
    *,
    names: Sequence[str],
    worst: int,
    scale: tuple[float, float] | None,
    limits: Mapping[str, float],
    label: str,
) -> Figure:
    """Joint x chunk, log colours. table: (N, A). limits: ``warn``, ``fail`` where known.

    scale: smallest and largest value with a colour of its own; None where all is zero.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, 0.95 + 0.27 * len(names)), layout='constrained')
    draw_map(figure, figure.subplots(), table, names=names, scale=scale, label=label)
    if scale is not None:
        mark_limits(figure.axes[1], scale, limits)
    axis = figure.axes[0]
    if 0 <= worst < len(table) and differs(table):
        share = (worst + 0.5) / len(table)
        axis.annotate(
            f'worst chunk {worst}',
            (worst + 0.5, -0.5),
            xytext=(0, 4),
            textcoords='offset points',
            ha='left' if share < 0.1 else 'right' if share > 0.9 else 'center',
            color=FAIL,
            fontsize=8,
        )
        axis.plot([worst + 0.5], [-0.5], marker='v', color=FAIL, clip_on=False, ms=5)
    return figure


def map_scale(tables: Sequence[Float64]) -> tuple[float, float] | None:
    """Whole powers of ten around all that differs, to colour several maps alike."""
    found = np.concatenate([table[table > 0] for table in tables] or [np.empty(0)])
    found = found[np.isfinite(found)]
    if not found.size:
        return None
    low, high = np.floor(np.log10(found.min())), np.ceil(np.log10(found.max()))
    high = max(high, low + 1)
    return float(10 ** max(low, high - _DECADES_SHOWN)), float(10**high)


def draw_map(
    figure: Figure | SubFigure,
    axis: Axes,
    table: Float64,
    *,
    names: Sequence[str],
    scale: tuple[float, float] | None,
    label: str,
) -> None:
    """The error map and its colour bar, on any axis."""
    shown, run = columns(table, limit=MAP_COLUMNS)
    picture = np.empty((*shown.T.shape, 4))
    picture[:] = _rgba(ZERO)
    if scale is not None:
        inks = _error_colours(figure, axis, scale, label)
        positive = np.isfinite(shown.T) & (shown.T > 0)
        picture[positive] = inks.to_rgba(shown.T[positive])
    picture[np.isinf(shown.T)] = _rgba(NOT_FINITE)
    picture[np.isnan(shown.T)] = _rgba(UNKNOWN)
    extent = (0, len(shown) * run, len(names) - 0.5, -0.5)
    axis.imshow(picture, aspect='auto', interpolation='none', extent=extent)
    axis.set_xlim(0, max(len(table), 1))
    axis.set_yticks(range(len(names)), labels=[short(name, 28) for name in names])
    axis.tick_params(axis='y', labelcolor=INK, length=0)
    axis.set_xlabel('chunk' if run == 1 else f'chunk (a column is the worst of {run})')
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _rgba(colour: str) -> tuple[float, float, float, float]:
    from matplotlib.colors import to_rgba

    return to_rgba(colour)


def _error_colours(
    figure: Figure | SubFigure, axis: Axes, scale: tuple[float, float], label: str
) -> ScalarMappable:
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import FuncFormatter, NullLocator

    inks = matplotlib.colormaps['YlOrRd'](np.linspace(_PALEST, 1.0, 256))
    colours = LinearSegmentedColormap.from_list('errors', inks)
    mappable = ScalarMappable(norm=LogNorm(*scale), cmap=colours)
    bar = figure.colorbar(mappable, ax=axis, pad=0.01, fraction=0.025, aspect=12)
    bar.set_label(label)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    # As a picture: 256 drawn rectangles take more room than all the rest.
    solids: Any = bar.solids
    solids.set_rasterized(True)
    bar.outline.set_visible(False)
    return mappable


def mark_limits(bar: Axes, scale: tuple[float, float], limits: Mapping[str, float]) -> None:
    """Lines across a colour bar at the thresholds that lie on it."""
    for name, value in limits.items():
        if scale[0] <= value <= scale[1]:
            bar.axhline(value, color=INK, lw=1.4)
            bar.text(-0.25, value, name, ha='right', va='center', fontsize=7, color=INK)


@figure_style()
def latency_figure(arms: Sequence[Arm], hues: Mapping[str, str]) -> Figure:
    """A histogram of the seconds per chunk for every arm that was run, over one time axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, 0.6 + 0.95 * len(arms)), layout='constrained')
    axes = figure.subplots(len(arms), 1, sharex=True, squeeze=False)
    draw_latencies(list(axes[:, 0]), arms, hues)
    return figure


def draw_latencies(axes: Sequence[Axes], arms: Sequence[Arm], hues: Mapping[str, str]) -> None:
    """The histograms; a log axis where the arms are far apart."""
    times = [1e3 * arm.inference_s[np.isfinite(arm.inference_s)] for arm in arms]
    low, high = min(t.min() for t in times), max(t.max() for t in times)
    far = low > 0 and high / low > 8
    bins = np.geomspace(low * 0.95, high * 1.05, 120) if far else np.linspace(0, high * 1.05, 120)
    for axis, arm, values in zip(axes, arms, times, strict=True):
        colour = hues.get(arm.label, INK)
        axis.hist(values, bins=bins.tolist(), color=colour, alpha=0.75, histtype='stepfilled')
        p50, p99 = np.percentile(values, (50, 99), method='higher')
        for value, style in ((p50, '-'), (p99, ':')):
            axis.axvline(value, color=INK, lw=1.0, ls=style)
        figures = f'p50 {milliseconds(p50 / 1e3)} · p99 {milliseconds(p99 / 1e3)}'
        axis.set_title(f'{short(arm.label)} · {figures}', loc='left', color=INK, pad=3)
        axis.set_ylabel('chunks')
    if far:
        _log_milliseconds(axes[-1])
    axes[-1].set_xlabel('time per chunk, from pixels to actions [ms]; solid: p50, dotted: p99')


def _log_milliseconds(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale('log')
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))
    axis.xaxis.set_minor_formatter(NullFormatter())

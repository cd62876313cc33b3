"""One figure for papers: what the worst candidate does, where it differs, and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparkrt_ros.replay.report_commands import errors_of
from sparkrt_ros.replay.report_numbers import chunk_axis, first_rows, judged_space, plain
from sparkrt_ros.replay.report_plots import (
    colours,
    draw_curves,
    draw_latencies,
    draw_map,
    map_scale,
    short,
)
from sparkrt_ros.replay.result import BANDS, Comparison, ParityResult
from sparkrt_ros.report_page import figure_style
from sparkrt_ros.report_style import INK, SOFT

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

WIDTH_IN = 7.2
JOINTS_SHOWN = 8
CURVE_POINTS = 2000


@figure_style()
def paper_figure(result: ParityResult) -> Figure:
    """(a) first actions of the joints that differ most, (b) error map, (c) latencies."""
    from matplotlib.figure import Figure

    ranked = sorted(result.comparisons, key=lambda c: (c.of_commands, -BANDS.index(c.band)))
    comparison = ranked[0] if ranked else None
    joints = most_different(result, comparison)
    timed = [arm for arm in result.arms if np.isfinite(arm.inference_s).any()]
    heights = [
        0.6 + 0.95 * max(-(-len(joints) // 2), 1),
        0.9 + 0.17 * len(result.joint_names),
        0.5 + 0.75 * max(len(timed), 1),
    ]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), layout='constrained', facecolor='white')
    parts = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)
    upper, middle, lower = parts[:, 0]
    reference = comparison.reference if comparison else ''
    _draw_joints(upper, result, joints, reference)
    if comparison is not None:
        _draw_errors(middle, result, comparison)
    if timed:
        axes = lower.subplots(len(timed), 1, sharex=True, squeeze=False)
        draw_latencies(list(axes[:, 0]), timed, colours(result, reference))
    return figure


def most_different(result: ParityResult, comparison: Comparison | None) -> list[int]:
    """Columns of the joints with the largest differences, in the order of the robot."""
    count = len(result.joint_names)
    found = np.empty((0, count)) if comparison is None else errors_of(result, comparison)
    largest = np.zeros(count)
    if len(found):
        largest = np.nan_to_num(found, posinf=np.inf).max(axis=0)
    return sorted(np.argsort(-largest, kind='stable')[:JOINTS_SHOWN].tolist())


def _draw_joints(
    figure: SubFigure, result: ParityResult, joints: list[int], reference: str
) -> None:
    from matplotlib.lines import Line2D

    hues = colours(result, reference)
    curves = first_rows(result, reference, points=CURVE_POINTS).values
    rows = max(-(-len(joints) // 2), 1)
    axes = figure.subplots(rows, 2, sharex=True, squeeze=False)
    flat = axes.ravel()
    for axis, joint in zip(flat, joints, strict=False):
        title = f'{short(result.joint_names[joint], 30)} [{result.units[joint]}]'
        axis.set_title(title, loc='left', color=INK, pad=2)
        draw_curves(axis, curves, hues, joint)
    for axis in flat[len(joints) :]:
        axis.set_axis_off()
    if len(joints) > 1:
        flat[len(joints) - 2].tick_params(labelbottom=True)
    figure.supxlabel(chunk_axis(result)[1], fontsize=9, color=SOFT)
    if curves and joints:
        handles = [Line2D([], [], color=hues.get(c.label, INK), lw=2) for c in curves]
        # Matplotlib leaves out what begins with an underscore.
        names = [f'\u2009{short(curve.label)}' for curve in curves]
        figure.legend(handles, names, loc='outside upper center', ncols=3, frameon=False)


def _draw_errors(figure: SubFigure, result: ParityResult, comparison: Comparison) -> None:
    found = errors_of(result, comparison)
    axis = figure.subplots()
    if not len(found):
        axis.set_axis_off()
        return
    space = judged_space(result, comparison)
    unit = 'model space' if space == 'model' else ', '.join(dict.fromkeys(result.units))
    scale = map_scale([found])
    label = f'max |Δ| [{unit}]'
    draw_map(figure, axis, found, names=result.joint_names, scale=scale, label=label)
    overall = next((s.overall for s in comparison.spaces if s.space == space), None)
    figures = '' if overall is None else f', max |Δ| {plain(overall.max_abs)}'
    title = f'{short(comparison.candidate)}: {comparison.band}{figures}'
    axis.set_title(title, loc='left', color=SOFT, pad=3)

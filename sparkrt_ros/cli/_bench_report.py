"""Tables and plots of ``sparkrt bench``."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkrt_ros.runtime.bench import samples, speedups
from sparkrt_ros.runtime.whole_file import write_whole

_GIGA = 1e9


def print_bench(result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print what ``run_bench`` returns."""
    console = console or Console()
    machine, work = result['machine'], result['work']
    console.print(Text(f'{result["policy"]["policy"]} policy in {result["policy"]["folder"]}'))
    where = machine['cpu'] if machine['device'] == 'cpu' else machine['device_name']
    console.print(
        Text(
            f'{where}, {machine["cores"]} cores, torch {machine["torch"]}, '
            f'commit {machine["commit"] or "unknown"}, {machine["date"]}'
        )
    )
    console.print(
        Text(
            f'one chunk: {work["flop"] / _GIGA:.2f} GFLOP, '
            f'{work["parameters"] / 1e6:.1f} million parameters'
        )
    )
    for precision, ceiling in result['ceilings'].items():
        console.print(
            Text(
                f'the device at best, {precision}: {ceiling["matmul_tflop_per_s"]:.3g} TFLOP/s '
                f'(product), {ceiling["copy_gb_per_s"]:.3g} GB/s (copy)'
            )
        )
    console.print(_times(result['arms']))
    console.print(_rates(result['arms']))
    console.print(_costs(result['arms']))
    for arm in result['arms']:
        if arm['served'] != arm['arm']:
            console.print(Text(f'{arm["arm"]}: {arm["served"]} serves', style='yellow'))
        for refusal in arm['refused']:
            text = f'{arm["arm"]}: {refusal["form"]} does not serve: {refusal["reason"]}'
            console.print(Text(text, style='yellow'))
        for note in arm['notes']:
            console.print(Text(f'{arm["arm"]}: {note}', style='yellow'))


def _times(arms: Sequence[Mapping[str, Any]]) -> Table:
    columns = ('min', 'p50', 'p95', 'p99', 'max', 'model p50', 'speed-up')
    table = _table('Host frames to host actions, and the model part of it [ms]', columns)
    for arm, speedup in zip(arms, speedups(arms), strict=True):
        whole, model = arm['whole'], arm['model']
        times = [whole[f'{name}_ms'] for name in ('min', 'p50', 'p95', 'p99', 'max')]
        times.append(model['p50_ms'])
        table.add_row(arm['arm'], *(f'{value:.2f}' for value in times), f'{speedup:.2f}x')
    return table


def _costs(arms: Sequence[Mapping[str, Any]]) -> Table:
    columns = ('load [s]', 'warm-up [s]', 'threads', 'RSS [MB]', 'CUDA peak [MB]')
    table = _table('Getting ready, and the memory it adds', columns)
    for arm in arms:
        table.add_row(
            arm['arm'],
            f'{arm["load_s"]:.2f}',
            f'{arm["warm_up_s"]:.2f}',
            str(arm['num_threads']),
            f'{arm["resident_added_mb"]:+.0f}',
            f'{arm["cuda_peak_mb"]:.0f}' if arm['cuda_peak_mb'] else '-',
        )
    return table


def _rates(arms: Sequence[Mapping[str, Any]]) -> Table:
    columns = ('TFLOP/s', 'of best', 'weights GB/s', 'of best', 'cosine', 'max diff')
    table = _table('Against the device at best, and against the reference', columns)
    for arm in arms:
        gate = arm['gate']
        table.add_row(
            arm['arm'],
            f'{arm["tflop_per_s"]:.3g}',
            f'{arm["flop_fraction"]:.0%}',
            f'{arm["weights_gb_per_s"]:.3g}',
            f'{arm["bandwidth_fraction"]:.0%}',
            'reference' if gate is None else f'{gate["cosine"]:.7f}',
            '-' if gate is None else f'{gate["max_abs"]:.1e}',
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify='left', box=SIMPLE_HEAD, pad_edge=False)
    table.add_column('arm', no_wrap=True)
    for name in columns:
        table.add_column(name, justify='right')
    return table


def plot_bench(result: Mapping[str, Any], path: Path) -> None:
    """Draw the distribution of every arm's times; the format follows the file's suffix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for arm in result['arms']:
        times = samples(arm)
        share = np.arange(1, len(times) + 1) / len(times)
        label = f'{arm["arm"]}: p50 {arm["whole"]["p50_ms"]:.1f} ms'
        axes.step(times, share, where='post', label=label)
    axes.set_xscale('log')
    axes.set_xlabel('host frames to host actions [ms]')
    axes.set_ylabel('share of predictions')
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, which='both', alpha=0.3)
    axes.legend(loc='lower right')
    axes.set_title(f'{result["machine"]["device_name"]}, {result["machine"]["date"]}')
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lstrip('.') or 'png', dpi=120)
    write_whole(path, image.getvalue())

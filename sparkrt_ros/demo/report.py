"""One HTML page a person understands at a glance: what the robot saw, did, and how timely."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparkrt_ros.demo.record import DemoRecord, Episode, Figures, command_periods_s, figures
from sparkrt_ros.report_page import cards, figure_style, picture, svg, table, write_page
from sparkrt_ros.report_style import REFERENCE, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES_SHOWN = 7
POSITION_COLOUR, COMMAND_COLOUR, CHUNK_COLOUR = SERIES[0], SERIES[1], REFERENCE


def write_report(record: DemoRecord, path: Path) -> None:
    """Write the page to ``path``; it holds its pictures and needs nothing else."""
    summary = figures(record)
    episode = _shown_episode(record)
    parts = [
        '<h1>sparkrt demo</h1>',
        '<p class="note">A trained ACT policy moves the embedded robot over ROS 2: it picks the '
        'cube and puts it into the tray.</p>',
        _cards(summary, record),
    ]
    if episode is not None:
        parts += [
            f'<h2>What the robot saw (seed {episode.seed})</h2>',
            _camera_strip(record, episode),
            '<h2>Joint commands against positions, same attempt</h2>',
            '<p class="note">Orange: command. Blue: measured position. Grey ticks: a new action '
            'chunk arrived.</p>',
            svg(_joint_figure(record, episode), name='joints', label='joint commands, positions'),
        ]
    parts += [
        '<h2>Timing, all attempts</h2>',
        svg(_timing_figure(record), name='timing', label='command periods and latencies'),
        '<h2>Attempts and counters</h2>',
        _tables(record),
    ]
    write_page(path, title='sparkrt demo', parts_html=parts)


def _shown_episode(record: DemoRecord) -> Episode | None:
    """The first success with frames, else the first attempt with frames."""
    seen = [
        e
        for e in record.episodes
        if any(e.start_ns <= f.stamp_ns <= e.end_ns for f in record.frames)
    ]
    return next((e for e in seen if e.success), seen[0] if seen else None)


def _cards(summary: Figures, record: DemoRecord) -> str:
    target = f'target {1e3 / record.control_rate_hz:.1f} ms' if record.control_rate_hz else ''
    lost = sum(summary.counters.values())
    rows = [
        (
            f'{summary.successes} of {summary.attempts}',
            'attempts that succeeded',
            'good' if summary.attempts and summary.success_rate >= 0.9 else 'bad',
        ),
        (f'{summary.period.p50_ms:.2f} ms', f'command period p50 ({target})', ''),
        (f'{summary.period.p99_ms:.2f} ms', 'command period p99', ''),
        (f'{summary.latency.p50_ms:.0f} ms', 'observation to action p50', ''),
        (f'{summary.inference.p50_ms:.0f} ms', 'inference p50', ''),
        (f'{lost}', 'drops and refusals', 'good' if lost == 0 else ''),
    ]
    return cards(rows)


def _camera_strip(record: DemoRecord, episode: Episode) -> str:
    rows = []
    for camera in sorted({f.camera for f in record.frames}):
        frames = [
            f
            for f in record.frames
            if f.camera == camera and episode.start_ns <= f.stamp_ns <= episode.end_ns
        ]
        picks = np.unique(np.linspace(0, len(frames) - 1, FRAMES_SHOWN).round().astype(int))
        cells = []
        for frame in (frames[i] for i in picks):
            seconds = (frame.stamp_ns - episode.start_ns) * 1e-9
            cells.append(picture(frame.image, caption=f'{camera}, {seconds:.1f} s'))
        columns = f'grid-template-columns:repeat({len(cells)},1fr)'
        rows.append(f'<div class="strip" style="{columns}">{"".join(cells)}</div>')
    return ''.join(rows)


@figure_style()
def _joint_figure(record: DemoRecord, episode: Episode) -> Figure:
    from matplotlib.figure import Figure

    count = len(record.joint_names)
    figure = Figure(figsize=(11, 1.45 * count), layout='constrained')
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    series = [
        (record.position_ns, record.positions, POSITION_COLOUR, 'measured'),
        (record.command_ns, record.commands, COMMAND_COLOUR, 'command'),
    ]
    arrivals = [
        (ns - episode.start_ns) * 1e-9
        for ns, _, _ in record.chunks
        if episode.start_ns <= ns <= episode.end_ns
    ]
    for joint, axis in enumerate(axes):
        for times, rows, colour, label in series:
            ns = np.asarray(times, dtype=np.int64)
            inside = (ns >= episode.start_ns) & (ns <= episode.end_ns)
            if inside.any():
                values = np.asarray(rows)[inside, joint]
                known = np.isfinite(values)
                seconds = (ns[inside][known] - episode.start_ns) * 1e-9
                axis.plot(seconds, values[known], color=colour, lw=1.3, label=label)
        axis.set_ylabel(record.joint_names[joint], fontsize=9)
        low, high = axis.get_ylim()
        axis.vlines(arrivals, low, low + 0.07 * (high - low), color=CHUNK_COLOUR, lw=1)
        axis.set_ylim(low, high)
    axes[0].legend(loc='upper right', fontsize=8, ncols=2)
    axes[-1].set_xlabel('time in the attempt [s]')
    return figure


@figure_style()
def _timing_figure(record: DemoRecord) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout='constrained')
    left, right = figure.subplots(1, 2)
    periods_ms = command_periods_s(record) * 1e3
    if periods_ms.size:
        left.hist(periods_ms, bins=80, color=POSITION_COLOUR, log=True)
    if record.control_rate_hz:
        left.axvline(1e3 / record.control_rate_hz, color=COMMAND_COLOUR, lw=1)
    left.set_xlabel('time between commands [ms]; orange: target')
    left.set_ylabel('commands (log)')
    if record.chunks:
        start = record.chunks[0][0]
        seconds = [(ns - start) * 1e-9 for ns, _, _ in record.chunks]
        right.plot(seconds, [1e3 * s for _, _, s in record.chunks], '.', label='inference')
        age = [(ns - stamp) * 1e-6 for ns, stamp, _ in record.chunks]
        right.plot(seconds, age, '.', color=COMMAND_COLOUR, label='observation to chunk')
        right.set_ylim(bottom=0)
        right.legend(fontsize=8)
    right.set_xlabel('time in the demo [s]')
    right.set_ylabel('[ms]')
    return figure


def _tables(record: DemoRecord) -> str:
    attempts = [
        (str(e.seed), 'success' if e.success else 'failed', f'{e.duration_s:.1f} s')
        for e in record.episodes
    ]
    pairs = {**{k: str(v) for k, v in record.counters.items()}, **record.machine}
    outcomes = table(attempts, heads=('seed', 'outcome', 'took'))
    return f'{outcomes}<br>{table(pairs.items())}'

"""Run the embedded robot with a policy over ROS 2, and write a report.

Three processes (robot, policy, streamer) on a ROS domain of their own, a number of attempts at
the task, then the figures as a table and a page with pictures. Needs ROS 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from sparkrt_ros.demo.record import Figures

DEFAULT_POLICY = 'embedded_pick_place'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--checkpoint', type=Path, help='policy folder; the shipped one if absent')
    parser.add_argument('--episodes', type=_positive, default=5, help='attempts (default 5)')
    parser.add_argument('--seed', type=_positive, default=1, help='seed of the first attempt')
    parser.add_argument('--backend', default='', help='execution backend')
    parser.add_argument('--precision', default='', help='precision tier')
    parser.add_argument('--device', default='', help='cpu, cuda, cuda:N or auto')
    parser.add_argument('--mode', default='', help='queue or ensemble')
    parser.add_argument('--report', type=Path, default=Path('demo_report.html'))
    parser.add_argument('--require', type=float, default=0.0, help='share that must succeed')


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from sparkrt_ros.demo.record import figures
    from sparkrt_ros.demo.report import write_report
    from sparkrt_ros.demo.run import DemoOptions, run_demo
    from sparkrt_ros.runtime.share import shared_path

    console = Console()
    options = DemoOptions(
        checkpoint=args.checkpoint or shared_path(f'checkpoints/{DEFAULT_POLICY}'),
        episodes=args.episodes,
        seed=args.seed,
        backend=args.backend,
        precision=args.precision,
        device=args.device,
        mode=args.mode,
    )
    with console.status('starting') as status:

        def progress(line: str) -> None:
            console.print(line, highlight=False)
            status.update('running')

        record = run_demo(options, progress=progress)
    summary = figures(record)
    console.print(_table(summary))
    drops = ', '.join(f'{name} {count}' for name, count in summary.counters.items())
    console.print(f'drops: {drops}', highlight=False)
    # Last, so that a disk that is full costs the page alone.
    write_report(record, args.report)
    console.print(f'report: {args.report}', highlight=False)
    return 0 if summary.success_rate >= args.require else 1


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError('at least 1 is needed')
    return value


def _table(summary: Figures) -> Table:
    from rich.table import Table

    table = Table(title=f'{summary.successes} of {summary.attempts} attempts succeeded')
    for column in ('figure', 'p50 [ms]', 'p99 [ms]', 'max [ms]', 'samples'):
        table.add_column(column, justify='left' if column == 'figure' else 'right')
    rows = (
        ('control period', summary.period),
        ('observation to action', summary.latency),
        ('inference', summary.inference),
    )
    for label, spread in rows:
        values = (spread.p50_ms, spread.p99_ms, spread.max_ms)
        table.add_row(label, *(f'{value:.2f}' for value in values), str(spread.count))
    return table

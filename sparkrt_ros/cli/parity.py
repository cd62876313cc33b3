"""Prove with a bag that a policy does here what it was trained to do, before anything moves.
Replays the bag offline through the code of the live nodes and compares the actions of one or more
forms of the policy with those of a reference: per chunk and per joint, in model space and in robot
units. Needs no ROS. Exit code: 0 pass, 1 fail, 2 error, 3 warn, 4 pass on an incomplete bag.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkrt_ros.replay.live_result import LiveResult
    from sparkrt_ros.replay.result import ParityResult
    from sparkrt_ros.replay.run import ParityOptions

BANDS = ('pass', 'warn', 'fail')
EXIT_CODES = {'pass': 0, 'fail': 1, 'warn': 3}
EXIT_INCOMPLETE = 4

_ARM = 'backend=B,precision=P[,device=D][,threads=N]'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('bag', type=Path, help='a bag: a folder, an .mcap or a .db3 file')
    parser.add_argument('--robot', required=True, help='robot contract: a shipped name or a path')
    parser.add_argument(
        '--checkpoint', type=Path, required=True, metavar='FOLDER', help='the policy folder'
    )
    _add_arms(parser)
    _add_replay(parser)
    _add_judgement(parser)
    _add_live(parser)
    _add_outputs(parser)


def _add_arms(parser: argparse.ArgumentParser) -> None:
    arms = parser.add_argument_group('what is compared')
    arms.add_argument(
        '--reference', default='', metavar='ARM', help=f'{_ARM} (default: backend=eager, fp32)'
    )
    arms.add_argument(
        '--candidate',
        action='append',
        default=[],
        metavar='ARM',
        help='the same, repeatable (default: what the node would serve here)',
    )
    arms.add_argument(
        '--against',
        action='append',
        nargs='+',
        default=[],
        metavar=('KIND', 'FILE'),
        help="also compare with 'recorded' commands, or with 'lerobot FILE.npz'",
    )
    arms.add_argument('--seed', type=int, default=0, help='of the noise (default 0)')


def _add_replay(parser: argparse.ArgumentParser) -> None:
    replay = parser.add_argument_group('how the bag is replayed')
    replay.add_argument('--namespace', default='', help="the robot's namespace in the bag")
    replay.add_argument(
        '--time',
        default='log',
        choices=('log', 'header', 'clock'),
        help='when messages arrive: as recorded, as stamped, or as /clock says (default log)',
    )
    replay.add_argument(
        '--latency-ms', type=float, default=0.0, help='assumed time of an inference (default 0)'
    )
    replay.add_argument(
        '--rate-hz',
        type=float,
        help='infer at this rate instead of when the streamer needs a chunk',
    )
    replay.add_argument('--max-chunks', type=int, help='stop after as many')
    replay.add_argument(
        '--set',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='a parameter of the policy node, such as chunking.n_action_steps=10; repeatable',
    )


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    judgement = parser.add_argument_group('what is good enough')
    judgement.add_argument(
        '--threshold',
        default='',
        metavar='NAME=VALUE,…',
        help='for all tiers: cosine, max_abs, p99_abs, warn; for recorded: rms_of_motion',
    )
    judgement.add_argument(
        '--thresholds', type=Path, metavar='FILE', help='YAML: tier -> its thresholds'
    )


def _add_live(parser: argparse.ArgumentParser) -> None:
    live = parser.add_argument_group('live (needs ROS)')
    live.add_argument(
        '--live',
        nargs='?',
        const='',
        metavar='ARM',
        help='also play the bag with /clock, step by step, into both running nodes and compare '
        'what they publish with the offline run, byte for byte (default: the reference)',
    )
    live.add_argument(
        '--live-rate',
        type=float,
        metavar='R',
        help='play R times as fast as it was recorded; what is lost on the way is named',
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    outputs = parser.add_argument_group('what is written')
    for option, text in (
        ('--report', 'a page to look at (HTML)'),
        ('--json', 'the receipt'),
        ('--png', 'a figure for papers'),
        ('--export-observations', 'what the policy was given (.npz), for LeRobot'),
    ):
        outputs.add_argument(option, type=Path, metavar='FILE', help=text)
    outputs.add_argument('--quiet', action='store_true', help='print the verdicts alone')


def run(args: argparse.Namespace) -> int:
    from sparkrt_ros.cli._parity_live import live_parity_options, run_and_print
    from sparkrt_ros.cli._parity_options import parity_options
    from sparkrt_ros.cli._parity_table import print_result

    options = parity_options(args)
    live_options = live_parity_options(args, options)
    _load_writers(args)
    result = _run(options, quiet=args.quiet)
    print_result(result, brief=args.quiet)
    live = None
    if live_options is not None:
        live = run_and_print(live_options, quiet=args.quiet)
        result = replace(result, provenance={**result.provenance, 'live': live.to_dict()})
    _write(result, args)
    return exit_code(result, live)


def exit_code(result: ParityResult, live: LiveResult | None = None) -> int:
    """What the process ends with; see the module."""
    if live is not None and BANDS.index(live.band) > BANDS.index(result.band):
        return EXIT_CODES[live.band]
    if result.band == 'pass' and not result.provenance['bag']['complete']:
        return EXIT_INCOMPLETE
    return EXIT_CODES[result.band]


def _load_writers(args: argparse.Namespace) -> None:
    """Fail now, not after the run, where something is missing for what will be written."""
    if args.report or args.png:
        import matplotlib.figure

        import sparkrt_ros.replay.report  # noqa: F401

        assert matplotlib.figure


def _run(options: ParityOptions, *, quiet: bool) -> ParityResult:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from sparkrt_ros.replay.run import run_parity

    columns = (TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task('opening the bag', total=None)

        def show(text: str, share: float | None) -> None:
            total = None if share is None else 1.0
            bar.update(task, description=text, total=total, completed=share or 0.0)

        return run_parity(options, progress=show)


def _write(result: ParityResult, args: argparse.Namespace) -> None:
    if args.json:
        from sparkrt_ros.replay.receipt import write_receipt

        write_receipt(result, args.json)
    if args.report or args.png:
        from sparkrt_ros.replay.report import write_png, write_report

        if args.report:
            write_report(result, args.report)
        if args.png:
            write_png(result, args.png)

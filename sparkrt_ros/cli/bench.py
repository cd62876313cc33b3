"""Measure how long a policy takes, in any of its forms, on this machine.

Every combination of the given backends and precisions runs in turn on the same weights and
observations: latency from pixels to actions, loading and warming up, memory, achieved operations
against what the device can do, and how near each form is to the network as written.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('folder', type=Path, nargs='?', help='the policy folder')
    what.add_argument(
        '--random', metavar='NAME', help='random weights instead: act-small or act-480x640x2'
    )
    parser.add_argument('--backend', nargs='+', default=['eager', 'auto'], help='one or more')
    parser.add_argument('--precision', nargs='+', default=['fp32'], help='one or more')
    parser.add_argument('--device', default='auto', help='cpu, cuda, cuda:N or auto')
    parser.add_argument(
        '--threads', type=_count, default=None, help='CPU threads; 0: the fastest (default: all)'
    )
    parser.add_argument('--repeat', type=_positive, default=50, help='predictions (default 50)')
    parser.add_argument('--warmup', type=_count, default=3, help='uncounted ones (default 3)')
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write everything here')
    parser.add_argument('--plot', type=Path, metavar='FILE', help='draw the distributions here')


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix='sparkrt_bench_') as scratch:
        folder = args.folder
        if args.random is not None:
            from sparkrt_ros.sim.random_policy import write_random_policy

            folder = write_random_policy(args.random, Path(scratch) / args.random)
        return _measure(folder, args)


def _measure(folder: Path, args: argparse.Namespace) -> int:
    from rich.console import Console

    from sparkrt_ros.cli._bench_report import plot_bench, print_bench
    from sparkrt_ros.runtime.bench import BenchOptions, run_bench
    from sparkrt_ros.runtime.planning import Form
    from sparkrt_ros.runtime.whole_file import write_whole

    forms = [Form(backend=b, precision=p) for b in args.backend for p in args.precision]
    options = BenchOptions(
        forms=tuple(dict.fromkeys(forms)),
        device=args.device,
        threads=args.threads,
        repeat=args.repeat,
        warmup=args.warmup,
    )
    with Console(stderr=True).status('starting') as status:
        result = run_bench(folder, options, progress=status.update)
    print_bench(result)
    if args.json:
        write_whole(args.json, json.dumps(result, indent=2) + '\n')
    if args.plot:
        plot_bench(result, args.plot)
    return 0


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _count(text: str) -> int:
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f'at least {least} is needed')
    return value

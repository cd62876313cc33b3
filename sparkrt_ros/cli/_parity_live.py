"""``sparkrt parity --live``: the same bag, played into the running nodes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.run import ParityOptions
from sparkrt_ros.runtime.errors import ConfigError

if TYPE_CHECKING:
    from sparkrt_ros.replay.live import LiveOptions
    from sparkrt_ros.replay.live_result import LiveResult

LOGS = Path('log/parity_live')
SLOWEST, FASTEST = 0.01, 100.0
_STYLES = {'pass': 'bold green', 'warn': 'bold yellow', 'fail': 'bold red'}


def live_parity_options(args: argparse.Namespace, options: ParityOptions) -> LiveOptions | None:
    """What to play how; None where it was not asked for.

    Raises ConfigError, before anything is run, for what cannot work.
    """
    if args.live is None:
        if args.live_rate is not None:
            raise ConfigError('--live-rate', found='no --live', expected='both, or neither')
        return None
    form = ArmSpec.parse(args.live, base=options.reference)
    if args.live_rate is not None and not SLOWEST <= args.live_rate <= FASTEST:
        expected = f'from {SLOWEST:g} to {FASTEST:g}'
        raise ConfigError('--live-rate', found=str(args.live_rate), expected=expected)
    try:
        from sparkrt_ros.replay.live import LiveOptions
    except ImportError as error:
        raise ConfigError(
            '--live',
            found=str(error),
            expected='ROS 2 and the built package',
            remedy='run it in the sourced workspace: ros2 run sparkrt sparkrt parity …',
        ) from error
    return LiveOptions(
        bag=options.bag,
        robot=options.robot,
        checkpoint=options.checkpoint,
        form=form,
        replay=replace(options.replay, latency_s=0.0, rate_hz=None),
        parameters=options.parameters,
        rate=args.live_rate,
        logs=LOGS,
        seed=options.seed,
    )


def run_and_print(options: LiveOptions, *, quiet: bool) -> LiveResult:
    """Play, compare, and print the verdict and what is not identical."""
    from rich.console import Console

    from sparkrt_ros.replay.live import run_live

    with Console(stderr=True, quiet=quiet).status('live') as status:
        result = run_live(options, progress=lambda text: status.update(f'live: {text}'))
    console = Console()
    first, *rest = result.lines()
    console.print(first, style=_STYLES[result.band], markup=False, highlight=False, soft_wrap=True)
    for line in () if quiet else rest:
        console.print(f'  {line}', markup=False, highlight=False, soft_wrap=True)
    return result

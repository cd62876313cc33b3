"""From the command line of ``sparkrt parity`` to the options of a run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import yaml

from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.judge import ThresholdTable
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import REFERENCE, SERVED, ParityOptions
from sparkrt_ros.runtime.errors import ConfigError

RECORDED, LEROBOT = 'recorded', 'lerobot'
# Of the arms, so --set may not give them too.
_OF_ARMS = ('backend', 'precision', 'device', 'threads', 'robot', 'checkpoint')


def parity_options(args: argparse.Namespace) -> ParityOptions:
    """Check and combine the arguments. Raises ConfigError for any that cannot be."""
    against_recorded, actions = _against(args.against)
    for path in (args.report, args.json, args.png, args.export_observations):
        _check_output(path)
    candidates = tuple(ArmSpec.parse(text, base=SERVED) for text in args.candidate)
    return ParityOptions(
        bag=args.bag,
        robot=args.robot,
        checkpoint=args.checkpoint,
        reference=ArmSpec.parse(args.reference, base=REFERENCE),
        candidates=candidates or (SERVED,),
        replay=ReplayOptions(
            time=args.time,
            namespace=args.namespace,
            latency_s=_number('--latency-ms', args.latency_ms, least=0.0) / 1e3,
            rate_hz=None if args.rate_hz is None else _number('--rate-hz', args.rate_hz),
            max_chunks=_count('--max-chunks', args.max_chunks),
        ),
        parameters=_parameters(args.set),
        thresholds=ThresholdTable.make(file=args.thresholds, changes=_thresholds(args.threshold)),
        seed=_count('--seed', args.seed, least=0) or 0,
        against_recorded=against_recorded,
        lerobot_actions=actions,
        export=args.export_observations,
    )


def _against(given: Sequence[Sequence[str]]) -> tuple[bool, Path | None]:
    recorded, actions = False, None
    for kind, *files in given:
        if kind == RECORDED and not files:
            recorded = True
        elif kind == LEROBOT and len(files) == 1 and actions is None:
            actions = Path(files[0])
        else:
            raise ConfigError(
                '--against',
                found=' '.join((kind, *files)),
                expected="'recorded', or 'lerobot FILE.npz' once",
            )
    return recorded, actions


def _parameters(given: Sequence[str]) -> dict[str, Value]:
    """NAME=VALUE, with values as in a YAML file of parameters."""
    values: dict[str, Value] = {}
    for text in given:
        name, separator, value = text.partition('=')
        if not separator or name in _OF_ARMS:
            raise ConfigError(
                f'--set {text}',
                found='no value' if not separator else 'a parameter with an option of its own',
                expected='NAME=VALUE of another parameter of the policy node',
                remedy='give it to --reference or --candidate' if name in _OF_ARMS else None,
            )
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f'--set {text}', found=str(error), expected='a value') from error
    return values


def _thresholds(text: str) -> dict[str, float]:
    changes = {}
    for part in filter(None, text.split(',')):
        name, _, value = part.partition('=')
        try:
            changes[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f'--threshold {part}', found=repr(value), expected='NAME=NUMBER'
            ) from None
    return changes


def _number(name: str, value: float, *, least: float | None = None) -> float:
    fits = math.isfinite(value) and (value > 0.0 if least is None else value >= least)
    if not fits:
        expected = 'a number above 0' if least is None else f'a number of at least {least:g}'
        raise ConfigError(name, found=str(value), expected=expected)
    return value


def _count(name: str, value: int | None, *, least: int = 1) -> int | None:
    if value is not None and value < least:
        raise ConfigError(name, found=str(value), expected=f'at least {least}')
    return value


def _check_output(path: Path | None) -> None:
    """Fail before the run where the file cannot be written after it."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(
            str(path),
            found='a folder' if path.is_dir() else f'no folder {path.parent}',
            expected='a file in a folder that exists',
        )

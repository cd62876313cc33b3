"""From numbers to a verdict: pass, warn or fail.

``fail``: beyond a threshold, or the output does not follow its input. ``warn``: beyond a share of
a threshold, or there is too little to judge by. Chunks are judged in model space, in which one
threshold means the same for every joint; commands in SI, by the range of each joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from sparkrt_ros.replay.result import BANDS, Comparison
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.parity import Verdict, judge, negative_controls
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.types import FloatArray

RECORDED_SECTION = 'recorded'
LEAST_MOTION = 0.02

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of one precision tier, for the worst chunk in model space.

    cosine: at least. max_abs: largest difference at most; p99_abs: what 99 of 100 values of a
    chunk stay within. warn: share of a limit from which on it warns.
    """

    cosine: float
    max_abs: float
    p99_abs: float
    warn: float = 0.5

    @classmethod
    def of_tier(cls, name: str) -> Thresholds:
        """Those of the gate that lets a tier serve; p99_abs is half of its max_abs."""
        tier = TIERS[name]
        return cls(cosine=tier.min_cosine, max_abs=tier.max_abs, p99_abs=tier.max_abs / 2)

    @property
    def warning(self) -> Thresholds:
        """The limits beyond which it warns."""
        return replace(
            self,
            cosine=1.0 - self.warn * (1.0 - self.cosine),
            max_abs=self.warn * self.max_abs,
            p99_abs=self.warn * self.p99_abs,
        )


@dataclass(frozen=True, kw_only=True)
class CommandThresholds:
    """rms_of_motion: root mean square of a joint's differences at most, as a share of that of its
    recorded motion (around the mean). At 1 the policy comes no nearer to the recording than a
    command that never moves. warn: as in Thresholds.
    """

    rms_of_motion: float = 1.0
    warn: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ThresholdTable:
    """Thresholds by tier, and those of recorded commands, as changed by the user."""

    tiers: Mapping[str, Thresholds]
    recorded: CommandThresholds

    @classmethod
    def make(
        cls, *, file: Path | None = None, changes: Mapping[str, float] | None = None
    ) -> ThresholdTable:
        """The defaults, changed by a YAML file and then by ``changes``, which hold for all tiers.

        The file maps tiers (``fp32``, …) and ``recorded`` to the fields of the classes above.
        Raises ConfigError naming what is not known.
        """
        content = {} if file is None else _read(file)
        tiers = {
            name: _changed(
                Thresholds.of_tier(name), content.pop(name, {}), where=f'{file}: {name}'
            )
            for name in TIERS
        }
        recorded = _changed(
            CommandThresholds(), content.pop(RECORDED_SECTION, {}), where=f'{file}: recorded'
        )
        if content:
            known = ', '.join((*TIERS, RECORDED_SECTION))
            raise ConfigError(str(file), found=f'{", ".join(content)}', expected=f'among {known}')
        for name, value in (changes or {}).items():
            tiers, recorded = _override(tiers, recorded, name, value)
        return cls(tiers=tiers, recorded=recorded)


def judge_chunks(
    found: Sequence[FloatArray], wanted: Sequence[FloatArray], limits: Thresholds
) -> tuple[str, tuple[str, ...], Verdict | None]:
    """Band, reasons and verdict of N chunks (T, A) in model space.

    A single chunk cannot show that it follows anything: no verdict then, and ``warn`` at best.
    """
    if len(wanted) < 2:
        return 'warn', ('fewer than two chunks: nothing to judge by',), None
    verdict = _judge(found, wanted, limits)
    if not verdict.passed:
        return 'fail', tuple(verdict.reason.split('; ')), verdict
    reasons = list(filter(None, _judge(found, wanted, limits.warning).reason.split('; ')))
    if not verdict.clear:
        reasons.append('the chunks change too little to tell whether the output follows its input')
    return ('warn' if reasons else 'pass'), tuple(reasons), verdict


def self_check(wanted: Sequence[FloatArray], limits: Thresholds) -> dict[str, str]:
    """Put candidates that must fail through the same judgement: name -> band.

    Anything but ``fail`` means that this bag cannot show a candidate that replays old input.
    """
    return {
        name: judge_chunks(found, wanted, limits)[0]
        for name, found in negative_controls(wanted).items()
    }


def judge_commands(
    found: Floats, wanted: Floats, ranges: Floats, names: Sequence[str], limits: CommandThresholds
) -> tuple[str, tuple[str, ...]]:
    """Band and reasons for (M, A) commands and recorded ones, SI, NaN where nothing is known.

    ranges: (A,) of each joint; a motion of less than LEAST_MOTION of it counts as that much.
    """
    known = ~(np.isnan(found) | np.isnan(wanted))
    if not known.any():
        return 'fail', ('no recorded command lies in a time in which the policy sent any',)
    bands, reasons = ['pass'], []
    for column in np.flatnonzero(known.any(axis=0)).tolist():
        rows = known[:, column]
        error = _rms(found[rows, column] - wanted[rows, column])
        motion = _rms(wanted[rows, column] - wanted[rows, column].mean())
        share = error / max(motion, LEAST_MOTION * float(ranges[column]))
        for band, limit in (
            ('fail', limits.rms_of_motion),
            ('warn', limits.warn * limits.rms_of_motion),
        ):
            if not share <= limit:
                bands.append(band)
                reasons.append(
                    f'{names[column]}: rms difference {share:.0%} of the recorded motion, '
                    f'above {limit:.0%}'
                )
                break
    return max(bands, key=BANDS.index), tuple(reasons)


def _rms(values: Floats) -> float:
    return float(np.sqrt((values * values).mean()))


def worst_band(comparisons: Sequence[Comparison]) -> str:
    """The worst of all; ``pass`` where there is none."""
    return max((c.band for c in comparisons), key=BANDS.index, default='pass')


def _judge(
    found: Sequence[FloatArray], wanted: Sequence[FloatArray], limits: Thresholds
) -> Verdict:
    return judge(
        found,
        wanted,
        min_cosine=limits.cosine,
        max_abs=limits.max_abs,
        p99_abs=limits.p99_abs,
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            str(file), found=f'no readable YAML ({error})', expected='thresholds'
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(str(file), found=type(content).__name__, expected='a mapping')
    return {str(key): value for key, value in content.items()}


def _changed(limits: Any, changes: Any, *, where: str) -> Any:
    """A copy with some fields changed."""
    known = asdict(limits)
    if not isinstance(changes, Mapping) or set(changes) - set(known):
        raise ConfigError(where, found=str(changes), expected=f'fields among {", ".join(known)}')
    return replace(limits, **{n: _number(v, where=f'{where}.{n}') for n, v in changes.items()})


def _override(
    tiers: Mapping[str, Thresholds], recorded: CommandThresholds, name: str, value: float
) -> tuple[dict[str, Thresholds], CommandThresholds]:
    where = f'threshold {name}'
    of_tiers = name in asdict(next(iter(tiers.values())))
    if not of_tiers and name not in asdict(recorded):
        known = ', '.join(dict.fromkeys((*asdict(next(iter(tiers.values()))), *asdict(recorded))))
        raise ConfigError(where, found='an unknown threshold', expected=f'one of {known}')
    change = {name: value}
    if of_tiers:
        tiers = {tier: _changed(limits, change, where=where) for tier, limits in tiers.items()}
    if name in asdict(recorded):
        recorded = _changed(recorded, change, where=where)
    return dict(tiers), recorded


def _number(value: object, *, where: str) -> float:
    if isinstance(value, str):
        # YAML 1.1 takes 1e-4, without a dot, for a text.
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(where, found=repr(value), expected='a number')
    return float(value)

"""Does one form of a policy compute what another does? Measured, not assumed.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.following import NO, UNCLEAR, follows_input
from sparkrt_ros.runtime.types import Capabilities, FloatArray, Observation

Predict = Callable[[Observation], FloatArray]
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near a chunk is to the reference's. Both (T, A), compared in float64.

    Values that are not finite make the cosine NaN and the differences infinite.
    """

    cosine: float
    max_abs: float
    p99_abs: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a gate. reason: why it failed, or empty.

    worst: the least agreement over all observations. follows_input: False where the candidate's
    chunks show that it replays old input; that fails even where all chunks look alike.
    clear: False where the reference changes too little, from one observation to the next, to
    tell whether the candidate follows.
    """

    passed: bool
    reason: str
    worst: Agreement
    each: tuple[Agreement, ...]
    follows_input: bool
    clear: bool = True


def compare(candidate: npt.ArrayLike, reference: npt.ArrayLike) -> Agreement:
    """Compare two arrays of equal shape; raises ConfigError when the shapes differ."""
    found, wanted = np.asarray(candidate), np.asarray(reference)
    _check_shapes(found, wanted)
    return compare_each(found[np.newaxis], wanted[np.newaxis])[0]


def compare_each(candidate: npt.ArrayLike, reference: npt.ArrayLike) -> list[Agreement]:
    """Compare N arrays with N others, one by one, as ``compare`` does."""
    found: _Float64 = np.asarray(candidate, dtype=np.float64)
    wanted: _Float64 = np.asarray(reference, dtype=np.float64)
    _check_shapes(found, wanted)
    found, wanted = found.reshape(len(found), -1), wanted.reshape(len(wanted), -1)
    finite = np.isfinite(found).all(axis=1) & np.isfinite(wanted).all(axis=1)
    figures = np.full((len(found), 3), (np.nan, np.inf, np.inf))
    figures[finite] = _figures(found[finite], wanted[finite])
    return [Agreement(cosine=c, max_abs=m, p99_abs=p) for c, m, p in figures.tolist()]


def _check_shapes(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    if found.shape != wanted.shape:
        raise ConfigError('parity', found=f'shape {found.shape}', expected=f'{wanted.shape}')


def _figures(found: _Float64, wanted: _Float64) -> _Float64:
    """(n, 3): cosine, largest difference, 99th percentile of finite rows (n, D)."""
    if not found.size:
        return np.empty((len(found), 3))
    difference = np.abs(found - wanted)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    products = (found * wanted).sum(axis=1)
    same = (found == wanted).all(axis=1)
    # A vector without length has no direction: alike only where both are zero.
    cosine = np.divide(products, lengths, out=same.astype(np.float64), where=lengths > 0)
    p99 = np.percentile(difference, 99, axis=1)
    return np.stack((cosine, difference.max(axis=1), p99), axis=1)


def gate(
    candidate: Predict,
    reference: Predict,
    observations: Sequence[Observation],
    *,
    min_cosine: float,
    max_abs: float,
) -> Verdict:
    """Run both on every observation and judge. At least two different observations are needed.

    The observations must not be those a tier was calibrated on, and come in order of time where
    they were recorded.
    """
    found = [candidate(observation) for observation in observations]
    wanted = [reference(observation) for observation in observations]
    return judge(found, wanted, min_cosine=min_cosine, max_abs=max_abs)


def judge(
    found: Sequence[FloatArray],
    wanted: Sequence[FloatArray],
    *,
    min_cosine: float,
    max_abs: float,
    p99_abs: float = float('inf'),
) -> Verdict:
    """Judge the chunks of a candidate, N of (T, A), by those of the reference.

    Raises ConfigError for fewer than two chunks, and for shapes that differ.
    """
    if len(wanted) < 2:
        raise ConfigError('parity', found=f'{len(wanted)} observations', expected='at least 2')
    all_found, all_wanted = np.stack(found), np.stack(wanted)
    each = tuple(compare_each(all_found, all_wanted))
    worst = least(each)
    following = follows_input(all_found, all_wanted)
    reasons = []
    if not worst.cosine >= min_cosine:
        reasons.append(f'cosine {worst.cosine:.7f} below {min_cosine}')
    if not worst.max_abs <= max_abs:
        reasons.append(f'largest difference {worst.max_abs:.3g} above {max_abs}')
    if not worst.p99_abs <= p99_abs:
        reasons.append(f'difference in 1 of 100 values {worst.p99_abs:.3g} above {p99_abs}')
    if following == NO:
        reasons.append('its output does not follow its input')
    return Verdict(
        passed=not reasons,
        reason='; '.join(reasons),
        worst=worst,
        each=each,
        follows_input=following != NO,
        clear=following != UNCLEAR,
    )


def least(each: Sequence[Agreement]) -> Agreement:
    """The worst of every figure; -1 and infinity stand in for one that is no number."""

    def largest(values: list[float]) -> float:
        return max((np.inf if value != value else value for value in values), default=0.0)

    return Agreement(
        cosine=min((-1.0 if a.cosine != a.cosine else a.cosine for a in each), default=1.0),
        max_abs=largest([a.max_abs for a in each]),
        p99_abs=largest([a.p99_abs for a in each]),
    )


def negative_controls(wanted: Sequence[FloatArray]) -> dict[str, list[FloatArray]]:
    """Candidates that must fail, made of the reference's own chunks: name -> chunks.

    They replay old input: the first observation for ever, and always the one before.
    """
    return {
        'frozen input': [wanted[0]] * len(wanted),
        'input one observation late': [wanted[max(0, i - 1)] for i in range(len(wanted))],
    }


def probe_observations(
    capabilities: Capabilities, *, count: int = 4, seed: int = 0
) -> tuple[Observation, ...]:
    """Different observations of the right shapes: smooth random pictures and random vectors.

    For gates before any real observation exists. Vectors are drawn from N(0, 1) in the policy's
    own units, pictures as coarse noise scaled up, which has edges and areas like a real scene.
    """
    random = np.random.default_rng(seed)

    def vector(size: int) -> FloatArray | None:
        return random.standard_normal(size).astype(np.float32) if size else None

    def picture(height: int, width: int) -> npt.NDArray[np.uint8]:
        coarse = random.integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
        full = coarse.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]
        return np.ascontiguousarray(full)

    return tuple(
        Observation(
            images={
                key: picture(height, width)
                for key, (_, height, width) in capabilities.image_shapes.items()
            },
            state=vector(capabilities.state_size),
            environment_state=vector(capabilities.environment_state_size),
            task='probe' if capabilities.requires_task else None,
        )
        for _ in range(count)
    )

"""Does one form of a policy compute what another does? Measured, not assumed.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import Capabilities, FloatArray, Observation

Predict = Callable[[Observation], FloatArray]
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near a chunk is to the reference's. Both (T, A), compared in float64."""

    cosine: float
    max_abs: float
    p99_abs: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a gate. reason: why it failed, or empty.

    worst: the least agreement over all observations. follows_input: whether every chunk of the
    candidate was nearer to the reference's chunk for the same observation than to that for any
    other; a candidate that replays old input fails this even where all chunks look alike.
    """

    passed: bool
    reason: str
    worst: Agreement
    each: tuple[Agreement, ...]
    follows_input: bool


def compare(candidate: npt.ArrayLike, reference: npt.ArrayLike) -> Agreement:
    """Compare two chunks of equal shape; raises ConfigError when the shapes differ."""
    found: _Float64 = np.asarray(candidate, dtype=np.float64)
    wanted: _Float64 = np.asarray(reference, dtype=np.float64)
    if found.shape != wanted.shape:
        raise ConfigError('parity', found=f'shape {found.shape}', expected=f'{wanted.shape}')
    difference = np.abs(found - wanted)
    lengths = float(np.linalg.norm(found) * np.linalg.norm(wanted))
    cosine = float((found * wanted).sum()) / lengths if lengths > 0 else float(lengths == 0)
    if not np.isfinite(found).all():
        cosine = float('nan')
    return Agreement(
        cosine=cosine,
        max_abs=float(difference.max()),
        p99_abs=float(np.percentile(difference, 99)),
    )


def gate(
    candidate: Predict,
    reference: Predict,
    observations: Sequence[Observation],
    *,
    min_cosine: float,
    max_abs: float,
) -> Verdict:
    """Run both on every observation and judge. At least two different observations are needed.

    The observations must not be those a tier was calibrated on.
    """
    if len(observations) < 2:
        raise ConfigError(
            'parity', found=f'{len(observations)} observations', expected='at least 2'
        )
    found = [candidate(observation) for observation in observations]
    wanted = [reference(observation) for observation in observations]
    each = tuple(compare(a, b) for a, b in zip(found, wanted, strict=True))
    worst = Agreement(
        cosine=min(a.cosine for a in each) if all(a.cosine == a.cosine for a in each) else -1.0,
        max_abs=max((a.max_abs for a in each), key=lambda v: np.inf if v != v else v),
        p99_abs=max((a.p99_abs for a in each), key=lambda v: np.inf if v != v else v),
    )
    follows = _follows_input(found, wanted)
    reasons = []
    if not worst.cosine >= min_cosine:
        reasons.append(f'cosine {worst.cosine:.7f} below {min_cosine}')
    if not worst.max_abs <= max_abs:
        reasons.append(f'largest difference {worst.max_abs:.3g} above {max_abs}')
    if not follows:
        reasons.append('its output does not follow its input')
    return Verdict(
        passed=not reasons,
        reason='; '.join(reasons),
        worst=worst,
        each=each,
        follows_input=follows,
    )


def _follows_input(found: Sequence[FloatArray], wanted: Sequence[FloatArray]) -> bool:
    """Whether each found chunk is nearest to its own wanted one, where those differ at all."""
    for index, chunk in enumerate(found):
        own = float(np.abs(chunk - wanted[index]).max())
        for other, rival in enumerate(wanted):
            if other == index or np.array_equal(rival, wanted[index]):
                continue
            if not own < float(np.abs(chunk - rival).max()):
                return False
    return True


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

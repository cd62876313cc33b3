"""The observations that a form is calibrated with, and those that it is judged by. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.parity import probe_observations
from sparkrt_ros.runtime.types import Capabilities, Observation

CALIBRATED_WITH = 2
JUDGED_BY = 3
MOST_RECORDED = 16
"""Observations to take from a file: more of them make loading longer and hardly a better form."""
_CALIBRATION_SEED = 1
_HELD_OUT = 4
"""One of so many recorded observations is held out."""
FEWEST = 2 * _HELD_OUT


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Observations; calibration and gate have none in common.

    source: where they are from, in words.
    """

    calibration: tuple[Observation, ...]
    gate: tuple[Observation, ...]
    source: str

    @classmethod
    def synthetic(cls, needs: Capabilities) -> Samples:
        """Random pictures and vectors, for policies that come without observations."""
        seed = _CALIBRATION_SEED
        return cls(
            calibration=probe_observations(needs, count=CALIBRATED_WITH, seed=seed),
            gate=probe_observations(needs, count=JUDGED_BY),
            source='synthetic pictures and vectors',
        )

    @classmethod
    def recorded(cls, observations: Sequence[Observation], *, source: str) -> Samples:
        """Every fourth of the user's observations is held out for the gate.

        Raises ConfigError for fewer than ``FEWEST``.
        """
        if len(observations) < FEWEST:
            raise ConfigError(
                source,
                found=f'{len(observations)} observations',
                expected=f'at least {FEWEST}, better some dozens over several episodes',
            )
        held_out = range(_HELD_OUT - 1, len(observations), _HELD_OUT)
        return cls(
            calibration=tuple(o for i, o in enumerate(observations) if i not in held_out),
            gate=tuple(observations[i] for i in held_out),
            source=source,
        )

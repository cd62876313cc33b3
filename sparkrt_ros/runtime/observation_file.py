"""Recorded observations in a file, for calibrating and for gates. Imports no torch.

A ``.npz`` file with one array per input, all of the same first dimension N, in order of time:
images by policy key, (N, H, W, 3) uint8 RGB; ``observation.state`` (N, S) and
``observation.environment_state`` (N, E) float32, in the policy's own units.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.checkpoint.features import ENVIRONMENT_STATE_KEY, STATE_KEY
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import Observation

_REMEDY = 'write it with sparkrt_ros.runtime.observation_file.write_observations'


def write_observations(path: Path | str, observations: Sequence[Observation]) -> None:
    """Write observations that all have the same inputs. Raises ConfigError where they differ."""
    rows = [_arrays(observation) for observation in observations]
    kinds = {tuple((key, value.shape) for key, value in row.items()) for row in rows}
    if len(kinds) != 1:
        raise ConfigError(
            'observations', found=f'{len(kinds)} kinds', expected='the same inputs in all of them'
        )
    stacked = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    with Path(path).open('wb') as file:
        np.savez_compressed(file, **stacked)  # type: ignore[arg-type]


def read_observations(path: Path | str) -> tuple[Observation, ...]:
    """Read what ``write_observations`` wrote. Raises ConfigError naming the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(
            str(path), found=str(error), expected='a file of observations', remedy=_REMEDY
        ) from error
    counts = {len(value) if value.ndim else 0 for value in arrays.values()}
    if len(counts) != 1 or not min(counts):
        raise ConfigError(
            str(path),
            found=f'arrays of lengths {sorted(counts)}',
            expected='one array per input, all of the same length',
            remedy=_REMEDY,
        )
    vectors = {key: arrays.pop(key, None) for key in (STATE_KEY, ENVIRONMENT_STATE_KEY)}
    return tuple(
        Observation(
            images={key: value[index] for key, value in arrays.items()},
            state=_row(vectors[STATE_KEY], index),
            environment_state=_row(vectors[ENVIRONMENT_STATE_KEY], index),
        )
        for index in range(min(counts))
    )


def _arrays(observation: Observation) -> dict[str, npt.NDArray[Any]]:
    vectors = {
        STATE_KEY: observation.state,
        ENVIRONMENT_STATE_KEY: observation.environment_state,
    }
    return {
        **observation.images,
        **{key: value for key, value in vectors.items() if value is not None},
    }


def _row(values: npt.NDArray[Any] | None, index: int) -> npt.NDArray[np.float32] | None:
    return None if values is None else values[index].astype(np.float32)

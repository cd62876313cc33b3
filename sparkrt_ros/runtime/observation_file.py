"""Recorded observations in a file, for calibrating and for gates. Imports no torch.

An uncompressed ``.npz`` file with one array per input, all of the same first dimension N, in
order of time: images ``observation.images.*`` (N, H, W, 3) uint8 RGB, ``observation.state``
(N, S) and ``observation.environment_state`` (N, E) float32, in the policy's own units. Arrays of
other names are not read. ``sparkrt parity BAG --export-observations FILE`` writes such a file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.checkpoint.features import ENVIRONMENT_STATE_KEY, STATE_KEY
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import Observation

_PREFIX = 'observation.'
_IMAGES = 'observation.images.'
_Rows = list[npt.NDArray[Any]]


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
        np.savez(file, **stacked)  # type: ignore[arg-type]


def read_observations(path: Path | str, *, most: int) -> tuple[Observation, ...]:
    """Read up to ``most`` observations, evenly spaced over the file, in order.

    No more than these are held in memory. Raises ConfigError naming the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith(_PREFIX)]
            columns = {name.removesuffix('.npy'): _read(archive, name, most) for name in names}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _refused(path, str(error)) from error
    counts = {count for count, _ in columns.values()}
    if len(counts) != 1:
        raise _refused(path, f'arrays of lengths {sorted(counts)}' if counts else 'no inputs')
    vectors = {key: columns.pop(key, None) for key in (STATE_KEY, ENVIRONMENT_STATE_KEY)}
    state, environment = (None if v is None else v[1] for v in vectors.values())
    return tuple(
        Observation(
            images={key: rows[place] for key, (_, rows) in columns.items()},
            state=None if state is None else state[place],
            environment_state=None if environment is None else environment[place],
        )
        for place in range(min(most, *counts))
    )


def _arrays(observation: Observation) -> dict[str, npt.NDArray[Any]]:
    images = {
        key if key.startswith(_PREFIX) else _IMAGES + key: image
        for key, image in observation.images.items()
    }
    vectors = {
        STATE_KEY: observation.state,
        ENVIRONMENT_STATE_KEY: observation.environment_state,
    }
    return {**images, **{key: value for key, value in vectors.items() if value is not None}}


def _read(archive: zipfile.ZipFile, name: str, most: int) -> tuple[int, _Rows]:
    """How many rows there are, and the wanted ones. A file may be far larger than memory."""
    with archive.open(name) as file:
        shape, dtype = _header(file)
        size = int(np.prod(shape[1:])) * dtype.itemsize
        wanted = set(np.linspace(0, shape[0] - 1, min(most, shape[0])).astype(int).tolist())
        rows = []
        for index in range(shape[0]):
            if index in wanted:
                data = file.read(size)
                if len(data) < size:
                    raise ValueError(f'{name} ends in row {index} of {shape[0]}')
                rows.append(np.frombuffer(bytearray(data), dtype=dtype).reshape(shape[1:]))
            else:
                file.seek(size, 1)
    return shape[0], rows


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f'an array in version {version} of the format')
    shape, in_fortran_order, dtype = read(file)
    if in_fortran_order or dtype.hasobject or not shape or not shape[0]:
        raise ValueError(f'an array of shape {shape} and type {dtype}')
    return shape, dtype


def _refused(path: Path | str, found: str) -> ConfigError:
    return ConfigError(
        str(path),
        found=found,
        expected='a file of observations',
        remedy='write it with: sparkrt parity BAG --export-observations FILE',
    )

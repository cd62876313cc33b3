"""The two files that travel to LeRobot and back; ``docs/parity.md`` describes them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import FloatArray, Observation

OBSERVATIONS_FORMAT = 'sparkrt-observations-1'
ACTIONS_FORMAT = 'sparkrt-actions-1'
STATE_KEY = 'observation.state'
_COPY_BYTES = 1 << 20
_Array = npt.NDArray[np.generic]


def observation_arrays(observation: Observation) -> dict[str, _Array]:
    """The arrays of one observation by policy key, sorted: what is exported and hashed."""
    arrays: dict[str, _Array] = dict(observation.images)
    if observation.state is not None:
        arrays[STATE_KEY] = observation.state
    return dict(sorted(arrays.items()))


class ObservationDigest:
    """SHA-256 over observations as they come."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, observation: Observation) -> None:
        for key, value in observation_arrays(observation).items():
            self._hash.update(key.encode() + b'\0')
            self._hash.update(np.ascontiguousarray(value).data)
        self._hash.update(np.array(observation.stamp_ns, dtype='<i8').tobytes())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class ObservationWriter:
    """Writes observations row by row, so that a long bag needs disk and no memory.

    A context manager: the file appears, whole, when ``finish`` is called; without it, never.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[str, _Column] = {}
        self._digest = ObservationDigest()
        self._count = 0

    def add(self, observation: Observation, *, noise: FloatArray | None = None) -> None:
        """Append one row. Raises ConfigError where it has not the arrays of the first."""
        row = observation_arrays(observation)
        row['stamps_ns'] = np.array(observation.stamp_ns, dtype=np.int64)
        if noise is not None:
            row['noise'] = noise
        if self._count == 0:
            self._columns = {key: _Column(value) for key, value in row.items()}
        if row.keys() != self._columns.keys():
            raise ConfigError(
                str(self._path), found=f'a row of {list(row)}', expected=f'{list(self._columns)}'
            )
        for key, value in row.items():
            self._columns[key].add(value)
        self._digest.add(observation)
        self._count += 1

    def finish(self, meta: Mapping[str, Any]) -> str:
        """Write the file and return the digest of the observations, which ``meta`` gets too."""
        digest = self._digest.hexdigest()
        content = {
            'format': OBSERVATIONS_FORMAT,
            'observations_digest': digest,
            'count': self._count,
            **meta,
        }
        partial = self._path.with_name(f'.{self._path.name}.part')
        try:
            with zipfile.ZipFile(partial, 'w', zipfile.ZIP_STORED, allowZip64=True) as archive:
                for key, column in self._columns.items():
                    with archive.open(f'{key}.npy', 'w', force_zip64=True) as member:
                        column.copy_to(member, count=self._count)
                with archive.open('meta.npy', 'w') as member:
                    np.lib.format.write_array(member, np.array(json.dumps(content)))
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)
        return digest

    def __enter__(self) -> ObservationWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for column in self._columns.values():
            column.close()


class _Column:
    """One array of the file, on disk until its length is known."""

    def __init__(self, first: _Array) -> None:
        self._shape, self._dtype = first.shape, first.dtype
        self._file: IO[bytes] = TemporaryFile(prefix='sparkrt_export_')  # noqa: SIM115 - closed by close

    def add(self, value: _Array) -> None:
        if value.shape != self._shape or value.dtype != self._dtype:
            raise ConfigError(
                'observations',
                found=f'{value.dtype} of shape {value.shape}',
                expected=f'{self._dtype} of shape {self._shape}, as in the first',
            )
        self._file.write(np.ascontiguousarray(value).data)

    def copy_to(self, member: IO[bytes], *, count: int) -> None:
        header = {
            'descr': np.lib.format.dtype_to_descr(self._dtype),
            'fortran_order': False,
            'shape': (count, *self._shape),
        }
        np.lib.format.write_array_header_2_0(member, header)
        self._file.seek(0)
        while block := self._file.read(_COPY_BYTES):
            member.write(block)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeignActions:
    """What another program computed from exported observations.

    actions: (N, T, A) in policy units; normalized: the same in model space. meta: as in the file.
    """

    actions: FloatArray
    normalized: FloatArray
    stamps_ns: npt.NDArray[np.int64]
    meta: Mapping[str, Any]

    @property
    def label(self) -> str:
        return str(self.meta.get('producer', 'lerobot'))


def read_actions(path: Path) -> ForeignActions:
    """Read a file of actions. Raises ConfigError for anything that is not one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise _refused(path, f'no readable .npz file ({error})') from error
    missing = [n for n in ('actions', 'normalized', 'stamps_ns', 'meta') if n not in content]
    if missing:
        raise _refused(path, f'{", ".join(content) or "nothing"}, without {", ".join(missing)}')
    try:
        meta = json.loads(str(content['meta']))
    except ValueError as error:
        raise _refused(path, f'meta that is no JSON ({error})') from error
    if not isinstance(meta, dict) or meta.get('format') != ACTIONS_FORMAT:
        found = meta.get('format') if isinstance(meta, dict) else type(meta).__name__
        raise _refused(path, f'format {found!r}')
    actions, normalized = content['actions'], content['normalized']
    shapes = f'actions {_shape(actions)}, normalized {_shape(normalized)}'
    if actions.ndim != 3 or actions.shape != normalized.shape:
        raise _refused(path, shapes)
    if content['stamps_ns'].shape != actions.shape[:1]:
        raise _refused(path, f'{shapes}, stamps_ns {_shape(content["stamps_ns"])}')
    return ForeignActions(
        actions=actions.astype(np.float32),
        normalized=normalized.astype(np.float32),
        stamps_ns=content['stamps_ns'].astype(np.int64),
        meta=meta,
    )


def check_same_policy(
    foreign: ForeignActions, *, path: Path, checkpoint_digest: str, weights_sha256: str
) -> None:
    """Raise ConfigError where the actions come from another policy."""
    for key, wanted in (
        ('checkpoint_digest', checkpoint_digest),
        ('weights_sha256', weights_sha256),
    ):
        found = foreign.meta.get(key)
        if found != wanted:
            raise ConfigError(
                f'{path}, {key}',
                found=str(found),
                expected=wanted,
                remedy='compute the actions with the same policy folder',
            )


def check_same_observations(
    foreign: ForeignActions,
    *,
    path: Path,
    stamps_ns: npt.NDArray[np.int64],
    digest: str,
) -> None:
    """Raise ConfigError where the actions were computed from other observations."""
    remedy = 'export the observations again, with the same options, and compute the actions anew'
    if not np.array_equal(foreign.stamps_ns, stamps_ns):
        raise ConfigError(
            f'{path}, stamps_ns',
            found=f'{len(foreign.stamps_ns)} observations at other times',
            expected=f'{len(stamps_ns)} observations of this replay',
            remedy=remedy,
        )
    found = foreign.meta.get('observations_digest')
    if found != digest:
        raise ConfigError(
            f'{path}, observations_digest', found=str(found), expected=digest, remedy=remedy
        )


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open('rb') as stream:
        for block in _blocks(stream):
            digest.update(block)
    return digest.hexdigest()


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(_COPY_BYTES):
        yield block


def _shape(array: _Array) -> str:
    return str(tuple(array.shape))


def _refused(path: Path, found: str) -> ConfigError:
    return ConfigError(
        str(path),
        found=found,
        expected=f'actions in the format {ACTIONS_FORMAT} of docs/parity.md: actions and '
        'normalized (N, T, A), stamps_ns (N,), meta',
        remedy='make it with tools/lerobot_actions.py',
    )

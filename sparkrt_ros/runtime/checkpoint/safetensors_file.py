"""Reading safetensors files: the header is checked before anything is allocated.

Layout: 8 bytes little-endian length N, N bytes of JSON, then the tensors without gaps. A damaged
file is recognised from its first kilobytes and its size. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.checkpoint.files import (
    LFS_REMEDY,
    lfs_pointer_text,
    parse_json,
)
from sparkrt_ros.runtime.errors import CheckpointError

FloatArray = npt.NDArray[np.float32]

MAX_HEADER_BYTES = 100_000_000
ITEM_BYTES: Mapping[str, int] = {
    'F64': 8,
    'F32': 4,
    'F16': 2,
    'BF16': 2,
    'F8_E4M3': 1,
    'F8_E5M2': 1,
    'I64': 8,
    'I32': 4,
    'I16': 2,
    'I8': 1,
    'U64': 8,
    'U32': 4,
    'U16': 2,
    'U8': 1,
    'BOOL': 1,
}
_NUMPY_TYPES: Mapping[str, str] = {
    'F64': '<f8',
    'F32': '<f4',
    'F16': '<f2',
    'I64': '<i8',
    'I32': '<i4',
    'I16': '<i2',
    'I8': 'i1',
    'U64': '<u8',
    'U32': '<u4',
    'U16': '<u2',
    'U8': 'u1',
    'BOOL': '?',
}
_ZIP_MAGIC = b'PK\x03\x04'
_PICKLE_MAGIC = b'\x80'
_REMEDY = 'copy or download the file again'


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor of a file: ``dtype`` in safetensors' spelling, ``start`` a byte of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class SafetensorsHeader:
    """What a file holds, in the order of its bytes."""

    path: Path
    size_bytes: int
    tensors: Mapping[str, TensorInfo]


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check the header of a safetensors file; cost does not depend on the file's size.

    Raises ``CheckpointError`` naming file, size found and size needed for: missing, empty, LFS
    pointer, another format, truncated, trailing bytes, malformed header.
    """
    if not path.is_file():
        raise CheckpointError(
            str(path), found='no such file', expected='a safetensors file', remedy=_REMEDY
        )
    size = path.stat().st_size
    _refuse_pointer(path)
    with path.open('rb') as stream:
        head = stream.read(8)
        length = _header_length(path, head, size)
        text = stream.read(length)
    entries = _parse_header(path, text)
    tensors = _tensor_table(path, entries, data_start=8 + length)
    needed = 8 + length + sum(info.size_bytes for info in tensors.values())
    if size != needed:
        problem = 'truncated' if size < needed else f'{size - needed} trailing bytes'
        raise CheckpointError(
            str(path),
            found=f'{size} bytes ({problem})',
            expected=f'{needed} bytes',
            remedy=_REMEDY,
        )
    return SafetensorsHeader(path=path, size_bytes=size, tensors=tensors)


def _refuse_pointer(path: Path) -> None:
    pointer = lfs_pointer_text(path)
    if pointer:
        raise CheckpointError(
            str(path), found=pointer, expected='a safetensors file', remedy=LFS_REMEDY
        )


def _header_length(path: Path, head: bytes, size: int) -> int:
    """Return the length of the JSON, checked against the size of the file."""
    if len(head) < 8:
        raise CheckpointError(
            str(path),
            found=f'{size} bytes',
            expected='a safetensors file, at least 8 bytes and its tensors',
            remedy=_REMEDY,
        )
    length = int.from_bytes(head, 'little')
    if not 2 <= length <= MAX_HEADER_BYTES:
        if head.startswith((_ZIP_MAGIC, _PICKLE_MAGIC)):
            raise CheckpointError(
                str(path),
                found='a PyTorch pickle or zip archive under this name',
                expected='a safetensors file',
                remedy='convert it where you trust it; pickles are never opened here',
            )
        raise CheckpointError(
            str(path),
            found=f'{size} bytes starting with {head!r}, a header length of {length}',
            expected=f'a safetensors file (header of 2 to {MAX_HEADER_BYTES} bytes)',
            remedy=_REMEDY,
        )
    if size < 8 + length:
        raise CheckpointError(
            str(path),
            found=f'{size} bytes (truncated inside the header)',
            expected=f'more than {8 + length} bytes',
            remedy=_REMEDY,
        )
    return length


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise _malformed(path, f'a header that is not JSON ({error})') from error
    if not isinstance(entries, dict):
        raise _malformed(path, f'a header of type {type(entries).__name__}')
    entries.pop('__metadata__', None)
    return entries


def _tensor_table(
    path: Path, entries: Mapping[str, Any], *, data_start: int
) -> dict[str, TensorInfo]:
    """Return the tensors in the order of their bytes; they must lie without gap or overlap."""
    parsed = [(name, *_parse_entry(path, name, entry)) for name, entry in entries.items()]
    parsed.sort(key=lambda item: (item[2], item[3]))
    position = 0
    tensors = {}
    for name, info, begin, end in parsed:
        if begin != position:
            raise _malformed(path, f'tensor {name} at byte {begin} where {position} is due')
        if end - begin != info.size_bytes:
            raise _malformed(
                path,
                f'tensor {name}, {info.dtype} {list(info.shape)}, on {end - begin} bytes '
                f'where it needs {info.size_bytes}',
            )
        tensors[name] = TensorInfo(dtype=info.dtype, shape=info.shape, start=data_start + begin)
        position = end
    return tensors


def _parse_entry(path: Path, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    if not isinstance(entry, dict):
        raise _malformed(path, f'tensor {name} described by {type(entry).__name__}')
    dtype, shape, offsets = (entry.get(key) for key in ('dtype', 'shape', 'data_offsets'))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _malformed(path, f'tensor {name} of unknown type {dtype!r}')
    sizes, bounds = _sizes(shape), _sizes(offsets)
    if sizes is None or bounds is None or len(bounds) != 2:
        raise _malformed(path, f'tensor {name} with shape {shape!r} and offsets {offsets!r}')
    return TensorInfo(dtype=dtype, shape=sizes, start=0), bounds[0], bounds[1]


def _sizes(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def _malformed(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        str(path), found=found, expected='a well-formed safetensors header', remedy=_REMEDY
    )


def read_arrays(header: SafetensorsHeader, names: Iterable[str]) -> dict[str, FloatArray]:
    """Return the named tensors as float32 arrays of their own memory; meant for small ones.

    Raises ``CheckpointError`` for an 8-bit float, which is never the storage of statistics.
    """
    arrays = {}
    with header.path.open('rb') as stream:
        for name in names:
            info = header.tensors[name]
            stream.seek(info.start)
            arrays[name] = _to_float32(header.path, name, info, stream.read(info.size_bytes))
    return arrays


def _to_float32(path: Path, name: str, info: TensorInfo, data: bytes) -> FloatArray:
    if info.count == 0:
        return np.zeros(info.shape, dtype=np.float32)
    if info.dtype == 'BF16':
        # A bfloat16 is the upper half of the float32 with the same value.
        halves = np.frombuffer(data, dtype='<u2').astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(info.shape)
    if info.dtype not in _NUMPY_TYPES:
        raise CheckpointError(
            f'{path}: {name}', found=f'type {info.dtype}', expected='a float or integer type'
        )
    values = np.frombuffer(data, dtype=_NUMPY_TYPES[info.dtype])
    with np.errstate(over='ignore'):
        return values.astype(np.float32).reshape(info.shape)

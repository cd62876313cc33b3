"""The header of a safetensors file is checked before anything is allocated."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sparkrt_ros.runtime.checkpoint.safetensors_file import read_arrays, read_header
from sparkrt_ros.runtime.errors import CheckpointError


def entry(dtype: str = 'F32', shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {'dtype': dtype, 'shape': shape, 'data_offsets': offsets}


def encoded(header: Any, data: bytes = b'') -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + data


GOOD = encoded({'a': entry()}, b'\0' * 8)


def test_header_agrees_with_the_library(tmp_path: Path) -> None:
    arrays = {
        'b.weight': np.arange(6, dtype=np.float32).reshape(2, 3),
        'a.half': np.ones((4,), dtype=np.float16),
        'empty': np.zeros((0, 3), dtype=np.float32),
        'count': np.array([7], dtype=np.int64),
    }
    save_file(arrays, tmp_path / 'x.safetensors', metadata={'format': 'np'})
    header = read_header(tmp_path / 'x.safetensors')
    found = {name: info.shape for name, info in header.tensors.items()}
    assert found == {name: array.shape for name, array in arrays.items()}
    assert header.tensors['a.half'].dtype == 'F16'
    assert header.size_bytes == (tmp_path / 'x.safetensors').stat().st_size
    read = read_arrays(header, arrays)
    for name, array in arrays.items():
        assert read[name].dtype == np.float32
        np.testing.assert_array_equal(read[name], array.astype(np.float32))


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    torch = pytest.importorskip('torch')
    from safetensors.torch import save_file as save_torch

    values = torch.tensor([1.5, -2.0e30, 3.0e-39, float('inf')], dtype=torch.bfloat16)
    save_torch({'x': values}, tmp_path / 'x.safetensors')
    read = read_arrays(read_header(tmp_path / 'x.safetensors'), ['x'])['x']
    np.testing.assert_array_equal(read, values.float().numpy())


DAMAGED = {
    'empty': (b'', 'found 0 bytes'),
    'seven bytes': (b'\0' * 7, 'found 7 bytes'),
    'zero header': (struct.pack('<Q', 0), 'header length of 0'),
    'huge header': (struct.pack('<Q', 2**63) + b'x' * 99, 'a header length of'),
    'cut in the header': (GOOD[:30], f'expected more than {len(GOOD) - 8} bytes'),
    'cut in the data': (GOOD[:-1], f'{len(GOOD) - 1} bytes (truncated); expected {len(GOOD)}'),
    'trailing bytes': (GOOD + b'\0' * 16, '(16 trailing bytes)'),
    'html page': (b'<!DOCTYPE html><html>' + b' ' * 100, "starting with b'<!DOCTYP'"),
    'zip archive': (b'PK\x03\x04' + b'\x08' * 99, 'a PyTorch pickle or zip archive'),
    'pickle': (b'\x80\x02}q\x00X\x03\x00' + b'\x08' * 99, 'a PyTorch pickle or zip archive'),
    'not json': (encoded(b'{"a": }'), 'a header that is not JSON'),
    'a list': (encoded(b'[1]'), 'a header of type list'),
    'tensor twice': (
        encoded(b'{"a": 1, "a": 2}'),
        'key given twice: a',
    ),
    'entry no object': (encoded({'a': 3}), 'tensor a described by int'),
    'unknown type': (encoded({'a': entry('F4')}, b'\0' * 8), "unknown type 'F4'"),
    'type no string': (encoded({'a': entry(['F32'])}, b'\0' * 8), 'unknown type'),  # type: ignore[arg-type]
    'negative size': (encoded({'a': entry(shape=(-2,))}, b'\0' * 8), 'with shape [-2]'),
    'boolean size': (encoded({'a': entry(shape=(True, 2))}, b'\0' * 8), 'with shape [True, 2]'),
    'no shape': (encoded({'a': entry(shape=None)}, b'\0' * 8), 'with shape None'),
    'three offsets': (encoded({'a': entry(offsets=(0, 4, 8))}, b'\0' * 8), 'offsets [0, 4, 8]'),
    'shape and bytes differ': (
        encoded({'a': entry(shape=(3,))}, b'\0' * 8),
        'on 8 bytes where it needs 12',
    ),
    'offsets reversed': (encoded({'a': entry(offsets=(8, 0))}, b'\0' * 8), 'at byte 8 where 0'),
    'gap': (
        encoded({'a': entry(), 'b': entry(offsets=(12, 20))}, b'\0' * 20),
        'tensor b at byte 12 where 8 is due',
    ),
    'overlap': (
        encoded({'a': entry(), 'b': entry(offsets=(4, 12))}, b'\0' * 12),
        'tensor b at byte 4 where 8 is due',
    ),
    'enormous claim': (
        encoded({'a': entry(shape=(2**40, 2**40), offsets=(0, 2**82))}),
        '(truncated); expected',
    ),
}


@pytest.mark.parametrize('name', DAMAGED)
def test_damage_is_named_quickly(tmp_path: Path, name: str) -> None:
    data, found = DAMAGED[name]
    path = tmp_path / 'model.safetensors'
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert time.process_time() - start < 0.5
    assert str(caught.value).startswith(str(path))
    assert found in str(caught.value)
    assert caught.value.remedy


def test_sparse_giant_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / 'model.safetensors'
    path.write_bytes(GOOD)
    with path.open('r+b') as stream:
        stream.truncate(1 << 40)
    start = time.process_time()
    with pytest.raises(CheckpointError, match='trailing bytes'):
        read_header(path)
    assert time.process_time() - start < 0.5


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(GOOD) - 9),
    value=st.integers(0, 255),
    cut=st.integers(0, len(GOOD)),
)
def test_any_damage_to_the_header_gives_a_header_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / 'fuzzed.safetensors'
    data = bytearray(GOOD)
    data[at] = value
    path.write_bytes(bytes(data[:cut]) if cut % 2 else bytes(data))
    try:
        header = read_header(path)
    except CheckpointError:
        return
    assert sum(info.size_bytes for info in header.tensors.values()) == 8


def test_eight_bit_statistics_are_refused(tmp_path: Path) -> None:
    path = tmp_path / 'x.safetensors'
    path.write_bytes(encoded({'a': entry('F8_E4M3', offsets=(0, 2))}, b'\0' * 2))
    with pytest.raises(CheckpointError, match='a: found type F8_E4M3'):
        read_arrays(read_header(path), ['a'])

"""Weight files as downloads leave them: a pointer, cut, empty, too long, another format.

Every kind fails in well under a second, before anything is allocated for the weights, and the
message has the file, the size found and the size needed.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from act_folder_factory import write_bytes

from sparkrt_ros.runtime.checkpoint import load_checkpoint
from sparkrt_ros.runtime.errors import CheckpointError

POINTER = (
    b'version https://git-lfs.github.com/spec/v1\n'
    b'oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n'
    b'size 206766356\n'
)
HEAD_BYTES = 8


def header_bytes(path: Path) -> int:
    return HEAD_BYTES + int.from_bytes(path.read_bytes()[:HEAD_BYTES], 'little')


def cut_to(share: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * share)]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    'pointer': lambda _: POINTER,
    'cut to half': cut_to(0.5),
    'one byte short': lambda data: data[:-1],
    'cut in the header': lambda data: data[:2000],
    'only the length': lambda data: data[:8],
    'empty': lambda _: b'',
    'sixteen trailing bytes': lambda data: data + b'\0' * 16,
    'downloaded twice': lambda data: data + data,
    'web page': lambda _: b'<html><body>404 Not Found</body></html>' * 50,
    'pickle in disguise': lambda _: b'PK\x03\x04' + b'\x01' * 1000,
}


def found_and_needed(name: str, damaged: bytes, good: Path) -> list[str]:
    size = good.stat().st_size
    if name == 'pointer':
        assert len(POINTER) < 140
        return ['Git LFS pointer', f'{len(POINTER)} bytes', '206766356 bytes', 'git lfs pull']
    if name in ('empty', 'web page'):
        return [f'{len(damaged)} bytes', 'a safetensors file']
    if name == 'pickle in disguise':
        return ['pickle', 'safetensors']
    if len(damaged) < header_bytes(good):
        return [f'{len(damaged)} bytes', f'more than {header_bytes(good)} bytes']
    return [f'{len(damaged)} bytes', f'expected {size} bytes']


@pytest.mark.parametrize('name', DAMAGE)
def test_damaged_weights_fail_fast_and_say_what_is_wrong(act_folder: Path, name: str) -> None:
    path = act_folder / 'model.safetensors'
    good = path.rename(act_folder.parent / 'good.safetensors')
    damaged = DAMAGE[name](good.read_bytes())
    write_bytes(path, damaged)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(act_folder)
    elapsed_s = time.process_time() - start
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed_s < 1.0
    assert peak_bytes < 4_000_000
    assert caught.value.where == str(path)
    for text in found_and_needed(name, damaged, good):
        assert text in str(caught.value)


@pytest.mark.parametrize('name', ['pointer', 'cut to half', 'empty', 'sixteen trailing bytes'])
@pytest.mark.parametrize('pipeline', ['policy_preprocessor.json', 'policy_postprocessor.json'])
def test_damaged_statistics_fail_the_same_way(act_folder: Path, pipeline: str, name: str) -> None:
    steps = json.loads((act_folder / pipeline).read_text())['steps']
    path = act_folder / next(step['state_file'] for step in steps if 'state_file' in step)
    good = path.rename(act_folder.parent / 'good.safetensors')
    damaged = DAMAGE[name](good.read_bytes())
    write_bytes(path, damaged)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(act_folder)
    assert caught.value.where == str(path)
    for text in found_and_needed(name, damaged, good):
        assert text in str(caught.value)


def test_nothing_is_ever_unpickled(act_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    import torch

    for target in (pickle, torch):
        monkeypatch.setattr(target, 'load', lambda *_, **__: pytest.fail('unpickled'))
    (act_folder / 'pytorch_model.bin').write_bytes(pickle.dumps({'a': 1}))
    load_checkpoint(act_folder)
    (act_folder / 'model.safetensors').unlink()
    with pytest.raises(CheckpointError, match=r'pytorch_model\.bin.*never opened'):
        load_checkpoint(act_folder)

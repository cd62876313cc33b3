"""What is said when device memory runs out; the device's answers are simulated."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest
import torch

from sparkrt_ros.runtime import planning
from sparkrt_ros.runtime.checkpoint.safetensors_file import TensorInfo
from sparkrt_ros.runtime.device_memory import float32_bytes, memory_explained
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.policy import load_policy

CUDA = torch.device('cuda', 0)
ALLOCATOR = torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB.\nmore')
CONTEXT = RuntimeError('CUDA error: out of memory\nCUDA kernel errors might be ...')


def run_out(error: Exception) -> BackendError:
    def fail() -> None:
        with memory_explained('loading', device=CUDA, needed_bytes=52_000_000):
            raise error

    with pytest.raises(BackendError) as caught:
        fail()
    return caught.value


@pytest.mark.parametrize('error', [ALLOCATOR, CONTEXT], ids=['allocator', 'context'])
def test_needed_and_free_bytes_are_named(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    monkeypatch.setattr(torch.cuda, 'mem_get_info', lambda device: (200_000_000, 150_000_000_000))
    found = str(run_out(error))
    assert '200.0 MB (200000000 bytes) free of 150000.0 MB' in found
    assert 'more than 52.0 MB (52000000 bytes)' in found
    assert str(error).splitlines()[0] in found
    assert 'end other programs' in found


def test_a_device_that_cannot_be_asked_still_gives_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError('CUDA error: out of memory')

    monkeypatch.setattr(torch.cuda, 'mem_get_info', fail)
    monkeypatch.setattr('ctypes.CDLL', lambda name: (_ for _ in ()).throw(OSError(name)))
    assert 'of which CUDA says nothing' in str(run_out(CONTEXT))


def test_other_errors_stay_what_they_are() -> None:
    error = RuntimeError('CUDA error: an illegal memory access was encountered')
    with (
        pytest.raises(RuntimeError) as caught,
        memory_explained('loading', device=CUDA, needed_bytes=1),
    ):
        raise error
    assert caught.value is error


def test_the_bytes_of_weights_are_those_they_take_once_loaded() -> None:
    tensors = {
        'a': TensorInfo(dtype='F32', shape=(3, 4), start=0),
        'b': TensorInfo(dtype='BF16', shape=(5,), start=48),
    }
    assert float32_bytes(tensors) == (3 * 4 + 5) * 4


def test_closing_a_policy_frees_it_at_once(act_folder: Path) -> None:
    policy = load_policy(act_folder)
    session = weakref.ref(policy._session)
    gc.disable()
    try:
        policy.close()
        assert session() is None
    finally:
        gc.enable()


def test_running_out_while_loading_is_explained(
    act_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ALLOCATOR

    monkeypatch.setattr(planning, 'make_backend', fail)
    with pytest.raises(BackendError, match=r'loading the policy.*for the weights') as caught:
        load_policy(act_folder)
    needed = int(re.search(r'more than .* \((\d+) bytes\)', str(caught.value)).group(1))
    assert needed > 10_000_000

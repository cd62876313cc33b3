"""Which device a name means; the machine's devices are simulated."""

from __future__ import annotations

import pytest
import torch

from sparkrt_ros.runtime.device import fp32_products, resolve_device
from sparkrt_ros.runtime.errors import ConfigError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    def pretend(count: int) -> None:
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: count > 0)
        monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)
        monkeypatch.setattr(torch.cuda, 'get_device_name', lambda index: f'Model {index}')

    return pretend


@pytest.mark.parametrize(
    ('name', 'count', 'expected'),
    [
        ('auto', 0, 'cpu'),
        ('auto', 2, 'cuda:0'),
        ('cpu', 2, 'cpu'),
        ('cuda', 1, 'cuda:0'),
        ('cuda:1', 2, 'cuda:1'),
    ],
)
def test_a_name_means_a_device(gpus, name: str, count: int, expected: str) -> None:
    gpus(count)
    assert str(resolve_device(name)) == expected


def test_a_gpu_that_is_not_there_names_those_that_are(gpus) -> None:
    gpus(1)
    with pytest.raises(ConfigError, match=r"'cuda:3'; expected one of cpu, cuda:0 \(Model 0\)"):
        resolve_device('cuda:3')


@pytest.mark.parametrize('name', ['cuda', 'cuda:0'])
def test_cuda_never_falls_back_to_the_cpu(gpus, name: str) -> None:
    gpus(0)
    with pytest.raises(ConfigError, match=r"expected one of cpu; remedy: choose 'cpu'"):
        resolve_device(name)


def test_another_kind_of_device_is_refused() -> None:
    with pytest.raises(ConfigError, match='cuda:N'):
        resolve_device('mps')


def test_fp32_switches_are_put_back_even_after_an_error() -> None:
    def switches() -> tuple[bool, bool]:
        return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    seen = []

    @fp32_products(allow_tf32=False)
    def fail() -> None:
        seen.append(switches())
        raise ZeroDivisionError

    before = switches()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [(False, False)]
    assert switches() == before


@pytest.mark.parametrize('name', ['auto', 'cuda', 'cuda:0'])
def test_a_process_forked_after_cuda_started_is_told_to_spawn(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """There torch may find no device at all, which must not be taken for a machine without one."""
    monkeypatch.setattr(torch.cuda, '_is_in_bad_fork', lambda: True)
    with pytest.raises(ConfigError, match=r"forked after CUDA had started.*'spawn'"):
        resolve_device(name)
    assert str(resolve_device('cpu')) == 'cpu'

"""Where int8 cannot serve it says so by name, before anything depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from int8_reference import CPU, calibration, needs_int8, span

from sparkrt_ros.runtime.cpu import cpu_flags
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.kernels import int8_support
from sparkrt_ros.runtime.kernels.int8 import Int8Linear
from sparkrt_ros.runtime.kernels.int8_support import make_int8_forms

RANGES = calibration(x=span(0, 1))
Patch = pytest.MonkeyPatch


def pretend(monkeypatch: Patch, *flags: str) -> None:
    monkeypatch.setattr(int8_support, 'cpu_flags', lambda: frozenset(flags))


@needs_int8
def test_this_processor_computes_it() -> None:
    assert make_int8_forms(RANGES, device=CPU).name == 'int8'


def test_a_processor_without_the_instructions_is_refused(monkeypatch: Patch) -> None:
    pretend(monkeypatch, 'avx2', 'avx512f')
    with pytest.raises(BackendError, match=r'int8: found a processor without.*avx512_vnni'):
        make_int8_forms(RANGES, device=CPU)


def test_a_gpu_is_refused() -> None:
    with pytest.raises(BackendError, match=r'device cuda:0; expected a CPU'):
        make_int8_forms(RANGES, device=torch.device('cuda', 0))


def test_a_torch_without_the_operators_is_refused(monkeypatch: Patch) -> None:
    pretend(monkeypatch, 'avx512_vnni')
    monkeypatch.setattr(int8_support, '_OPERATORS', ('qconv_prepack', 'no_such_operator'))
    with pytest.raises(BackendError, match=r'without no_such_operator;.*2\.11'):
        make_int8_forms(RANGES, device=CPU)


@needs_int8
def test_wrong_results_are_refused(monkeypatch: Patch) -> None:
    right = Int8Linear.__call__
    monkeypatch.setattr(Int8Linear, '__call__', lambda self, x: right(self, x) * 0.9)
    with pytest.raises(BackendError, match='linear differs from the plain operators'):
        make_int8_forms(RANGES, device=CPU)


@needs_int8
def test_an_operator_that_fails_is_refused(monkeypatch: Patch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError('could not create a primitive\nmore lines')

    monkeypatch.setattr(Int8Linear, '__call__', fail)
    with pytest.raises(BackendError, match=r'linear fails: could not create a primitive;'):
        make_int8_forms(RANGES, device=CPU)


@needs_int8
@pytest.mark.parametrize(
    ('flags', 'dtype'),
    [
        (('avx512_vnni', 'avx512_bf16'), torch.bfloat16),
        (('avx512_vnni',), torch.float32),
    ],
)
def test_attention_is_narrow_where_the_processor_is_fast_at_it(
    monkeypatch: Patch, flags: tuple[str, ...], dtype: torch.dtype
) -> None:
    pretend(monkeypatch, *flags)
    assert make_int8_forms(RANGES, device=CPU).attention_dtype == dtype


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    path = tmp_path / 'cpuinfo'
    path.write_text('processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n')
    assert cpu_flags(path) == {'fpu', 'avx2'}
    path.write_text('processor\t: 0\nFeatures\t: asimd i8mm\n')
    assert cpu_flags(path) == {'asimd', 'i8mm'}
    path.write_text('processor\t: 0\n')
    assert cpu_flags(path) == frozenset()
    assert cpu_flags(tmp_path / 'missing') == frozenset()

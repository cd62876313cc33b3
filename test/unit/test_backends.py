"""The contract of execution backends, on the eager one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from sparkrt_ros.runtime.backends.backend_config import BackendConfig
from sparkrt_ros.runtime.backends.base import Region, signature
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.backends.registry import BACKEND_NAMES, backend_class, make_backend
from sparkrt_ros.runtime.errors import BackendError, ConfigError

CPU = torch.device('cpu')
DOUBLE = Region(name='double', fn=lambda x: x * 2, capturable=True)


@pytest.fixture
def backend() -> EagerBackend:
    return EagerBackend(device=CPU)


def test_a_compiled_region_computes_what_the_region_computes(backend: EagerBackend) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(backend.compile(DOUBLE)(x), x * 2)


def test_before_sealing_every_shape_is_served(backend: EagerBackend) -> None:
    run = backend.compile(DOUBLE)
    for size in (1, 2, 3):
        assert run(torch.ones(size)).shape == (size,)


@pytest.mark.parametrize(
    'other',
    [
        torch.ones(2, 4),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, device='meta'),
    ],
    ids=['shape', 'dtype', 'strides', 'device'],
)
def test_a_sealed_backend_refuses_an_unseen_input(
    backend: EagerBackend, other: torch.Tensor
) -> None:
    run = backend.compile(DOUBLE)
    seen = torch.ones(2, 3)
    run(seen)
    backend.seal()
    with pytest.raises(BackendError, match=r'region double: found inputs .* after sealing'):
        run(other)
    assert torch.equal(run(seen), seen * 2)


def test_a_sealed_backend_compiles_nothing_more(backend: EagerBackend) -> None:
    assert not backend.sealed
    backend.seal()
    assert backend.sealed
    with pytest.raises(BackendError, match='after sealing'):
        backend.compile(DOUBLE)


def test_regions_are_sealed_with_the_shapes_of_their_own(backend: EagerBackend) -> None:
    first, second = backend.compile(DOUBLE), backend.compile(DOUBLE)
    first(torch.ones(2))
    second(torch.ones(3))
    backend.seal()
    with pytest.raises(BackendError):
        first(torch.ones(3))


def test_strides_of_single_elements_do_not_matter() -> None:
    tensor = torch.ones(1, 3, 4)
    odd = torch.as_strided(torch.ones(12), (1, 3, 4), (99, 4, 1))
    assert signature(odd) == signature(tensor)


def test_warm_up_runs_as_often_as_the_backend_needs_and_then_waits() -> None:
    calls: list[str] = []

    class Slow(EagerBackend):
        warm_up_rounds = 3

        def synchronize(self) -> None:
            calls.append('wait')

    Slow(device=CPU).warm_up(lambda: calls.append('run'))
    assert calls == ['run', 'run', 'run', 'wait']


def test_an_error_inside_a_region_reaches_the_caller(backend: EagerBackend) -> None:
    def fail(_x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.compile(Region(name='fail', fn=fail))(torch.ones(1))


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=rf"'warp'; expected one of {', '.join(BACKEND_NAMES)}"):
        make_backend(BackendConfig(kind='warp'), device=CPU)


@pytest.mark.parametrize('name', BACKEND_NAMES)
def test_a_backend_carries_the_name_it_is_registered_under(name: str) -> None:
    assert backend_class(name).name == name


def test_a_backend_is_made_for_its_device() -> None:
    backend = make_backend(BackendConfig(), device=CPU)
    assert isinstance(backend, EagerBackend)
    assert backend.device == CPU


def test_the_names_are_known_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; "
        'from sparkrt_ros.runtime.backends.registry import BACKEND_NAMES; '
        'from sparkrt_ros.runtime.config import RuntimeConfig; RuntimeConfig()'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        ({'compile_mode': 'reduce-overhead'}, 'compile_mode'),
        ({'warm_up_runs': 0}, 'warm_up_runs'),
        ({'warm_up_runs': True}, 'warm_up_runs'),
    ],
)
def test_an_impossible_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BackendConfig(**options)


@pytest.mark.parametrize('kind', BACKEND_NAMES)
def test_every_option_of_a_backend_is_one_its_class_takes(kind: str) -> None:
    parameters = inspect.signature(backend_class(kind)).parameters
    assert set(BackendConfig(kind=kind).options()) == set(parameters) - {'device'}

"""Backends by name. Knowing the names needs no torch; making one imports its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from sparkrt_ros.runtime.backends.backend_config import BackendConfig
from sparkrt_ros.runtime.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sparkrt_ros.runtime.backends.base import ExecutionBackend

_PLACES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        'eager': ('sparkrt_ros.runtime.backends.eager', 'EagerBackend'),
        'fused': ('sparkrt_ros.runtime.backends.eager', 'FusedBackend'),
        'cudagraph': ('sparkrt_ros.runtime.backends.cudagraph', 'CudaGraphBackend'),
        'torchcompile': ('sparkrt_ros.runtime.backends.torchcompile', 'TorchCompileBackend'),
    }
)
BACKEND_NAMES = tuple(_PLACES)


def check_backend_name(name: str) -> None:
    """Raise ConfigError, listing the known names, unless ``name`` is one of them."""
    if name not in _PLACES:
        raise ConfigError(
            'backend', found=repr(name), expected=f'one of {", ".join(BACKEND_NAMES)}'
        )


def backend_class(name: str) -> Callable[..., ExecutionBackend]:
    """Import the class registered as ``name``. Raises ConfigError for an unknown name."""
    check_backend_name(name)
    module, attribute = _PLACES[name]
    found: Callable[..., ExecutionBackend] = getattr(import_module(module), attribute)
    return found


def make_backend(config: BackendConfig, *, device: torch.device) -> ExecutionBackend:
    """Make the backend that ``config`` describes, for ``device``.

    Raises ConfigError for an unknown kind, BackendError when the backend cannot serve here.
    """
    return backend_class(config.kind)(device=device, **config.options())

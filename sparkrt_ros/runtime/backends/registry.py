"""Backends by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from sparkrt_ros.runtime.backends.base import ExecutionBackend
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.errors import ConfigError

BACKENDS: Mapping[str, Callable[..., ExecutionBackend]] = MappingProxyType(
    {EagerBackend.name: EagerBackend}
)
"""Name -> factory taking ``device``."""


def make_backend(name: str, *, device: torch.device) -> ExecutionBackend:
    """Make the backend called ``name`` for ``device``.

    Raises ConfigError for an unknown name, BackendError when the backend cannot serve here.
    """
    factory = BACKENDS.get(name)
    if factory is None:
        raise ConfigError(
            'backend', found=repr(name), expected=f'one of {", ".join(sorted(BACKENDS))}'
        )
    return factory(device=device)

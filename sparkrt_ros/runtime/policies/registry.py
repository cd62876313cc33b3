"""Adapters by the ``type`` of a policy's ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.errors import CheckpointError
from sparkrt_ros.runtime.policies.act_adapter import ActAdapter
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter

ADAPTERS: Mapping[str, Callable[..., PolicyAdapter]] = MappingProxyType({'act': ActAdapter})
"""Policy type -> factory taking (config, weights, device=..., weights_file=...)."""


def make_adapter(
    config: Any, weights: Mapping[str, Tensor], *, device: torch.device, weights_file: str
) -> PolicyAdapter:
    """Build the adapter for a typed configuration; ``weights_file`` is what its errors name.

    Raises CheckpointError for an unknown type, or weights that do not cover the network.
    """
    factory = ADAPTERS.get(config.model_type)
    if factory is None:
        raise CheckpointError(
            'config.json, type',
            found=repr(config.model_type),
            expected=f'one of {", ".join(sorted(ADAPTERS))}',
        )
    return factory(config, weights, device=device, weights_file=weights_file)

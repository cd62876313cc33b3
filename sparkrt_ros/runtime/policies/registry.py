"""Adapters by the ``type`` of a policy's ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.errors import CheckpointError, ConfigError
from sparkrt_ros.runtime.policies.act_adapter import ActAdapter, act_capabilities
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter, pi_capabilities
from sparkrt_ros.runtime.types import Capabilities
from sparkrt_ros.runtime.vla_config import VlaConfig

ADAPTERS: Mapping[str, Callable[..., PolicyAdapter]] = MappingProxyType(
    {'act': ActAdapter, 'pi0': PiAdapter, 'pi05': PiAdapter}
)
"""Policy type -> factory taking (config, weights, device=..., weights_file=...)."""

TAKES_VLA_CONFIG = frozenset({'pi0', 'pi05'})
"""The types whose factory takes ``vla=``."""


def make_adapter(
    config: Any,
    weights: Mapping[str, Tensor],
    *,
    device: torch.device,
    weights_file: str,
    vla: VlaConfig | None = None,
) -> PolicyAdapter:
    """Build the adapter for a typed configuration; ``weights_file`` is what its errors name.

    Raises CheckpointError for an unknown type, or weights that do not cover the network, and
    ConfigError for choices that this type of policy does not have.
    """
    chosen = VlaConfig() if vla is None else vla
    check_choices(config.model_type, chosen)
    factory = ADAPTERS[config.model_type]
    if config.model_type in TAKES_VLA_CONFIG:
        return factory(config, weights, device=device, weights_file=weights_file, vla=chosen)
    return factory(config, weights, device=device, weights_file=weights_file)


def capabilities_of(config: Any, *, vla: VlaConfig) -> Capabilities:
    """What ``make_adapter`` would yield for this configuration, without weights; errors as there.

    Choices of the runtime, such as the mode, are not applied.
    """
    check_choices(config.model_type, vla)
    if config.model_type in TAKES_VLA_CONFIG:
        return pi_capabilities(config, vla)
    return act_capabilities(config)


def check_choices(kind: str, vla: VlaConfig) -> None:
    """Raise CheckpointError for an unknown type, ConfigError for choices that it does not have."""
    if kind not in ADAPTERS:
        raise CheckpointError(
            'config.json, type',
            found=repr(kind),
            expected=f'one of {", ".join(sorted(ADAPTERS))}',
        )
    if kind not in TAKES_VLA_CONFIG and vla != VlaConfig():
        raise ConfigError(
            'vla',
            found=f'choices for a {kind} policy',
            expected=f'none: they are for {", ".join(sorted(TAKES_VLA_CONFIG))}',
        )

"""Policy folders with random weights, for measuring: their speed is that of a trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import (
    ACTION_KEY,
    STATE_KEY,
    ActConfig,
    FeatureSpec,
    FeatureType,
)
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.policies.act import ActModel
from sparkrt_ros.sim.export import write_checkpoint

_IMAGE_MEAN, _IMAGE_STD = 0.45, 0.25


def _act(height: int, width: int, joints: int, **fields: Any) -> ActConfig:
    """Two cameras (3, height, width), a state and an action of ``joints`` values."""
    inputs = {
        key: FeatureSpec(key=key, type=FeatureType.VISUAL, shape=(3, height, width))
        for key in ('observation.images.front', 'observation.images.wrist')
    }
    inputs[STATE_KEY] = FeatureSpec(key=STATE_KEY, type=FeatureType.STATE, shape=(joints,))
    action = FeatureSpec(key=ACTION_KEY, type=FeatureType.ACTION, shape=(joints,))
    return ActConfig(
        input_features=inputs,
        output_features={ACTION_KEY: action},
        pretrained_backbone_weights=None,
        use_vae=False,
        **fields,
    )


_SMALL = {'dim_model': 64, 'n_heads': 4, 'dim_feedforward': 128, 'n_encoder_layers': 2}

RANDOM_POLICIES: Mapping[str, ActConfig] = MappingProxyType(
    {
        'act-small': _act(96, 128, 6, chunk_size=20, n_action_steps=20, **_SMALL),
        # LeRobot's own sizes, on the robot of the ACT paper with two of its cameras.
        'act-480x640x2': _act(480, 640, 14, chunk_size=100, n_action_steps=100),
    }
)
"""Name -> configuration."""


def write_random_policy(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Write the policy called ``name`` to ``folder`` as LeRobot saves one, and return it.

    The same seed gives the same weights. Raises ConfigError, listing the known names, for another.
    """
    config = RANDOM_POLICIES.get(name)
    if config is None:
        raise ConfigError(
            'random policy', found=repr(name), expected=f'one of {", ".join(RANDOM_POLICIES)}'
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = ActModel(config).state_dict()
    write_checkpoint(folder, config=config, weights=weights, stats=_statistics(config))
    return folder


def _statistics(config: ActConfig) -> dict[str, dict[str, Tensor]]:
    """Plausible means and deviations of every feature, so that normalising costs what it does."""
    stats = {}
    for key, feature in {**config.input_features, **config.output_features}.items():
        image = feature.type is FeatureType.VISUAL
        shape = (feature.shape[0], 1, 1) if image else feature.shape
        mean, std = (_IMAGE_MEAN, _IMAGE_STD) if image else (0.0, 1.0)
        stats[key] = {'mean': torch.full(shape, mean), 'std': torch.full(shape, std)}
    return stats

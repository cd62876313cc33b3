"""The ACT variants that the golden files cover, as data; needs no torch and no LeRobot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from seeded_weights import seeded_image, seeded_vector

SMALL: Mapping[str, Any] = {
    'chunk_size': 8,
    'n_action_steps': 8,
    'dim_model': 64,
    'n_heads': 4,
    'dim_feedforward': 128,
    'n_encoder_layers': 2,
    'use_vae': False,
}
"""A transformer that runs in milliseconds; the backbones cannot be made smaller."""


@dataclass(frozen=True, kw_only=True)
class ActCase:
    """One network: its features and the options that differ from LeRobot's defaults.

    cameras: short name -> (height, width), in the order of the configuration.
    """

    cameras: Mapping[str, tuple[int, int]] = field(default_factory=lambda: {'front': (64, 96)})
    state_size: int | None = 6
    environment_size: int | None = None
    action_size: int = 6
    options: Mapping[str, Any] = field(default_factory=dict)

    def input_features(self) -> dict[str, dict[str, Any]]:
        """Features as ``config.json`` writes them."""
        features: dict[str, dict[str, Any]] = {}
        if self.state_size is not None:
            features['observation.state'] = {'type': 'STATE', 'shape': [self.state_size]}
        for name, size in self.cameras.items():
            features[f'observation.images.{name}'] = {'type': 'VISUAL', 'shape': [3, *size]}
        if self.environment_size is not None:
            key = 'observation.environment_state'
            features[key] = {'type': 'ENV', 'shape': [self.environment_size]}
        return features

    def output_features(self) -> dict[str, dict[str, Any]]:
        return {'action': {'type': 'ACTION', 'shape': [self.action_size]}}

    def observation(self, seed: str, *, batch: int | None = None) -> dict[str, np.ndarray]:
        """Seeded inputs by policy key: images (H, W, 3) uint8, vectors float32; maybe batched."""
        if batch is not None:
            parts = [self.observation(f'{seed}/{index}') for index in range(batch)]
            return {key: np.stack([part[key] for part in parts]) for key in parts[0]}
        values: dict[str, np.ndarray] = {}
        for key, feature in self.input_features().items():
            shape, name = tuple(feature['shape']), f'{seed}/{key}'
            if feature['type'] == 'VISUAL':
                values[key] = seeded_image(name, *shape[1:])
            else:
                values[key] = seeded_vector(name, shape)
        return values


def _small(**options: Any) -> Mapping[str, Any]:
    return {**SMALL, **options}


_TWO_SIZES = {'top': (64, 96), 'wrist': (80, 65)}

ACT_CASES: Mapping[str, ActCase] = {
    'full_size': ActCase(
        cameras={'top': (120, 160)}, state_size=14, action_size=14, options={'use_vae': True}
    ),
    'resnet18': ActCase(options=_small()),
    'resnet34': ActCase(options=_small(vision_backbone='resnet34')),
    'resnet50': ActCase(options=_small(vision_backbone='resnet50')),
    'resnet50_dilated': ActCase(
        options=_small(vision_backbone='resnet50', replace_final_stride_with_dilation=True)
    ),
    'resnet101': ActCase(options=_small(vision_backbone='resnet101')),
    'pre_norm': ActCase(options=_small(pre_norm=True, n_decoder_layers=2)),
    'seven_decoder_layers': ActCase(options=_small(n_decoder_layers=7)),
    'gelu': ActCase(options=_small(feedforward_activation='gelu')),
    'no_state': ActCase(state_size=None, options=_small()),
    'environment_only': ActCase(cameras={}, state_size=None, environment_size=5, options=_small()),
    'state_and_environment': ActCase(cameras={}, environment_size=5, options=_small()),
    'everything': ActCase(cameras=_TWO_SIZES, environment_size=5, options=_small()),
    'two_camera_sizes': ActCase(cameras=_TWO_SIZES, options=_small()),
    'vae_weights_present': ActCase(options=_small(use_vae=True)),
}
"""By name; each has a golden chunk for one observation and for a batch of two."""

KEY_CASES = ('full_size', 'resnet50', 'pre_norm', 'everything')
"""Those whose tensor names and shapes are in act_keys.json."""


@dataclass(frozen=True, kw_only=True)
class SessionCase:
    """A policy that acts for ``steps`` steps, reset before step ``reset_before``.

    modes: normalisation by feature type, as ``config.json`` writes it.
    """

    policy: ActCase
    modes: Mapping[str, str]
    steps: int
    reset_before: int
    folder: str

    def observation(self, step: int) -> dict[str, np.ndarray]:
        return self.policy.observation(f'{self.folder}/{step}')


_SESSION_CAMERAS = {'front': (48, 64), 'wrist': (33, 40)}

SESSION_CASES: Mapping[str, SessionCase] = {
    'queue': SessionCase(
        policy=ActCase(
            cameras=_SESSION_CAMERAS, options=_small(chunk_size=6, n_action_steps=4, use_vae=True)
        ),
        modes={'VISUAL': 'MEAN_STD', 'STATE': 'MEAN_STD', 'ACTION': 'MIN_MAX'},
        steps=22,
        reset_before=14,
        folder='lerobot_act_folder',
    ),
    'ensemble': SessionCase(
        policy=ActCase(
            cameras={'front': (48, 64)},
            options=_small(chunk_size=6, n_action_steps=1, temporal_ensemble_coeff=0.01),
        ),
        modes={'VISUAL': 'MEAN_STD', 'STATE': 'QUANTILES', 'ACTION': 'MEAN_STD'},
        steps=20,
        reset_before=11,
        folder='lerobot_act_ensemble_folder',
    ),
}
"""Played through LeRobot's own select_action, with the processors saved in ``folder``."""

ENSEMBLE_COEFFS = (0.01, 0.0, -0.1, 0.5)
ENSEMBLE_SHAPE = (7, 3)
"""Rows and columns of a chunk in ensemble.npz."""
ENSEMBLE_STEPS = 25


def ensemble_chunk(coefficient: float, step: int) -> np.ndarray:
    """The chunk (rows, columns) float32 given to the ensembler at a step."""
    return seeded_vector(f'ensemble/{coefficient}/{step}', ENSEMBLE_SHAPE)

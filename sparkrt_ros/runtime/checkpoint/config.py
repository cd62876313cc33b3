"""The typed configuration of a policy, as LeRobot's ``config.json`` describes it.

Field names and defaults are those of LeRobot 0.6.1, so that a config read here means the same
there. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkrt_ros.runtime.checkpoint.features import (
    ACTION_KEY,
    ENVIRONMENT_STATE_KEY,
    OBSERVATION_PREFIX,
    STATE_KEY,
    FeatureSet,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
    check_feature_shapes,
    features_to_json,
)
from sparkrt_ros.runtime.checkpoint.features import refuse as _refuse

__all__ = [
    'ACTION_KEY',
    'ENVIRONMENT_STATE_KEY',
    'OBSERVATION_PREFIX',
    'STATE_KEY',
    'ActConfig',
    'FeatureSpec',
    'FeatureType',
    'NormalizationMode',
    'features_to_json',
]

SUPPORTED_BACKBONES = ('resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152')
BASIC_BLOCK_BACKBONES = ('resnet18', 'resnet34')
SUPPORTED_ACTIVATIONS = ('relu', 'gelu')
_ARCHITECTURE = (
    'vision_backbone',
    'dim_model',
    'n_heads',
    'dim_feedforward',
    'feedforward_activation',
    'n_encoder_layers',
    'n_decoder_layers',
    'pre_norm',
    'latent_dim',
)


def _default_normalization() -> dict[FeatureType, NormalizationMode]:
    return {
        FeatureType.VISUAL: NormalizationMode.MEAN_STD,
        FeatureType.STATE: NormalizationMode.MEAN_STD,
        FeatureType.ACTION: NormalizationMode.MEAN_STD,
    }


@dataclass(frozen=True, kw_only=True)
class ActConfig(FeatureSet):
    """Configuration of an Action Chunking Transformer.

    Raises ``CheckpointError`` where a value is impossible.
    """

    model_type: ClassVar[str] = 'act'

    normalization_mapping: Mapping[FeatureType, NormalizationMode] = field(
        default_factory=_default_normalization
    )
    n_obs_steps: int = 1
    chunk_size: int = 100
    n_action_steps: int = 100
    vision_backbone: str = 'resnet18'
    pretrained_backbone_weights: str | None = 'ResNet18_Weights.IMAGENET1K_V1'
    replace_final_stride_with_dilation: bool = False
    pre_norm: bool = False
    dim_model: int = 512
    n_heads: int = 8
    dim_feedforward: int = 3200
    feedforward_activation: str = 'relu'
    n_encoder_layers: int = 4
    n_decoder_layers: int = 1
    use_vae: bool = True
    latent_dim: int = 32
    n_vae_encoder_layers: int = 4
    temporal_ensemble_coeff: float | None = None
    dropout: float = 0.1
    kl_weight: float = 10.0
    optimizer_lr: float = 1e-5
    optimizer_weight_decay: float = 1e-4
    optimizer_lr_backbone: float = 1e-5

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_architecture(self)
        _check_horizon(self)
        _check_features(self)

    @property
    def architecture(self) -> dict[str, Any]:
        """What sizes the network, as plain values for people."""
        return {name: getattr(self, name) for name in _ARCHITECTURE}


def _check_sizes(config: ActConfig) -> None:
    positive = (
        'chunk_size',
        'n_action_steps',
        'dim_model',
        'n_heads',
        'dim_feedforward',
        'n_encoder_layers',
        'n_decoder_layers',
        'latent_dim',
    )
    for name in positive:
        value = getattr(config, name)
        if value < 1:
            _refuse(name, found=value, expected='an integer of at least 1')
    if config.n_vae_encoder_layers < 0:
        _refuse(
            'n_vae_encoder_layers', found=config.n_vae_encoder_layers, expected='an integer >= 0'
        )
    if not 0.0 <= config.dropout < 1.0:
        _refuse('dropout', found=config.dropout, expected='a number in [0, 1)')
    if config.dim_model % config.n_heads:
        _refuse(
            'dim_model', found=config.dim_model, expected=f'a multiple of n_heads={config.n_heads}'
        )
    if config.image_features and config.dim_model % 4:
        _refuse(
            'dim_model',
            found=config.dim_model,
            expected='a multiple of 4, which the 2-D sine position embedding needs',
        )


def _check_architecture(config: ActConfig) -> None:
    if config.vision_backbone not in SUPPORTED_BACKBONES:
        _refuse(
            'vision_backbone',
            found=repr(config.vision_backbone),
            expected=f'one of {", ".join(SUPPORTED_BACKBONES)}',
        )
    if config.replace_final_stride_with_dilation and (
        config.vision_backbone in BASIC_BLOCK_BACKBONES
    ):
        _refuse(
            'replace_final_stride_with_dilation',
            found=f'true with {config.vision_backbone}',
            expected='false: the basic blocks of this backbone cannot be dilated',
            remedy='train with resnet50 or larger, or with the option off',
        )
    if config.feedforward_activation == 'glu':
        _refuse(
            'feedforward_activation',
            found="'glu'",
            expected=f'one of {", ".join(SUPPORTED_ACTIVATIONS)}',
            remedy='glu halves the width, so the layer after it cannot run, in LeRobot neither: '
            'train with relu or gelu',
        )
    if config.feedforward_activation not in SUPPORTED_ACTIVATIONS:
        _refuse(
            'feedforward_activation',
            found=repr(config.feedforward_activation),
            expected=f'one of {", ".join(SUPPORTED_ACTIVATIONS)}',
        )


def _check_horizon(config: ActConfig) -> None:
    if config.n_obs_steps != 1:
        _refuse('n_obs_steps', found=config.n_obs_steps, expected='1: ACT reads one observation')
    if config.n_action_steps > config.chunk_size:
        _refuse(
            'n_action_steps',
            found=config.n_action_steps,
            expected=f'at most chunk_size={config.chunk_size}',
        )
    coefficient = config.temporal_ensemble_coeff
    if coefficient is None:
        return
    if not math.isfinite(coefficient):
        _refuse('temporal_ensemble_coeff', found=coefficient, expected='a finite number or null')
    if config.n_action_steps != 1:
        _refuse(
            'n_action_steps',
            found=f'{config.n_action_steps} with temporal_ensemble_coeff={coefficient}',
            expected='1: temporal ensembling needs an inference at every step',
            remedy='set n_action_steps to 1, or temporal_ensemble_coeff to null',
        )


def _check_features(config: ActConfig) -> None:
    check_feature_shapes(config)
    environment = config.env_state_feature
    if environment is not None and environment.key != ENVIRONMENT_STATE_KEY:
        _refuse(
            f'feature {environment.key}',
            found='type ENV',
            expected=f'the key {ENVIRONMENT_STATE_KEY}, which ACT reads',
        )
    if not config.image_features and environment is None:
        _refuse(
            'input_features',
            found=', '.join(config.input_features) or 'none',
            expected=f'at least one VISUAL feature or {ENVIRONMENT_STATE_KEY}',
        )

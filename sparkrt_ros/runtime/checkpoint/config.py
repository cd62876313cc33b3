"""The typed configuration of a policy, as LeRobot's ``config.json`` describes it.

Field names and defaults are those of LeRobot 0.6.1, so that a config read here means the same
there. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar

from sparkrt_ros.runtime.errors import CheckpointError

OBSERVATION_PREFIX = 'observation.'
STATE_KEY = 'observation.state'
ENVIRONMENT_STATE_KEY = 'observation.environment_state'
ACTION_KEY = 'action'

SUPPORTED_BACKBONES = ('resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152')
BASIC_BLOCK_BACKBONES = ('resnet18', 'resnet34')
SUPPORTED_ACTIVATIONS = ('relu', 'gelu')


class FeatureType(str, Enum):
    """What a feature holds; the names are those of ``config.json``."""

    STATE = 'STATE'
    VISUAL = 'VISUAL'
    ENV = 'ENV'
    ACTION = 'ACTION'
    REWARD = 'REWARD'
    LANGUAGE = 'LANGUAGE'


class NormalizationMode(str, Enum):
    """How a feature is normalised; the names are those of ``config.json``."""

    IDENTITY = 'IDENTITY'
    MEAN_STD = 'MEAN_STD'
    MIN_MAX = 'MIN_MAX'
    QUANTILES = 'QUANTILES'
    QUANTILE10 = 'QUANTILE10'


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One input or output of a policy.

    key: the policy key, such as ``observation.images.front``.
    shape: without batch and time; (C, H, W) for an image, (N,) for a vector.
    """

    key: str
    type: FeatureType
    shape: tuple[int, ...]


def _default_normalization() -> dict[FeatureType, NormalizationMode]:
    return {
        FeatureType.VISUAL: NormalizationMode.MEAN_STD,
        FeatureType.STATE: NormalizationMode.MEAN_STD,
        FeatureType.ACTION: NormalizationMode.MEAN_STD,
    }


@dataclass(frozen=True, kw_only=True)
class ActConfig:
    """Configuration of an Action Chunking Transformer.

    ``input_features`` keeps the order of the file: the order of its VISUAL keys is the order in
    which the policy consumes cameras. Raises ``CheckpointError`` where a value is impossible.
    """

    model_type: ClassVar[str] = 'act'

    input_features: Mapping[str, FeatureSpec]
    output_features: Mapping[str, FeatureSpec]
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
    def image_features(self) -> dict[str, FeatureSpec]:
        """Cameras by policy key, in the order the policy consumes them."""
        return {
            key: spec
            for key, spec in self.input_features.items()
            if spec.type is FeatureType.VISUAL
        }

    @property
    def robot_state_feature(self) -> FeatureSpec | None:
        """The proprioceptive state: type STATE and key ``observation.state``, as in LeRobot."""
        spec = self.input_features.get(STATE_KEY)
        return spec if spec is not None and spec.type is FeatureType.STATE else None

    @property
    def env_state_feature(self) -> FeatureSpec | None:
        """The first feature of type ENV."""
        found = (spec for spec in self.input_features.values() if spec.type is FeatureType.ENV)
        return next(found, None)

    @property
    def consumed_features(self) -> dict[str, FeatureSpec]:
        """The inputs that the policy reads, in the order of the file."""
        vectors = (self.robot_state_feature, self.env_state_feature)
        read = {*self.image_features, *(spec.key for spec in vectors if spec is not None)}
        return {key: spec for key, spec in self.input_features.items() if key in read}

    @property
    def action_feature(self) -> FeatureSpec:
        """The action; its presence is checked on construction."""
        return self.output_features[ACTION_KEY]

    def to_json_dict(self) -> dict[str, Any]:
        """Return the content of a ``config.json`` that LeRobot reads back as the same config."""
        result: dict[str, Any] = {'type': self.model_type}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ('input_features', 'output_features'):
                value = features_to_json(value)
            elif item.name == 'normalization_mapping':
                value = {FeatureType(key).value: mode.value for key, mode in value.items()}
            result[item.name] = value
        return result


def features_to_json(features: Mapping[str, FeatureSpec]) -> dict[str, dict[str, Any]]:
    """Return features as ``config.json`` and processor files write them."""
    return {
        key: {'type': spec.type.value, 'shape': list(spec.shape)} for key, spec in features.items()
    }


def _refuse(name: str, *, found: object, expected: str, remedy: str | None = None) -> None:
    raise CheckpointError(name, found=str(found), expected=expected, remedy=remedy)


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
    for spec in (*config.input_features.values(), *config.output_features.values()):
        _check_shape(spec)
    action = config.output_features.get(ACTION_KEY)
    if action is None or action.type is not FeatureType.ACTION:
        _refuse(
            'output_features',
            found=', '.join(config.output_features) or 'none',
            expected=f'a feature {ACTION_KEY} of type ACTION',
        )
    environment = config.env_state_feature
    if environment is not None and environment.key != ENVIRONMENT_STATE_KEY:
        _refuse(
            f'feature {environment.key}',
            found='type ENV',
            expected=f'the key {ENVIRONMENT_STATE_KEY}, which ACT reads',
        )
    for vector in (config.robot_state_feature, environment, action):
        if vector is not None and len(vector.shape) != 1:
            _refuse(
                f'feature {vector.key}', found=f'shape {vector.shape}', expected='one dimension'
            )
    if not config.image_features and environment is None:
        _refuse(
            'input_features',
            found=', '.join(config.input_features) or 'none',
            expected=f'at least one VISUAL feature or {ENVIRONMENT_STATE_KEY}',
        )


def _check_shape(spec: FeatureSpec) -> None:
    if not spec.shape or any(size < 1 for size in spec.shape):
        _refuse(f'feature {spec.key}', found=f'shape {spec.shape}', expected='positive sizes')
    if spec.type is FeatureType.VISUAL and (len(spec.shape) != 3 or spec.shape[0] != 3):
        _refuse(
            f'feature {spec.key}',
            found=f'shape {spec.shape}',
            expected='(3, height, width), channels first',
        )

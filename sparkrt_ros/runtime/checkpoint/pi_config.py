"""The typed configurations of Pi0 and Pi0.5.

Field names and defaults are those of LeRobot 0.6.1. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkrt_ros.runtime.checkpoint.features import (
    ACTION_KEY,
    IMAGES_PREFIX,
    STATE_KEY,
    FeatureSet,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
    check_feature_shapes,
    refuse,
)
from sparkrt_ros.runtime.checkpoint.pi_sizes import (
    GEMMA_VARIANTS,
    PATCH_SIZE,
    PiSizes,
    pi_sizes,
)

DTYPES = ('float32', 'bfloat16')


def _modes(vectors: NormalizationMode) -> dict[FeatureType, NormalizationMode]:
    return {
        FeatureType.VISUAL: NormalizationMode.IDENTITY,
        FeatureType.STATE: vectors,
        FeatureType.ACTION: vectors,
    }


@dataclass(frozen=True, kw_only=True)
class PiConfig(FeatureSet):
    """What Pi0 and Pi0.5 share.

    dtype: the arithmetic LeRobot was told to use. It decides whether the rotary frequencies and
        the scale of text embeddings were rounded to bfloat16, which belongs to the policy.
    empty_cameras: cameras the policy reserves and never sees.
    rtc_config: as in the file; real-time chunking is a choice of whoever runs the policy.
    On construction, features that LeRobot adds by itself are added: empty cameras, a state and an
    action where none is declared. Raises ``CheckpointError`` where a value is impossible.
    """

    reads_instruction: ClassVar[bool] = True
    temporal_ensemble_coeff: ClassVar[float | None] = None

    normalization_mapping: Mapping[FeatureType, NormalizationMode] = field(
        default_factory=lambda: _modes(NormalizationMode.MEAN_STD)
    )
    paligemma_variant: str = 'gemma_2b'
    action_expert_variant: str = 'gemma_300m'
    dtype: str = 'float32'
    n_obs_steps: int = 1
    chunk_size: int = 50
    n_action_steps: int = 50
    max_state_dim: int = 32
    max_action_dim: int = 32
    num_inference_steps: int = 10
    time_sampling_beta_alpha: float = 1.5
    time_sampling_beta_beta: float = 1.0
    time_sampling_scale: float = 0.999
    time_sampling_offset: float = 0.001
    min_period: float = 4e-3
    max_period: float = 4.0
    use_relative_actions: bool = False
    relative_exclude_joints: tuple[str, ...] = ('gripper',)
    action_feature_names: tuple[str, ...] | None = None
    rtc_config: Mapping[str, Any] | None = None
    image_resolution: tuple[int, int] = (224, 224)
    empty_cameras: int = 0
    tokenizer_max_length: int = 48
    gradient_checkpointing: bool = False
    compile_model: bool = False
    compile_mode: str = 'max-autotune'
    freeze_vision_encoder: bool = False
    train_expert_only: bool = False
    optimizer_lr: float = 2.5e-5
    optimizer_betas: tuple[float, float] = (0.9, 0.95)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 0.01
    optimizer_grad_clip_norm: float = 1.0
    scheduler_warmup_steps: int = 1_000
    scheduler_decay_steps: int = 30_000
    scheduler_decay_lr: float = 2.5e-6

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_choices(self)
        _add_implied_features(self)
        check_feature_shapes(self)
        _check_features(self)

    @property
    def env_state_feature(self) -> FeatureSpec | None:
        """None: these policies read no environment state."""
        return None

    @property
    def empty_camera_keys(self) -> tuple[str, ...]:
        """Cameras that are never there, and whose place the policy masks."""
        return _empty_camera_keys(self)

    @property
    def consumed_features(self) -> dict[str, FeatureSpec]:
        """The inputs that must be given, in the order of the file."""
        read = super().consumed_features
        return {key: spec for key, spec in read.items() if key not in self.empty_camera_keys}

    @property
    def sizes(self) -> PiSizes:
        """The sizes of the network."""
        return pi_sizes(
            language=self.paligemma_variant,
            expert=self.action_expert_variant,
            image_size=self.image_resolution[0],
        )

    @property
    def architecture(self) -> dict[str, Any]:
        """What sizes the network, as plain values for people."""
        names = (
            'paligemma_variant',
            'action_expert_variant',
            'dtype',
            'num_inference_steps',
            'max_action_dim',
            'tokenizer_max_length',
            'image_resolution',
            'empty_cameras',
            'use_relative_actions',
        )
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Pi0Config(PiConfig):
    """Configuration of Pi0 (arXiv:2410.24164): the state is a token beside the actions."""

    model_type: ClassVar[str] = 'pi0'


@dataclass(frozen=True, kw_only=True)
class Pi05Config(PiConfig):
    """Configuration of Pi0.5 (arXiv:2504.16054): the state is part of the prompt."""

    model_type: ClassVar[str] = 'pi05'

    normalization_mapping: Mapping[FeatureType, NormalizationMode] = field(
        default_factory=lambda: _modes(NormalizationMode.QUANTILES)
    )
    tokenizer_max_length: int = 200


def _empty_camera_keys(config: PiConfig) -> tuple[str, ...]:
    return tuple(f'{IMAGES_PREFIX}empty_camera_{index}' for index in range(config.empty_cameras))


_Implied = tuple[dict[str, FeatureSpec], str, FeatureType, tuple[int, ...]]


def _add_implied_features(config: PiConfig) -> None:
    """Declare what LeRobot's own configuration class declares by itself."""
    inputs, outputs = dict(config.input_features), dict(config.output_features)
    implied: list[_Implied] = [
        (inputs, key, FeatureType.VISUAL, (3, *config.image_resolution))
        for key in _empty_camera_keys(config)
    ]
    if STATE_KEY not in inputs:
        implied.append((inputs, STATE_KEY, FeatureType.STATE, (config.max_state_dim,)))
    if ACTION_KEY not in outputs:
        implied.append((outputs, ACTION_KEY, FeatureType.ACTION, (config.max_action_dim,)))
    for features, key, kind, shape in implied:
        features[key] = FeatureSpec(key=key, type=kind, shape=shape)
    # The value is still under construction, and frozen only for everybody else.
    object.__setattr__(config, 'input_features', inputs)
    object.__setattr__(config, 'output_features', outputs)


def _check_numbers(config: PiConfig) -> None:
    positive = (
        'chunk_size',
        'n_action_steps',
        'max_state_dim',
        'max_action_dim',
        'num_inference_steps',
        'tokenizer_max_length',
    )
    for name in positive:
        value = getattr(config, name)
        if value < 1:
            refuse(name, found=value, expected='an integer of at least 1')
    if config.empty_cameras < 0:
        refuse('empty_cameras', found=config.empty_cameras, expected='an integer >= 0')
    if config.n_obs_steps != 1:
        refuse('n_obs_steps', found=config.n_obs_steps, expected='1: one observation is read')
    if config.n_action_steps > config.chunk_size:
        refuse(
            'n_action_steps',
            found=config.n_action_steps,
            expected=f'at most chunk_size={config.chunk_size}',
        )
    if not 0.0 < config.min_period < config.max_period:
        refuse(
            'min_period',
            found=f'{config.min_period} with max_period={config.max_period}',
            expected='0 < min_period < max_period',
        )


def _check_choices(config: PiConfig) -> None:
    for name in ('paligemma_variant', 'action_expert_variant'):
        if getattr(config, name) not in GEMMA_VARIANTS:
            known = ', '.join(GEMMA_VARIANTS)
            refuse(name, found=repr(getattr(config, name)), expected=f'one of {known}')
    if config.dtype not in DTYPES:
        refuse('dtype', found=repr(config.dtype), expected=f'one of {", ".join(DTYPES)}')
    height, width = config.image_resolution
    if height != width or height < PATCH_SIZE:
        refuse(
            'image_resolution',
            found=f'{height}x{width}',
            expected=f'a square of at least {PATCH_SIZE} pixels',
        )
    language, expert = (
        GEMMA_VARIANTS[name] for name in (config.paligemma_variant, config.action_expert_variant)
    )
    shared = ('depth', 'heads', 'kv_heads', 'head_dim')
    if any(getattr(language, name) != getattr(expert, name) for name in shared):
        refuse(
            'action_expert_variant',
            found=f'{config.action_expert_variant} with {config.paligemma_variant}',
            expected=f'the same {", ".join(shared)}: the expert reads the keys of the other',
        )


def _check_features(config: PiConfig) -> None:
    cameras = [key for key in config.image_features if key not in config.empty_camera_keys]
    if not cameras:
        refuse(
            'input_features',
            found=', '.join(config.input_features),
            expected='at least one VISUAL feature that is no empty camera',
        )
    state = config.robot_state_feature
    if state is None:
        refuse(STATE_KEY, found='another type', expected='type STATE')
    limits = [(config.action_feature, 'max_action_dim', config.max_action_dim)]
    if state is not None and config.model_type == Pi0Config.model_type:
        limits.append((state, 'max_state_dim', config.max_state_dim))
    for spec, name, limit in limits:
        if spec.shape[0] > limit:
            refuse(
                f'feature {spec.key}',
                found=f'{spec.shape[0]} values',
                expected=f'at most {name}={limit}',
            )

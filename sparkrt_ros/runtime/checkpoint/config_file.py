"""``config.json`` -> typed configuration. Imports no torch.

The file is draccus JSON: tuples are lists, enums are strings, ``type`` selects the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sparkrt_ros.runtime.checkpoint.config import ActConfig
from sparkrt_ros.runtime.checkpoint.features import (
    FeatureSpec,
    FeatureType,
    NormalizationMode,
    PolicyConfig,
)
from sparkrt_ros.runtime.checkpoint.files import CONFIG_FILE, read_json
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config
from sparkrt_ros.runtime.errors import CheckpointError

# Fields of every LeRobot policy that say nothing about what it computes.
IGNORED_FIELDS = frozenset(
    {
        'push_to_hub',
        'repo_id',
        'private',
        'tags',
        'license',
        'pretrained_path',
        'pretrained_revision',
    }
)
# Fields that say where and how the policy was run; here the runtime's own options decide.
RUNTIME_FIELDS = ('device', 'use_amp')
_FEATURE_FIELDS = ('input_features', 'output_features')

_Choice = TypeVar('_Choice', FeatureType, NormalizationMode)


def read_config(
    folder: Path, *, allow_unknown_fields: bool = False
) -> tuple[PolicyConfig, tuple[str, ...]]:
    """Return the configuration in ``folder`` and what is worth a warning about it.

    Unknown fields are refused unless ``allow_unknown_fields``: they may change what the policy
    computes. Raises ``CheckpointError`` naming the field.
    """
    path = folder / CONFIG_FILE
    data = read_json(path)
    kind = _kind_of(path, data)
    _refuse_adapter(path, data)
    try:
        config, unknown = parse_config(kind, data)
    except CheckpointError as error:
        raise CheckpointError(
            f'{path}: {error.where}',
            found=error.found,
            expected=error.expected,
            remedy=error.remedy,
        ) from None
    if unknown and not allow_unknown_fields:
        raise CheckpointError(
            str(path),
            found=f'unknown field {", ".join(unknown)}',
            expected=f'the fields of a LeRobot {config.model_type} policy',
            remedy='remove it, or allow unknown fields where they do not change the policy',
        )
    warnings = [f'{path.name}: {name} is unknown and ignored' for name in unknown]
    noted = ', '.join(f'{name}={data[name]!r}' for name in RUNTIME_FIELDS if name in data)
    if noted:
        warnings.append(f'{path.name}: ignored {noted}: the runtime options decide')
    return config, tuple(warnings)


def _kind_of(path: Path, data: Mapping[str, Any]) -> str:
    kind = data.get('type')
    supported = ', '.join(CONFIG_CLASSES)
    if kind is None:
        raise CheckpointError(
            f'{path}: type',
            found='no such field',
            expected=f'the kind of policy, one of: {supported}',
            remedy='save the policy with LeRobot 0.4 or newer, or add the field',
        )
    if not isinstance(kind, str) or kind not in CONFIG_CLASSES:
        raise CheckpointError(f'{path}: type', found=repr(kind), expected=f'one of: {supported}')
    return kind


def _refuse_adapter(path: Path, data: Mapping[str, Any]) -> None:
    if data.get('use_peft') not in (None, False):
        raise CheckpointError(
            f'{path}: use_peft',
            found=repr(data['use_peft']),
            expected='false: a PEFT checkpoint holds an adapter, not the whole policy',
            remedy='merge the adapter into the base model and save the result',
        )


def parse_config(kind: str, data: Mapping[str, Any]) -> tuple[PolicyConfig, tuple[str, ...]]:
    """Return the configuration of a policy of type ``kind`` and the fields nobody knows.

    Raises ``CheckpointError`` whose ``where`` is the field.
    """
    config_class, parsers = CONFIG_CLASSES[kind]
    values: dict[str, Any] = {}
    unknown = []
    for name, value in data.items():
        if name in _FEATURE_FIELDS:
            values[name] = parse_features(value, where=name)
        elif name == 'normalization_mapping':
            values[name] = parse_norm_map(value, where=name)
        elif name in parsers:
            values[name] = parsers[name](value, name)
        elif name not in IGNORED_FIELDS and name not in (*RUNTIME_FIELDS, 'type', 'use_peft'):
            unknown.append(name)
    for name in _FEATURE_FIELDS:
        if name not in values:
            raise CheckpointError(name, found='no such field', expected='features by key')
    config: PolicyConfig = config_class(**values)
    return config, tuple(unknown)


def parse_features(value: Any, *, where: str) -> dict[str, FeatureSpec]:
    """Return features by key, in the order of the file: it decides the order of cameras."""
    if not isinstance(value, dict):
        raise CheckpointError(where, found=repr(value), expected='features by key')
    return {key: _parse_feature(key, entry, f'{where}.{key}') for key, entry in value.items()}


def _parse_feature(key: str, entry: Any, where: str) -> FeatureSpec:
    if not isinstance(entry, dict) or set(entry) != {'type', 'shape'}:
        raise CheckpointError(where, found=repr(entry), expected='an object with type and shape')
    shape = entry['shape']
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise CheckpointError(where, found=f'shape {shape!r}', expected='a list of integers')
    kind = _choice(FeatureType, entry['type'], f'{where}.type')
    return FeatureSpec(key=key, type=kind, shape=tuple(shape))


def parse_norm_map(value: Any, *, where: str) -> dict[FeatureType, NormalizationMode]:
    """Return the normalisation mode by feature type."""
    if not isinstance(value, dict):
        raise CheckpointError(where, found=repr(value), expected='modes by feature type')
    return {
        _choice(FeatureType, kind, where): _choice(NormalizationMode, mode, f'{where}.{kind}')
        for kind, mode in value.items()
    }


def _choice(kind: type[_Choice], value: Any, where: str) -> _Choice:
    known = [item.value for item in kind]
    if value not in known:
        raise CheckpointError(where, found=repr(value), expected=f'one of: {", ".join(known)}')
    return kind(value)


def _integer(value: Any, name: str) -> int:
    if type(value) is not int:
        raise CheckpointError(name, found=repr(value), expected='an integer')
    return value


def _boolean(value: Any, name: str) -> bool:
    # LeRobot declares replace_final_stride_with_dilation as an integer.
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise CheckpointError(name, found=repr(value), expected='true or false')


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CheckpointError(name, found=repr(value), expected='a finite number')
    return float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise CheckpointError(name, found=repr(value), expected='a string')
    return value


def _optional_number(value: Any, name: str) -> float | None:
    return None if value is None else _number(value, name)


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(name, found=repr(value), expected='a list of strings')
    return tuple(value)


def _optional_texts(value: Any, name: str) -> tuple[str, ...] | None:
    return None if value is None else _texts(value, name)


def _two_integers(value: Any, name: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise CheckpointError(name, found=repr(value), expected='two integers')
    return _integer(value[0], name), _integer(value[1], name)


def _two_numbers(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise CheckpointError(name, found=repr(value), expected='two numbers')
    return _number(value[0], name), _number(value[1], name)


def _optional_object(value: Any, name: str) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(name, found=repr(value), expected='an object or null')
    return value


_Parsers = Mapping[str, Callable[[Any, str], Any]]

_ACT_FIELDS: _Parsers = {
    'n_obs_steps': _integer,
    'chunk_size': _integer,
    'n_action_steps': _integer,
    'vision_backbone': _text,
    'pretrained_backbone_weights': _optional_text,
    'replace_final_stride_with_dilation': _boolean,
    'pre_norm': _boolean,
    'dim_model': _integer,
    'n_heads': _integer,
    'dim_feedforward': _integer,
    'feedforward_activation': _text,
    'n_encoder_layers': _integer,
    'n_decoder_layers': _integer,
    'use_vae': _boolean,
    'latent_dim': _integer,
    'n_vae_encoder_layers': _integer,
    'temporal_ensemble_coeff': _optional_number,
    'dropout': _number,
    'kl_weight': _number,
    'optimizer_lr': _number,
    'optimizer_weight_decay': _number,
    'optimizer_lr_backbone': _number,
}

_PI_FIELDS: _Parsers = {
    'paligemma_variant': _text,
    'action_expert_variant': _text,
    'dtype': _text,
    'n_obs_steps': _integer,
    'chunk_size': _integer,
    'n_action_steps': _integer,
    'max_state_dim': _integer,
    'max_action_dim': _integer,
    'num_inference_steps': _integer,
    'time_sampling_beta_alpha': _number,
    'time_sampling_beta_beta': _number,
    'time_sampling_scale': _number,
    'time_sampling_offset': _number,
    'min_period': _number,
    'max_period': _number,
    'use_relative_actions': _boolean,
    'relative_exclude_joints': _texts,
    'action_feature_names': _optional_texts,
    'rtc_config': _optional_object,
    'image_resolution': _two_integers,
    'empty_cameras': _integer,
    'tokenizer_max_length': _integer,
    'gradient_checkpointing': _boolean,
    'compile_model': _boolean,
    'compile_mode': _text,
    'freeze_vision_encoder': _boolean,
    'train_expert_only': _boolean,
    'optimizer_lr': _number,
    'optimizer_betas': _two_numbers,
    'optimizer_eps': _number,
    'optimizer_weight_decay': _number,
    'optimizer_grad_clip_norm': _number,
    'scheduler_warmup_steps': _integer,
    'scheduler_decay_steps': _integer,
    'scheduler_decay_lr': _number,
}

CONFIG_CLASSES: Mapping[str, tuple[Callable[..., Any], _Parsers]] = {
    'act': (ActConfig, _ACT_FIELDS),
    'pi0': (Pi0Config, _PI_FIELDS),
    'pi05': (Pi05Config, _PI_FIELDS),
}
"""Type of a policy -> its configuration, and how each field of it is read."""

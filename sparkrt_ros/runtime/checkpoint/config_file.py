"""``config.json`` -> typed configuration. Imports no torch.

The file is draccus JSON: tuples are lists, enums are strings, ``type`` selects the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sparkrt_ros.runtime.checkpoint.config import (
    ActConfig,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
)
from sparkrt_ros.runtime.checkpoint.files import CONFIG_FILE, read_json
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
) -> tuple[ActConfig, tuple[str, ...]]:
    """Return the configuration in ``folder`` and what is worth a warning about it.

    Unknown fields are refused unless ``allow_unknown_fields``: they may change what the policy
    computes. Raises ``CheckpointError`` naming the field.
    """
    path = folder / CONFIG_FILE
    data = read_json(path)
    parse = _parser_for(path, data)
    _refuse_adapter(path, data)
    try:
        config, unknown = parse(data)
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


def _parser_for(
    path: Path, data: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], tuple[ActConfig, tuple[str, ...]]]:
    kind = data.get('type')
    supported = ', '.join(CONFIG_PARSERS)
    if kind is None:
        raise CheckpointError(
            f'{path}: type',
            found='no such field',
            expected=f'the kind of policy, one of: {supported}',
            remedy='save the policy with LeRobot 0.4 or newer, or add the field',
        )
    if not isinstance(kind, str) or kind not in CONFIG_PARSERS:
        raise CheckpointError(f'{path}: type', found=repr(kind), expected=f'one of: {supported}')
    return CONFIG_PARSERS[kind]


def _refuse_adapter(path: Path, data: Mapping[str, Any]) -> None:
    if data.get('use_peft') not in (None, False):
        raise CheckpointError(
            f'{path}: use_peft',
            found=repr(data['use_peft']),
            expected='false: a PEFT checkpoint holds an adapter, not the whole policy',
            remedy='merge the adapter into the base model and save the result',
        )


def parse_act_config(data: Mapping[str, Any]) -> tuple[ActConfig, tuple[str, ...]]:
    """Return the ACT configuration in ``data`` and the names of the fields nobody knows.

    Raises ``CheckpointError`` whose ``where`` is the field.
    """
    values: dict[str, Any] = {}
    unknown = []
    for name, value in data.items():
        if name in _FEATURE_FIELDS:
            values[name] = parse_features(value, where=name)
        elif name == 'normalization_mapping':
            values[name] = parse_norm_map(value, where=name)
        elif name in _ACT_FIELDS:
            values[name] = _ACT_FIELDS[name](value, name)
        elif name not in IGNORED_FIELDS and name not in (*RUNTIME_FIELDS, 'type', 'use_peft'):
            unknown.append(name)
    for name in _FEATURE_FIELDS:
        if name not in values:
            raise CheckpointError(name, found='no such field', expected='features by key')
    return ActConfig(**values), tuple(unknown)


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


_ACT_FIELDS: Mapping[str, Callable[[Any, str], Any]] = {
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

CONFIG_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], tuple[ActConfig, tuple[str, ...]]]] = {
    'act': parse_act_config
}

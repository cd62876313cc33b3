"""config.json -> ActConfig: LeRobot's names and defaults, and a clear error for every gap."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from act_folder_factory import edit_json, feature, features, tiny_config, write_json

from sparkrt_ros.runtime.checkpoint.config import ActConfig, FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.config_file import read_config
from sparkrt_ros.runtime.errors import CheckpointError

MINIMAL = {
    'type': 'act',
    'input_features': {'observation.images.top': {'type': 'VISUAL', 'shape': [3, 480, 640]}},
    'output_features': {'action': {'type': 'ACTION', 'shape': [14]}},
}


def write_config(folder: Path, **changes: Any) -> Path:
    write_json(folder / 'config.json', {**MINIMAL, **changes})
    return folder


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in MINIMAL.items() if key != name}


def test_missing_fields_take_lerobots_defaults(tmp_path: Path) -> None:
    config, warnings = read_config(write_config(tmp_path))
    assert warnings == ()
    values = {
        'n_obs_steps': 1,
        'chunk_size': 100,
        'n_action_steps': 100,
        'vision_backbone': 'resnet18',
        'replace_final_stride_with_dilation': False,
        'pre_norm': False,
        'dim_model': 512,
        'n_heads': 8,
        'dim_feedforward': 3200,
        'feedforward_activation': 'relu',
        'n_encoder_layers': 4,
        'n_decoder_layers': 1,
        'use_vae': True,
        'latent_dim': 32,
        'n_vae_encoder_layers': 4,
        'temporal_ensemble_coeff': None,
        'dropout': 0.1,
        'kl_weight': 10.0,
    }
    assert {name: getattr(config, name) for name in values} == values
    modes = {FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION}
    assert dict(config.normalization_mapping) == dict.fromkeys(modes, NormalizationMode.MEAN_STD)


def test_written_config_reads_back_as_the_same_value(tmp_path: Path) -> None:
    config = tiny_config(
        pre_norm=True,
        n_action_steps=1,
        temporal_ensemble_coeff=0.01,
        normalization_mapping={FeatureType.STATE: NormalizationMode.QUANTILES},
    )
    write_json(tmp_path / 'config.json', config.to_json_dict())
    assert read_config(tmp_path) == (config, ())


def test_cameras_keep_the_order_of_the_file(tmp_path: Path) -> None:
    keys = ['observation.images.zoom', 'observation.images.base', 'observation.images.arm']
    inputs = {key: {'type': 'VISUAL', 'shape': [3, 8, 8]} for key in keys}
    inputs = {**dict([*inputs.items()][:1]), 'observation.state': None, **inputs}
    inputs['observation.state'] = {'type': 'STATE', 'shape': [2]}
    config, _ = read_config(write_config(tmp_path, input_features=inputs))
    assert list(config.image_features) == keys
    assert list(config.consumed_features) == [keys[0], 'observation.state', *keys[1:]]


def test_state_is_the_state_feature_of_that_key_only() -> None:
    config = tiny_config(
        input_features=features(
            feature('observation.velocity', 'STATE', 3),
            feature('observation.environment_state', 'ENV', 4),
        )
    )
    assert config.robot_state_feature is None
    assert config.env_state_feature == feature('observation.environment_state', 'ENV', 4)
    assert list(config.consumed_features) == ['observation.environment_state']


def test_hub_fields_are_ignored_silently_and_runtime_fields_are_noted(tmp_path: Path) -> None:
    hub = {'push_to_hub': True, 'repo_id': 'a/b', 'private': None, 'tags': ['x'], 'license': None}
    more = {'pretrained_path': None, 'pretrained_revision': 'main', 'use_peft': False}
    _, warnings = read_config(write_config(tmp_path, **hub, **more, device='cuda', use_amp=True))
    assert len(warnings) == 1
    assert "device='cuda', use_amp=True" in warnings[0]


def test_unknown_field_is_refused_unless_allowed(tmp_path: Path) -> None:
    write_config(tmp_path, n_registers=4)
    with pytest.raises(CheckpointError, match=r'config\.json: found unknown field n_registers'):
        read_config(tmp_path)
    config, warnings = read_config(tmp_path, allow_unknown_fields=True)
    assert config.dim_model == 512
    assert warnings == ('config.json: n_registers is unknown and ignored',)


VISUAL_AND = {'observation.images.top': {'type': 'VISUAL', 'shape': [3, 8, 8]}}

BAD_FIELDS = [
    ('n_obs_steps', 2, 'expected 1'),
    ('chunk_size', 0, 'at least 1'),
    ('chunk_size', '100', 'an integer'),
    ('chunk_size', True, 'an integer'),
    ('chunk_size', 99.5, 'an integer'),
    ('n_action_steps', 101, 'at most chunk_size=100'),
    ('temporal_ensemble_coeff', 0.01, '1: temporal ensembling needs an inference at every step'),
    ('temporal_ensemble_coeff', '0.01', 'a finite number'),
    ('vision_backbone', 'vit', 'one of resnet18'),
    ('vision_backbone', 18, 'a string'),
    ('replace_final_stride_with_dilation', True, 'cannot be dilated'),
    ('replace_final_stride_with_dilation', 'yes', 'true or false'),
    ('feedforward_activation', 'glu', 'glu halves the width'),
    ('feedforward_activation', 'silu', 'one of relu, gelu'),
    ('dim_model', 510, 'a multiple of n_heads=8'),
    ('dim_model', -8, 'at least 1'),
    ('n_heads', 0, 'at least 1'),
    ('n_encoder_layers', 0, 'at least 1'),
    ('n_vae_encoder_layers', -1, '>= 0'),
    ('dropout', 1.0, 'in [0, 1)'),
    ('dropout', None, 'a finite number'),
    ('pre_norm', 2, 'true or false'),
    ('normalization_mapping', {'STATE': 'ZSCORE'}, 'one of: IDENTITY, MEAN_STD'),
    ('normalization_mapping', {'DEPTH': 'MEAN_STD'}, 'one of: STATE, VISUAL'),
    ('normalization_mapping', [], 'modes by feature type'),
    ('input_features', None, 'features by key'),
    ('input_features', {}, 'at least one VISUAL feature'),
    ('input_features', {'observation.images.top': {'shape': [3, 8, 8]}}, 'type and shape'),
    ('input_features', {'x': {'type': 'VISUAL', 'shape': [3, 8, '8']}}, 'a list of integers'),
    ('input_features', {'x': {'type': 'SOUND', 'shape': [3]}}, 'one of: STATE, VISUAL'),
    ('input_features', {'x': {'type': 'VISUAL', 'shape': [8, 8, 3]}}, 'channels first'),
    ('input_features', {'x': {'type': 'VISUAL', 'shape': [3, 0, 8]}}, 'positive sizes'),
    (
        'input_features',
        {**VISUAL_AND, 'observation.state': {'type': 'STATE', 'shape': [2, 7]}},
        'one dimension',
    ),
    (
        'input_features',
        {**VISUAL_AND, 'observation.env': {'type': 'ENV', 'shape': [2]}},
        'observation.environment_state',
    ),
    ('output_features', {}, 'a feature action of type ACTION'),
    ('output_features', {'action': {'type': 'STATE', 'shape': [2]}}, 'of type ACTION'),
]


@pytest.mark.parametrize(('name', 'value', 'expected'), BAD_FIELDS)
def test_impossible_value_names_file_and_field(
    tmp_path: Path, name: str, value: Any, expected: str
) -> None:
    write_config(tmp_path, **{name: value})
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / 'config.json'))
    assert expected in text
    assert 'Traceback' not in text


@pytest.mark.parametrize('name', ['input_features', 'output_features'])
def test_features_must_be_declared(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / 'config.json', without(name))
    with pytest.raises(CheckpointError, match=f'{name}: found no such field'):
        read_config(tmp_path)


def test_width_of_a_policy_without_cameras_may_be_any_multiple_of_its_heads() -> None:
    inputs = features(feature('observation.environment_state', 'ENV', 4))
    assert tiny_config(input_features=inputs, dim_model=18, n_heads=3).dim_model == 18
    with pytest.raises(CheckpointError, match='multiple of 4'):
        tiny_config(dim_model=18, n_heads=3)


BAD_JSON = [
    (b'{"type": "act",', 'invalid JSON'),
    (b'[]', 'found list'),
    (b'\xff\xfe{}', 'invalid JSON'),
    (b'{"type": "act", "type": "pi0"}', 'key given twice: type'),
    (b'{"dropout": NaN}', 'non-finite number NaN'),
    (b'', 'invalid JSON'),
    (b'[' * 100_000, 'invalid JSON'),
]


@pytest.mark.parametrize(('data', 'found'), BAD_JSON)
def test_malformed_json_is_named(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / 'config.json').write_bytes(data)
    with pytest.raises(CheckpointError, match=found):
        read_config(tmp_path)


def test_peft_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r'use_peft: found True.*merge the adapter'):
        read_config(write_config(tmp_path, use_peft=True))


def test_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_config().chunk_size = 3  # type: ignore[misc]


def test_every_field_of_the_config_can_be_set_from_the_file(tmp_path: Path) -> None:
    given = json.loads(json.dumps(tiny_config().to_json_dict()))
    assert set(given) - {'type'} == {item.name for item in dataclasses.fields(ActConfig)}
    write_json(tmp_path / 'config.json', given)
    edit_json(tmp_path / 'config.json', lambda data: data.update(kl_weight=3, optimizer_lr=1))
    config, _ = read_config(tmp_path)
    assert (config.kl_weight, config.optimizer_lr) == (3.0, 1.0)
    assert isinstance(config.kl_weight, float)

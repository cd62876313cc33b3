"""config.json -> Pi0Config and Pi05Config: LeRobot's names, defaults and implied features."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from act_folder_factory import write_json

from sparkrt_ros.runtime.checkpoint.config_file import read_config
from sparkrt_ros.runtime.checkpoint.features import FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config
from sparkrt_ros.runtime.errors import CheckpointError

FEATURES = {
    'input_features': {
        'observation.images.wrist': {'type': 'VISUAL', 'shape': [3, 480, 640]},
        'observation.images.base': {'type': 'VISUAL', 'shape': [3, 224, 224]},
        'observation.state': {'type': 'STATE', 'shape': [7]},
    },
    'output_features': {'action': {'type': 'ACTION', 'shape': [7]}},
}


def read(folder: Path, kind: str = 'pi05', **changes: Any) -> Any:
    write_json(folder / 'config.json', {'type': kind, **FEATURES, **changes})
    return read_config(folder)[0]


@pytest.mark.parametrize(
    ('kind', 'length', 'mode'),
    [('pi05', 200, NormalizationMode.QUANTILES), ('pi0', 48, NormalizationMode.MEAN_STD)],
)
def test_missing_fields_take_lerobots_defaults(
    kind: str, length: int, mode: NormalizationMode, tmp_path: Path
) -> None:
    config = read(tmp_path, kind)
    values = {
        'paligemma_variant': 'gemma_2b',
        'action_expert_variant': 'gemma_300m',
        'dtype': 'float32',
        'chunk_size': 50,
        'n_action_steps': 50,
        'max_state_dim': 32,
        'max_action_dim': 32,
        'num_inference_steps': 10,
        'min_period': 4e-3,
        'max_period': 4.0,
        'use_relative_actions': False,
        'relative_exclude_joints': ('gripper',),
        'action_feature_names': None,
        'image_resolution': (224, 224),
        'empty_cameras': 0,
        'tokenizer_max_length': length,
    }
    assert {name: getattr(config, name) for name in values} == values
    assert config.normalization_mapping == {
        FeatureType.VISUAL: NormalizationMode.IDENTITY,
        FeatureType.STATE: mode,
        FeatureType.ACTION: mode,
    }
    assert config.model_type == kind


def test_cameras_keep_the_order_of_the_file(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert list(config.image_features) == ['observation.images.wrist', 'observation.images.base']
    assert config.env_state_feature is None


def test_features_that_lerobot_adds_by_itself_are_added(tmp_path: Path) -> None:
    image = {'observation.images.base': FEATURES['input_features']['observation.images.base']}
    config = read(tmp_path, empty_cameras=2, input_features=image, output_features={})
    assert list(config.image_features) == [
        'observation.images.base',
        'observation.images.empty_camera_0',
        'observation.images.empty_camera_1',
    ]
    assert config.input_features['observation.images.empty_camera_1'].shape == (3, 224, 224)
    assert config.input_features['observation.state'].shape == (32,)
    assert config.action_feature.shape == (32,)
    assert 'observation.images.empty_camera_0' not in config.consumed_features


@pytest.mark.parametrize('kind', [Pi05Config, Pi0Config])
def test_every_field_can_be_set_from_the_file_and_reads_back(kind: Any, tmp_path: Path) -> None:
    config = read(
        tmp_path,
        kind.model_type,
        paligemma_variant='tiny',
        action_expert_variant='tiny_expert',
        dtype='bfloat16',
        action_feature_names=['a', 'b'],
        rtc_config={'enabled': True},
        empty_cameras=1,
        optimizer_betas=[0.8, 0.9],
    )
    written = json.loads(json.dumps(config.to_json_dict()))
    assert set(written) - {'type'} == {item.name for item in dataclasses.fields(kind)}
    write_json(tmp_path / 'config.json', written)
    assert read_config(tmp_path) == (config, ())


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    'steps': ({'num_inference_steps': 0}, 'num_inference_steps: found 0'),
    'chunk': ({'n_action_steps': 51}, 'n_action_steps: found 51; expected at most chunk_size=50'),
    'observations': ({'n_obs_steps': 2}, 'n_obs_steps: found 2'),
    'language': ({'paligemma_variant': 'gemma_7b'}, "found 'gemma_7b'; expected one of gemma_2b"),
    'expert': ({'action_expert_variant': 'tiny'}, 'action_expert_variant: found tiny with gemma'),
    'dtype': ({'dtype': 'float16'}, "dtype: found 'float16'"),
    'no square': ({'image_resolution': [224, 256]}, 'image_resolution: found 224x256'),
    'smaller than a patch': ({'image_resolution': [13, 13]}, 'image_resolution: found 13x13'),
    'three sides': ({'image_resolution': [2, 2, 2]}, 'image_resolution: found [2, 2, 2]'),
    'periods': ({'min_period': 5.0}, 'min_period: found 5.0 with max_period=4.0'),
    'wide action': ({'max_action_dim': 6}, 'feature action: found 7 values; expected at most'),
    'names': ({'action_feature_names': 'a'}, "action_feature_names: found 'a'"),
    'rtc': ({'rtc_config': 3}, 'rtc_config: found 3; expected an object or null'),
    'cameras': ({'input_features': {}}, 'expected at least one VISUAL feature'),
    'only empty cameras': ({'input_features': {}, 'empty_cameras': 1}, 'that is no empty camera'),
    'unknown': ({'use_visual_memory': True}, 'unknown field use_visual_memory'),
    'peft': ({'use_peft': True}, 'merge the adapter'),
}


@pytest.mark.parametrize('name', FAULTS)
def test_an_impossible_configuration_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, text = FAULTS[name]
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **changes)
    assert text in str(caught.value)


def test_a_wide_state_is_only_too_wide_where_it_is_projected(tmp_path: Path) -> None:
    assert read(tmp_path, max_state_dim=6).max_state_dim == 6
    with pytest.raises(CheckpointError, match='at most max_state_dim=6'):
        read(tmp_path, 'pi0', max_state_dim=6)

"""Processor files: order and names come from the file; what is not understood is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from act_folder_factory import (
    ActFolderFactory,
    edit_json,
    feature,
    features,
    random_statistics,
    tiny_config,
)

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.config import FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.steps import DeviceStep, NormalizeStep, RenameStep
from sparkrt_ros.runtime.errors import CheckpointError

PRE = 'policy_preprocessor.json'
POST = 'policy_postprocessor.json'
KNOWN_PRE = (
    'rename_observations_processor, to_batch_processor, device_processor, normalizer_processor'
)
KNOWN_POST = 'unnormalizer_processor, to_batch_processor, device_processor'

Change = Callable[[dict[str, Any]], object]


def test_steps_keep_the_order_of_the_file(act_folder: Path) -> None:
    edit_json(act_folder / PRE, lambda data: data['steps'].reverse())
    description = describe_checkpoint(act_folder)
    assert description.preprocessor.step_names == tuple(reversed(KNOWN_PRE.split(', ')))
    assert description.postprocessor.step_names == ('unnormalizer_processor', 'device_processor')


def test_state_files_have_the_names_the_file_gives(act_folder: Path) -> None:
    edit_json(act_folder / PRE, lambda data: data['steps'][3].update(state_file='stats/a.st'))
    (act_folder / 'stats').mkdir()
    old = act_folder / 'policy_preprocessor_step_3_normalizer_processor.safetensors'
    old.rename(act_folder / 'stats' / 'a.st')
    description = describe_checkpoint(act_folder)
    assert description.preprocessor.state_files == (act_folder / 'stats' / 'a.st',)


def test_saved_device_is_kept_for_information_only(act_folder: Path) -> None:
    edit_json(act_folder / PRE, lambda data: data['steps'][2]['config'].update(device='cuda:3'))
    steps = describe_checkpoint(act_folder).preprocessor.steps
    assert steps[2] == DeviceStep(saved_device='cuda:3')


def test_renamed_keys_give_the_keys_the_robot_must_provide(
    make_act_folder: ActFolderFactory,
) -> None:
    renames = {
        'observation.images.cam_high': 'observation.images.front',
        'observation.images.unused': 'observation.images.nowhere',
    }
    description = describe_checkpoint(make_act_folder(rename_map=renames))
    assert description.source_keys == {
        'observation.images.front': 'observation.images.cam_high',
        'observation.images.wrist': 'observation.images.wrist',
        'observation.state': 'observation.state',
    }
    assert isinstance(description.preprocessor.steps[0], RenameStep)
    noted = [text for text in description.warnings if 'images.unused' in text]
    assert len(noted) == 1
    assert 'which the policy does not read' in noted[0]


def test_keys_can_be_swapped_by_renaming(make_act_folder: ActFolderFactory) -> None:
    front, wrist = 'observation.images.front', 'observation.images.wrist'
    description = describe_checkpoint(make_act_folder(rename_map={front: wrist, wrist: front}))
    assert description.source_keys[front] == wrist
    assert description.source_keys[wrist] == front


def test_renaming_in_two_steps_is_followed_to_its_beginning(
    make_act_folder: ActFolderFactory,
) -> None:
    folder = make_act_folder(rename_map={'observation.joints': 'observation.qpos'})
    second = {
        'registry_name': 'rename_observations_processor',
        'config': {'rename_map': {'observation.qpos': 'observation.state'}},
    }
    edit_json(folder / PRE, lambda data: data['steps'].insert(1, second))
    description = describe_checkpoint(folder)
    assert description.source_keys['observation.state'] == 'observation.joints'
    assert not any('does not read' in text for text in description.warnings)


def test_renaming_after_scaling_is_followed(make_act_folder: ActFolderFactory) -> None:
    """The scaling step then knows the feature by its incoming name."""
    folder = make_act_folder(rename_map={'observation.qpos': 'observation.state'})

    def rename_last(data: dict[str, Any]) -> None:
        data['steps'].append(data['steps'].pop(0))

    edit_json(folder / PRE, rename_last)
    with pytest.raises(CheckpointError, match=r'expected observation\.state, whose mode'):
        describe_checkpoint(folder)

    def scale_the_incoming_name(data: dict[str, Any]) -> None:
        listed = data['steps'][2]['config']['features']
        listed['observation.qpos'] = listed.pop('observation.state')

    edit_json(folder / PRE, scale_the_incoming_name)
    from act_folder_factory import flat_statistics, write_tensors

    statistics = random_statistics(tiny_config())
    statistics['observation.qpos'] = statistics.pop('observation.state')
    name = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
    write_tensors(folder / name, flat_statistics(statistics))
    assert describe_checkpoint(folder).source_keys['observation.state'] == 'observation.qpos'


def test_policy_key_that_is_renamed_away_is_refused(make_act_folder: ActFolderFactory) -> None:
    folder = make_act_folder(rename_map={'observation.state': 'observation.old_state'})
    with pytest.raises(CheckpointError, match=r'observation\.state renamed to .*old_state'):
        describe_checkpoint(folder)


def test_incoming_key_that_is_no_observation_is_refused(
    make_act_folder: ActFolderFactory,
) -> None:
    folder = make_act_folder(rename_map={'qpos': 'observation.state'})
    with pytest.raises(CheckpointError, match=r'incoming key qpos.*starts with observation\.'):
        describe_checkpoint(folder)


def step(at: int, **entries: Any) -> Change:
    return lambda data: data['steps'][at].update(entries)


def option(at: int, name: str, value: Any) -> Change:
    return lambda data: data['steps'][at]['config'].update({name: value})


def drop_option(at: int, name: str) -> Change:
    return lambda data: data['steps'][at]['config'].pop(name)


def replace_step(at: int, entry: Any) -> Change:
    return lambda data: data['steps'].__setitem__(at, entry)


STATE = 'observation.state'
FAULTS: dict[str, tuple[str, Change, str]] = {
    'no steps': (PRE, lambda data: data.pop('steps'), 'steps: found None'),
    'steps no list': (PRE, lambda data: data.update(steps={}), 'steps: found {}'),
    'extra entry': (PRE, lambda data: data.update(version=2), 'found version; expected name'),
    'step no object': (PRE, replace_step(0, 'x'), "step 0: found 'x'"),
    'unknown step': (
        PRE,
        step(0, registry_name='blur_processor'),
        f"step 0: found 'blur_processor'; expected one of: {KNOWN_PRE}",
    ),
    'name no string': (PRE, step(0, registry_name=['x']), "step 0: found ['x']"),
    'custom class': (
        POST,
        replace_step(1, {'class': 'my.module.Step', 'config': {}}),
        f"step 1: found class 'my.module.Step'; expected a registered step, one of: {KNOWN_POST}",
    ),
    'nameless': (PRE, replace_step(1, {'config': {}}), 'step 1: found no registry_name'),
    'observation step after': (
        POST,
        step(1, registry_name='rename_observations_processor'),
        f'one of: {KNOWN_POST}',
    ),
    'action step before': (PRE, step(0, registry_name='unnormalizer_processor'), KNOWN_PRE),
    'unknown entry of a step': (PRE, step(0, enabled=False), 'found enabled; expected'),
    'config no object': (PRE, step(1, config=[]), 'step 1 to_batch_processor: config'),
    'unknown option': (
        PRE,
        option(3, 'clip', True),
        'step 3 normalizer_processor: config: found unknown option clip',
    ),
    'statistics inline': (PRE, option(3, 'stats', {}), 'found unknown option stats'),
    'state of a stateless step': (
        PRE,
        step(1, state_file='x.safetensors'),
        'step 1 to_batch_processor: state_file: found x.safetensors; expected none',
    ),
    'artifact': (PRE, step(0, artifacts={'x': 'y'}), 'artifacts: found x; expected none'),
    'artifacts no object': (PRE, step(0, artifacts=['x']), "artifacts: found ['x']"),
    'rename map no object': (PRE, option(0, 'rename_map', ['a']), "rename_map: found ['a']"),
    'rename to a number': (PRE, option(0, 'rename_map', {'a': 1}), "found {'a': 1}"),
    'two keys of one name': (
        PRE,
        option(0, 'rename_map', {'observation.a': STATE, 'observation.b': STATE}),
        'several keys renamed to observation.state',
    ),
    'half precision': (PRE, option(2, 'float_dtype', 'bfloat16'), "float_dtype: found 'bfloat16'"),
    'device no string': (PRE, option(2, 'device', 0), 'device: found 0'),
    'no features': (PRE, drop_option(3, 'features'), 'config: found no features'),
    'no modes': (POST, drop_option(0, 'norm_map'), 'config: found no norm_map'),
    'unknown mode': (
        PRE,
        option(3, 'norm_map', {'STATE': 'ZSCORE'}),
        "norm_map.STATE: found 'ZSCORE'",
    ),
    'bad feature': (POST, option(0, 'features', {'action': {}}), 'features.action: found {}'),
    'eps zero': (PRE, option(3, 'eps', 0), 'eps: found 0; expected a positive'),
    'eps text': (POST, option(0, 'eps', '1e-8'), "eps: found '1e-8'"),
    'unknown observation key': (
        PRE,
        option(3, 'normalize_observation_keys', ['observation.sate']),
        'normalize_observation_keys: found observation.sate',
    ),
    'observation keys no list': (
        PRE,
        option(3, 'normalize_observation_keys', STATE),
        "normalize_observation_keys: found 'observation.state'",
    ),
    'feature not listed': (
        PRE,
        lambda data: data['steps'][3]['config']['features'].pop(STATE),
        f'expected {STATE}, whose mode is MEAN_STD',
    ),
    'action not listed': (
        POST,
        lambda data: data['steps'][0]['config'].update(features={}),
        'found features none; expected action, whose mode is MEAN_STD',
    ),
    'no scaling before': (
        PRE,
        lambda data: data['steps'].pop(3),
        'expected a step that scales observation.images.front',
    ),
    'no scaling after': (
        POST,
        lambda data: data.update(steps=[]),
        'found steps none; expected a step that scales action',
    ),
    'scaled twice': (
        PRE,
        lambda data: data['steps'].append(data['steps'][3]),
        'found 2 steps normalizer_processor; expected one',
    ),
    'other shape': (
        POST,
        option(0, 'features', {'action': {'type': 'ACTION', 'shape': [1]}}),
        'unnormalizer_processor): action.mean: found shape (5,); expected shape (1,)',
    ),
    'other type': (
        PRE,
        lambda data: data['steps'][3]['config']['features'][STATE].update(type='ENV'),
        f'{STATE}: found ENV (5,); expected STATE (5,) as in config.json',
    ),
    'no state file': (PRE, lambda data: data['steps'][3].pop('state_file'), '(no state_file)'),
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_names_file_step_and_what_is_known(act_folder: Path, name: str) -> None:
    file, change, text = FAULTS[name]
    edit_json(act_folder / file, change)
    with pytest.raises(CheckpointError) as caught:
        describe_checkpoint(act_folder)
    assert str(act_folder) in str(caught.value)
    assert file.removesuffix('.json') in str(caught.value)
    assert text in str(caught.value)


def test_policy_that_scales_nothing_needs_no_statistics(
    make_act_folder: ActFolderFactory,
) -> None:
    identity = dict.fromkeys(
        (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION), NormalizationMode.IDENTITY
    )
    folder = make_act_folder(config=tiny_config(normalization_mapping=identity))
    for file, at in ((PRE, 3), (POST, 0)):
        edit_json(folder / file, lambda data, at=at: data['steps'][at].pop('state_file'))
    description = describe_checkpoint(folder)
    assert not any('scaled' in text for text in description.warnings)
    edit_json(folder / POST, lambda data: data.update(steps=[]))
    assert describe_checkpoint(folder).postprocessor.steps == ()


def test_mode_of_the_step_wins_over_the_configuration_with_a_warning(act_folder: Path) -> None:
    edit_json(act_folder / PRE, lambda data: option(3, 'norm_map', {'STATE': 'MIN_MAX'})(data))
    description = describe_checkpoint(act_folder)
    normalize = description.preprocessor.steps[3]
    assert isinstance(normalize, NormalizeStep)
    modes = {scaling.key: scaling.mode for scaling in normalize.scalings}
    assert modes['observation.state'] is NormalizationMode.MIN_MAX
    assert modes['observation.images.front'] is NormalizationMode.IDENTITY
    noted = [text for text in description.warnings if 'the file of steps decides' in text]
    assert len(noted) == 3


def test_observations_that_the_step_leaves_out_are_not_scaled(act_folder: Path) -> None:
    edit_json(act_folder / PRE, option(3, 'normalize_observation_keys', ['observation.state']))
    description = describe_checkpoint(act_folder)
    normalize = description.preprocessor.steps[3]
    assert isinstance(normalize, NormalizeStep)
    scaled = [s.key for s in normalize.scalings if s.mode is not NormalizationMode.IDENTITY]
    assert scaled == ['observation.state']
    assert sum('IDENTITY' in text for text in description.warnings) == 2


def test_input_that_the_policy_does_not_read_is_noted(make_act_folder: ActFolderFactory) -> None:
    config = tiny_config()
    more = features(*config.input_features.values(), feature('observation.force', 'STATE', 3))
    description = describe_checkpoint(make_act_folder(config=tiny_config(input_features=more)))
    assert (
        'config.json: the policy does not read observation.force (STATE)' in description.warnings
    )
    assert 'observation.force' not in description.source_keys

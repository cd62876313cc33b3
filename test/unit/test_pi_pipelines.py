"""Processor files of Pi0 and Pi0.5: what is read from them, and what cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from act_folder_factory import edit_json, write_json
from pi_folder import TOKENIZER, write_pi_folder
from safetensors.torch import load_file, save_file

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.report import report
from sparkrt_ros.runtime.checkpoint.steps import (
    AbsoluteActionsStep,
    NewLineStep,
    RelativeActionsStep,
    StatePromptStep,
    TokenizerStep,
)
from sparkrt_ros.runtime.errors import CheckpointError

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'
Change = Callable[[dict[str, Any]], object]


def option(at: int, name: str, value: Any) -> Change:
    return lambda data: data['steps'][at]['config'].update({name: value})


def move(at: int, to: int) -> Change:
    return lambda data: data['steps'].insert(to, data['steps'].pop(at))


def drop(at: int) -> Change:
    return lambda data: data['steps'].pop(at)


@pytest.fixture(scope='module')
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pi_folder('pi05_relative', tmp_path_factory.mktemp('pi') / 'policy')


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """Its files are links, which editing replaces by files of their own."""
    target = tmp_path / 'policy'
    target.mkdir()
    for path in whole.iterdir():
        if path.is_file() and path.suffix != '.json':
            (target / path.name).hardlink_to(path)
        elif path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    return target


def test_steps_of_pi05_are_read_in_the_order_of_the_file(whole: Path) -> None:
    description = describe_checkpoint(whole)
    assert description.preprocessor.step_names == (
        'rename_observations_processor',
        'to_batch_processor',
        'relative_actions_processor',
        'normalizer_processor',
        'pi05_prepare_state_tokenizer_processor_step',
        'tokenizer_processor',
        'device_processor',
    )
    steps = {type(step): step for step in description.preprocessor.steps}
    assert steps[StatePromptStep] == StatePromptStep(max_state_dim=32)
    tokenizer = steps[TokenizerStep]
    assert isinstance(tokenizer, TokenizerStep)
    assert (tokenizer.max_length, tokenizer.folder) == (64, None)
    assert tokenizer.tokenizer_name == 'google/paligemma-3b-pt-224'
    relative = steps[RelativeActionsStep]
    assert isinstance(relative, RelativeActionsStep)
    assert (relative.enabled, relative.exclude_joints) == (True, ('gripper',))
    assert description.postprocessor.steps[1] == AbsoluteActionsStep(enabled=True)


def test_steps_of_pi0_scale_after_the_tokenizer(tmp_path: Path) -> None:
    description = describe_checkpoint(write_pi_folder('pi0', tmp_path / 'policy'))
    names = description.preprocessor.step_names
    assert names.index('tokenizer_processor') < names.index('normalizer_processor')
    assert any(isinstance(step, NewLineStep) for step in description.preprocessor.steps)


def test_the_report_says_what_the_policy_is(whole: Path) -> None:
    plain = report(describe_checkpoint(whole))
    assert plain['model_type'] == 'pi05'
    assert plain['architecture']['paligemma_variant'] == 'tiny'
    assert plain['state_size'] == plain['action_size'] == 7
    weights = plain['weights']
    heads = 640 * (48 + 32)
    assert weights['parameters'] - weights['inference_parameters'] == heads


FAULTS: dict[str, tuple[str, Change, str]] = {
    'left padding': (PRE, option(5, 'padding_side', 'left'), "padding_side: found 'left'"),
    'other padding': (PRE, option(5, 'padding', 'longest'), "padding: found 'longest'"),
    'no truncation': (PRE, option(5, 'truncation', False), 'truncation: found False'),
    'no length': (PRE, option(5, 'max_length', 0), 'max_length: found 0'),
    'other task': (PRE, option(5, 'task_key', 'subtask'), "task_key: found 'subtask'"),
    'unknown option': (PRE, option(5, 'stride', 2), 'unknown option stride'),
    'unknown option of the state': (PRE, option(4, 'bins', 2), 'unknown option bins'),
    'state size': (PRE, option(4, 'max_state_dim', '32'), "max_state_dim: found '32'"),
    'enabled': (PRE, option(2, 'enabled', 1), 'enabled: found 1; expected true or false'),
    'joints': (PRE, option(2, 'exclude_joints', 'gripper'), "exclude_joints: found 'gripper'"),
    'no tokenizer': (PRE, drop(5), 'found 0 steps tokenizer_processor; expected 1 in a pi05'),
    'two tokenizers': (
        PRE,
        lambda data: data['steps'].append(data['steps'][5]),
        'found 2 steps tokenizer_processor',
    ),
    'tokenizer first': (PRE, move(5, 3), 'after the tokenizer'),
    'scaled before it is remembered': (PRE, move(3, 2), 'normalizer_processor before relative'),
    'added before it is scaled': (POST, move(1, 0), 'absolute_actions_processor before unnorm'),
    'never remembered': (PRE, drop(2), 'found relative actions in one of them only'),
    'never added': (POST, option(1, 'enabled', False), 'found relative actions in one of them'),
    'renamed late': (
        PRE,
        lambda data: data['steps'].append(
            {
                'registry_name': 'rename_observations_processor',
                'config': {'rename_map': {'observation.pose': 'observation.state'}},
            }
        ),
        'renamed after the prompt was made',
    ),
    'artifact outside': (
        PRE,
        lambda data: data['steps'][5].update(artifacts={'tokenizer_name': '../elsewhere'}),
        'expected a path that stays inside',
    ),
    'unknown artifact': (
        PRE,
        lambda data: data['steps'][5].update(artifacts={'model': 'tokenizer'}),
        'artifacts: found model; expected tokenizer_name',
    ),
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_names_file_and_step(name: str, folder: Path) -> None:
    file, change, text = FAULTS[name]
    edit_json(folder / file, change)
    with pytest.raises(CheckpointError) as caught:
        describe_checkpoint(folder)
    assert str(folder) in str(caught.value)
    assert text in str(caught.value)


def test_relative_actions_need_a_state_for_each(folder: Path) -> None:
    def shorten(data: dict[str, Any]) -> None:
        data['input_features']['observation.state']['shape'] = [5]

    edit_json(folder / 'config.json', shorten)
    edit_json(
        folder / PRE,
        lambda data: data['steps'][3]['config']['features']['observation.state'].update(shape=[5]),
    )
    state_file = folder / 'policy_preprocessor_step_3_normalizer_processor.safetensors'
    stored = {
        key: value[:5].clone() if key.startswith('observation.state.') else value
        for key, value in load_file(state_file).items()
    }
    state_file.unlink()
    save_file(stored, state_file)
    with pytest.raises(CheckpointError, match='a state of 5 for 7 actions'):
        describe_checkpoint(folder)


def test_steps_decide_over_the_configuration_with_a_warning(folder: Path) -> None:
    edit_json(folder / 'config.json', lambda data: data.update(use_relative_actions=False))
    assert any('actions are relative' in text for text in describe_checkpoint(folder).warnings)


def test_a_saved_choice_of_chunking_is_noted(folder: Path) -> None:
    edit_json(folder / 'config.json', lambda data: data.update(rtc_config={'enabled': True}))
    assert any('rtc_config' in text for text in describe_checkpoint(folder).warnings)


def test_an_act_policy_has_no_instruction(act_folder: Path) -> None:
    step = {'registry_name': 'tokenizer_processor', 'config': {}}
    edit_json(act_folder / PRE, lambda data: data['steps'].append(step))
    with pytest.raises(CheckpointError, match='expected 0 in a act policy'):
        describe_checkpoint(act_folder)


def test_statistics_among_the_weights_do_not_make_up_for_missing_files(folder: Path) -> None:
    stored = load_file(folder / 'model.safetensors')
    stored['normalize_inputs.buffer_observation_state.mean'] = torch.zeros(7)
    (folder / 'model.safetensors').unlink()
    save_file(stored, folder / 'model.safetensors')
    (folder / PRE).unlink()
    (folder / POST).unlink()
    with pytest.raises(CheckpointError, match=PRE):
        describe_checkpoint(folder)


def test_the_tokenizer_belongs_to_the_policy(folder: Path) -> None:
    without = describe_checkpoint(folder)
    assert any('no tokenizer in the folder' in text for text in without.warnings)
    (folder / 'tokenizer').mkdir()
    for name in ('tokenizer.json', 'tokenizer_config.json'):
        (folder / 'tokenizer' / name).write_bytes((TOKENIZER / name).read_bytes())
    with_it = describe_checkpoint(folder)
    assert not any('tokenizer' in text for text in with_it.warnings)
    assert with_it.digest != without.digest
    write_json(folder / 'tokenizer' / 'tokenizer_config.json', {'add_bos_token': False})
    assert describe_checkpoint(folder).digest != with_it.digest

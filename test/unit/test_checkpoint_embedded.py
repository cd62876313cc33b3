"""The older form: statistics among the weights, no processor files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from act_folder_factory import (
    ActFolderFactory,
    act_shapes,
    feature,
    features,
    random_statistics,
    random_weights,
    tiny_config,
    write_tensors,
)

from sparkrt_ros.runtime.checkpoint import ActConfig, describe_checkpoint, load_checkpoint
from sparkrt_ros.runtime.errors import CheckpointError
from sparkrt_ros.runtime.processors import make_processors

Arrays = dict[str, np.ndarray]


def embedded(config: ActConfig, *, dataset: str = '') -> Arrays:
    """Statistics as LeRobot up to 0.3 stored them: those of the mode, dots made underscores."""
    statistics = random_statistics(config)
    at = f'{dataset}.' if dataset else ''
    groups = {
        'normalize_inputs': config.input_features,
        'normalize_targets': config.output_features,
        'unnormalize_outputs': config.output_features,
    }
    return {
        f'{group}.{at}buffer_{key.replace(".", "_")}.{name}': statistics[key][name]
        for group, keys in groups.items()
        for key in keys
        for name in ('mean', 'std')
    }


def make_old(folder: Path, config: ActConfig, statistics: Arrays) -> Path:
    for path in folder.glob('policy_*'):
        path.unlink()
    write_tensors(folder / 'model.safetensors', {**random_weights(config), **statistics})
    return folder


def test_old_form_equals_the_same_policy_in_the_new_form(
    make_act_folder: ActFolderFactory,
) -> None:
    config = tiny_config()
    new = load_checkpoint(make_act_folder('new'))
    old = load_checkpoint(make_old(make_act_folder('old'), config, embedded(config)))
    assert set(old.weights) == set(act_shapes(config))
    assert all(torch.equal(old.weights[name], new.weights[name]) for name in new.weights)
    assert old.preprocessor.step_names == new.preprocessor.step_names
    assert old.postprocessor.step_names == new.postprocessor.step_names
    generator = torch.Generator().manual_seed(0)
    batch = {
        key: torch.rand(spec.shape, generator=generator)
        for key, spec in config.input_features.items()
    }
    chunk = torch.randn(1, 8, 5, generator=generator)
    (old_pre, old_post), (new_pre, new_post) = (
        make_processors(checkpoint, device='cpu') for checkpoint in (old, new)
    )
    expected = new_pre(batch)
    assert all(torch.equal(value, expected[key]) for key, value in old_pre(batch).items())
    assert torch.equal(old_post(chunk), new_post(chunk))


def test_underscores_of_a_key_survive(make_act_folder: ActFolderFactory) -> None:
    config = tiny_config(
        input_features=features(
            feature('observation.images.cam_left_wrist', 'VISUAL', 3, 64, 64),
            feature('observation.state', 'STATE', 5),
            feature('observation.environment_state', 'ENV', 2),
        )
    )
    statistics = embedded(config)
    folder = make_old(make_act_folder(config=config), config, statistics)
    step = describe_checkpoint(folder).preprocessor.steps[-1]
    by_key = {scaling.key: scaling for scaling in step.scalings}
    np.testing.assert_array_equal(
        by_key['observation.images.cam_left_wrist'].statistics['mean'],
        statistics['normalize_inputs.buffer_observation_images_cam_left_wrist.mean'],
    )


def test_compiled_old_policy_is_read(make_act_folder: ActFolderFactory) -> None:
    config = tiny_config()
    statistics = {f'_orig_mod.{name}': array for name, array in embedded(config).items()}
    describe_checkpoint(make_old(make_act_folder(), config, statistics))


def test_digest_of_the_old_form_covers_config_and_weights(
    make_act_folder: ActFolderFactory,
) -> None:
    config = tiny_config()
    first = make_old(make_act_folder('a'), config, embedded(config))
    second = make_old(make_act_folder('b'), config, embedded(config))
    assert describe_checkpoint(first).digest == describe_checkpoint(second).digest
    changed = embedded(config)
    changed['unnormalize_outputs.buffer_action.std'] = np.full(5, 2, dtype=np.float32)
    make_old(second, config, changed)
    assert describe_checkpoint(first).digest != describe_checkpoint(second).digest


def test_dataset_must_be_chosen_among_several(make_act_folder: ActFolderFactory) -> None:
    config = tiny_config()
    shifted = {
        name: array + np.float32(1)
        for name, array in embedded(config, dataset='so100_blue.v2').items()
    }
    statistics = {**embedded(config, dataset='so100'), **shifted}
    folder = make_old(make_act_folder(), config, statistics)
    with pytest.raises(CheckpointError, match=r'several datasets: so100, so100_blue\.v2'):
        describe_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r'expected one of: so100, so100_blue\.v2'):
        describe_checkpoint(folder, dataset='so101')
    step = describe_checkpoint(folder, dataset='so100_blue.v2').postprocessor.steps[0]
    np.testing.assert_array_equal(
        step.scalings[0].statistics['mean'],
        statistics['unnormalize_outputs.so100_blue.v2.buffer_action.mean'],
    )


def fill(name: str, value: float) -> Callable[[Arrays], None]:
    def change(statistics: Arrays) -> None:
        statistics[name] = np.full_like(statistics[name], value)

    return change


def drop(*names: str) -> Callable[[Arrays], None]:
    def change(statistics: Arrays) -> None:
        for name in names:
            del statistics[name]

    return change


def rename(old: str, new: str) -> Callable[[Arrays], None]:
    return lambda statistics: statistics.__setitem__(new, statistics.pop(old))


STATE_MEAN = 'normalize_inputs.buffer_observation_state.mean'
FAULTS: dict[str, tuple[Callable[[Arrays], object], str]] = {
    'never filled': (
        fill(STATE_MEAN, float('inf')),
        'normalize_inputs: observation.state.mean: found 5 non-finite of 5',
    ),
    'action never filled': (
        fill('unnormalize_outputs.buffer_action.std', float('inf')),
        'unnormalize_outputs: action.std: found 5 non-finite',
    ),
    'no state': (
        drop(STATE_MEAN, STATE_MEAN.replace('mean', 'std')),
        'normalize_inputs: found statistics of observation.images.front',
    ),
    'no deviation': (drop(STATE_MEAN.replace('mean', 'std')), 'observation.state.std: found only'),
    'no outputs': (
        drop('unnormalize_outputs.buffer_action.mean', 'unnormalize_outputs.buffer_action.std'),
        'unnormalize_outputs: found statistics of no feature; expected statistics of action',
    ),
    'foreign form': (
        rename(STATE_MEAN, 'normalize_inputs.observation_state.mean'),
        'found a statistic of unknown form',
    ),
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_named(make_act_folder: ActFolderFactory, name: str) -> None:
    change, text = FAULTS[name]
    config = tiny_config()
    statistics = embedded(config)
    change(statistics)
    folder = make_old(make_act_folder(), config, statistics)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert str(folder / 'model.safetensors') in str(caught.value)
    assert text in str(caught.value)


def test_two_keys_of_one_buffer_name_cannot_be_told_apart(
    make_act_folder: ActFolderFactory,
) -> None:
    config = tiny_config(
        input_features=features(
            feature('observation.images.a_b', 'VISUAL', 3, 64, 64),
            feature('observation.images.a.b', 'VISUAL', 3, 64, 64),
            feature('observation.state', 'STATE', 5),
        )
    )
    folder = make_old(make_act_folder(config=config), config, embedded(config))
    with pytest.raises(CheckpointError, match=r'images\.a_b and observation\.images\.a\.b'):
        describe_checkpoint(folder)


def test_processor_files_win_over_statistics_among_the_weights(
    make_act_folder: ActFolderFactory,
) -> None:
    config = tiny_config()
    folder = make_act_folder()
    statistics = embedded(config)
    write_tensors(folder / 'model.safetensors', {**random_weights(config), **statistics})
    description = describe_checkpoint(folder)
    assert description.preprocessor.file == folder / 'policy_preprocessor.json'
    assert any(
        f'{len(statistics)} statistics among the weights' in w for w in description.warnings
    )
    (folder / 'policy_postprocessor.json').unlink()
    with pytest.raises(CheckpointError, match=r'policy_postprocessor\.json: found no such file'):
        describe_checkpoint(folder)

"""Statistics that are missing, never filled or impossible are errors, never a silent pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from act_folder_factory import (
    STATISTICS_OF_MODE,
    ActFolderFactory,
    flat_statistics,
    random_statistics,
    tiny_config,
    write_tensors,
)

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.config import FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.steps import NormalizeStep, UnnormalizeStep
from sparkrt_ros.runtime.errors import CheckpointError

PRE_STATE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
POST_STATE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
STATE = 'observation.state'
FRONT = 'observation.images.front'
SCALED_MODES = [mode for mode in NormalizationMode if mode is not NormalizationMode.IDENTITY]

Statistics = dict[str, dict[str, np.ndarray]]


def with_mode(mode: NormalizationMode) -> dict[FeatureType, NormalizationMode]:
    return dict.fromkeys((FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION), mode)


@pytest.mark.parametrize('mode', SCALED_MODES)
def test_each_mode_keeps_the_statistics_it_needs(
    make_act_folder: ActFolderFactory, mode: NormalizationMode
) -> None:
    config = tiny_config(normalization_mapping=with_mode(mode))
    description = describe_checkpoint(make_act_folder(config=config))
    statistics = random_statistics(config)
    before, after = description.preprocessor.steps[3], description.postprocessor.steps[0]
    assert isinstance(before, NormalizeStep)
    assert isinstance(after, UnnormalizeStep)
    assert [scaling.key for scaling in before.scalings] == list(config.input_features)
    assert [scaling.key for scaling in after.scalings] == ['action']
    for scaling in (*before.scalings, *after.scalings):
        assert tuple(scaling.statistics) == STATISTICS_OF_MODE[mode]
        for name, values in scaling.statistics.items():
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, statistics[scaling.key][name])


@pytest.mark.parametrize('mode', SCALED_MODES)
@pytest.mark.parametrize('at', [0, 1])
def test_statistic_that_the_mode_needs_is_named(
    make_act_folder: ActFolderFactory, mode: NormalizationMode, at: int
) -> None:
    config = tiny_config(normalization_mapping=with_mode(mode))
    statistics = random_statistics(config)
    name = STATISTICS_OF_MODE[mode][at]
    del statistics[STATE][name]
    with pytest.raises(CheckpointError) as caught:
        describe_checkpoint(make_act_folder(config=config, statistics=statistics))
    text = str(caught.value)
    assert PRE_STATE in text
    assert f'{STATE}.{name}: found only' in text
    assert f'{" and ".join(STATISTICS_OF_MODE[mode])}, which {mode.value} needs' in text
    assert 'remedy: compute the statistics' in text


def drop(key: str) -> Callable[[Statistics], object]:
    return lambda statistics: statistics.pop(key)


def put(key: str, name: str, values: object) -> Callable[[Statistics], object]:
    array = np.asarray(values, dtype=np.float32)
    return lambda statistics: statistics[key].__setitem__(name, array)


def rename(key: str, new: str) -> Callable[[Statistics], object]:
    return lambda statistics: statistics.__setitem__(new, statistics.pop(key))


def clear(statistics: Statistics) -> None:
    statistics.clear()
    statistics['timestamp'] = {'mean': np.zeros(1, dtype=np.float32)}


INF, NAN = float('inf'), float('nan')
FAULTS: dict[str, tuple[Callable[[Statistics], object], str]] = {
    'state missing': (drop(STATE), f'expected statistics of {STATE}, which is normalised by'),
    'image missing': (drop(FRONT), f'expected statistics of {FRONT}'),
    'all missing': (clear, 'found statistics of timestamp; expected statistics of'),
    'infinite mean': (put(STATE, 'mean', [INF] * 5), f'{STATE}.mean: found 5 non-finite of 5'),
    'one nan': (put(STATE, 'std', [1, 1, NAN, 1, 1]), f'{STATE}.std: found 1 non-finite of 5'),
    'infinite image': (put(FRONT, 'std', [INF, 1, 1]), f'{FRONT}.std: found 1 non-finite of 3'),
    'negative deviation': (
        put(STATE, 'std', [1, 1, 1, -0.5, 1]),
        f'{STATE}.std[3]: found -0.5; expected >= 0',
    ),
    'too few': (put(STATE, 'mean', [0, 0]), 'found shape (2,); expected shape (5,)'),
    'one for all': (put(STATE, 'mean', [0]), 'found shape (1,); expected shape (5,)'),
    'batched': (put(STATE, 'mean', [[0] * 5]), 'found shape (1, 5); expected shape (5,)'),
    'image per pixel': (
        put(FRONT, 'mean', np.zeros((3, 64, 64))),
        'found shape (3, 64, 64); expected shape (3, 1, 1) for the feature of shape (3, 64, 64)',
    ),
    'image grey': (put(FRONT, 'mean', [0.5]), 'found shape (1,); expected shape (3, 1, 1)'),
    'several datasets': (
        lambda statistics: (
            statistics.__setitem__('so100.buffer.observation.state', statistics[STATE]),
            statistics.__setitem__('aloha_x.buffer.observation.state', statistics.pop(STATE)),
        ),
        'found statistics of several datasets: aloha_x, so100; expected statistics of '
        f'{STATE}, which is normalised by MEAN_STD; remedy: choose the dataset',
    ),
    'underscores lost': (
        rename(STATE, 'observation_state'),
        'remedy: rename observation_state: a migration changed its underscores',
    ),
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_names_file_key_found_and_expected(
    make_act_folder: ActFolderFactory, name: str
) -> None:
    change, text = FAULTS[name]
    statistics = random_statistics(tiny_config())
    change(statistics)
    with pytest.raises(CheckpointError) as caught:
        describe_checkpoint(make_act_folder(statistics=statistics))
    assert PRE_STATE in str(caught.value)
    assert 'step 3 normalizer_processor' in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ('mode', 'low', 'high'),
    [('MIN_MAX', 'min', 'max'), ('QUANTILES', 'q01', 'q99'), ('QUANTILE10', 'q10', 'q90')],
)
def test_range_that_ends_before_it_begins_is_refused(
    make_act_folder: ActFolderFactory, mode: str, low: str, high: str
) -> None:
    config = tiny_config(normalization_mapping=with_mode(NormalizationMode(mode)))
    statistics = random_statistics(config)
    statistics['action'][low][2] = 4.0
    statistics['action'][high][2] = 3.5
    match = rf'{POST_STATE}.*action\.{high}\[2\]: found 3\.5; expected >= {low} \(4\.0\)'
    with pytest.raises(CheckpointError, match=match):
        describe_checkpoint(make_act_folder(config=config, statistics=statistics))


def test_postprocessor_needs_statistics_of_the_action_only(
    make_act_folder: ActFolderFactory,
) -> None:
    folder = make_act_folder()
    statistics = random_statistics(tiny_config())
    only_action = {'action': statistics['action']}
    write_tensors(folder / POST_STATE, flat_statistics(only_action))
    without_action = {key: value for key, value in statistics.items() if key != 'action'}
    write_tensors(folder / PRE_STATE, flat_statistics(without_action))
    describe_checkpoint(folder)
    write_tensors(folder / POST_STATE, flat_statistics(without_action))
    with pytest.raises(CheckpointError, match=rf'{POST_STATE}.*expected statistics of action'):
        describe_checkpoint(folder)


def test_tensor_without_a_statistic_name_is_refused(act_folder: Path) -> None:
    write_tensors(act_folder / PRE_STATE, {'mean': np.zeros(5, dtype=np.float32)})
    with pytest.raises(CheckpointError, match="found tensor 'mean'; expected names such as"):
        describe_checkpoint(act_folder)


def test_image_statistics_may_be_flat(make_act_folder: ActFolderFactory) -> None:
    statistics = random_statistics(tiny_config())
    flat = {name: values.reshape(-1) for name, values in statistics[FRONT].items()}
    folder = make_act_folder(statistics={**statistics, FRONT: flat})
    step = describe_checkpoint(folder).preprocessor.steps[3]
    assert isinstance(step, NormalizeStep)
    np.testing.assert_array_equal(step.scalings[0].statistics['mean'], statistics[FRONT]['mean'])


def migrated(statistics: Statistics, *datasets: str) -> Statistics:
    """Statistics as LeRobot's migration of a policy of several datasets leaves them."""
    return {
        f'{dataset}.buffer.{key.replace("_", ".")}': {
            name: values + np.asarray(at, dtype=values.dtype) for name, values in one.items()
        }
        for at, dataset in enumerate(datasets)
        for key, one in statistics.items()
    }


def test_chosen_dataset_is_used(make_act_folder: ActFolderFactory) -> None:
    statistics = random_statistics(tiny_config())
    folder = make_act_folder(statistics=migrated(statistics, 'so100', 'so100-red'))
    step = describe_checkpoint(folder, dataset='so100-red').postprocessor.steps[0]
    assert isinstance(step, UnnormalizeStep)
    mean = step.scalings[0].statistics['mean']
    np.testing.assert_array_equal(mean, statistics['action']['mean'] + np.float32(1))
    with pytest.raises(CheckpointError, match="found 'so101'; expected one of: so100, so100-red"):
        describe_checkpoint(folder, dataset='so101')


def test_dataset_of_a_policy_without_several_is_refused(act_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r'dataset: found .so100.; expected one of: none'):
        describe_checkpoint(act_folder, dataset='so100')


@pytest.mark.parametrize('mode', SCALED_MODES)
def test_values_that_never_varied_are_warned_of(
    make_act_folder: ActFolderFactory, mode: NormalizationMode
) -> None:
    config = tiny_config(normalization_mapping=with_mode(mode))
    statistics = random_statistics(config)
    for key, at in ((STATE, [1, 3]), ('action', [0])):
        low, high = STATISTICS_OF_MODE[mode]
        statistics[key][high][at] = 0 if mode is NormalizationMode.MEAN_STD else 0.25
        if mode is not NormalizationMode.MEAN_STD:
            statistics[key][low][at] = 0.25
    warnings = describe_checkpoint(make_act_folder(config=config, statistics=statistics)).warnings
    state = [text for text in warnings if 'observation.state[1, 3] never varied' in text]
    action = [text for text in warnings if 'action[0] never varied' in text]
    assert len(state) == len(action) == 1
    assert f'under {mode.value} any other value is scaled by about 1e8' in state[0]
    assert 'can only command that one value' in action[0]

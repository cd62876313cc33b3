"""Pre- and postprocessing: order from the file, nothing passed raw, nothing shared or changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from act_folder_factory import (
    ActFolderFactory,
    edit_json,
    feature,
    features,
    random_statistics,
    tiny_config,
)
from torch.utils._python_dispatch import TorchDispatchMode

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.config import FeatureType, NormalizationMode
from sparkrt_ros.runtime.errors import ActionError, ObservationError
from sparkrt_ros.runtime.processors import Postprocessor, Preprocessor, make_processors
from sparkrt_ros.runtime.processors.steps import add_batch_dimension

PRE = 'policy_preprocessor.json'
FRONT, WRIST = 'observation.images.front', 'observation.images.wrist'
STATE = 'observation.state'


def processors(folder: Path) -> tuple[Preprocessor, Postprocessor]:
    return make_processors(describe_checkpoint(folder), device='cpu')


def one_observation(*, batched: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    batch = {
        FRONT: torch.rand(3, 64, 64, generator=generator),
        WRIST: torch.rand(3, 48, 80, generator=generator),
        STATE: torch.randn(5, generator=generator),
    }
    return {key: value[None] for key, value in batch.items()} if batched else batch


def standardized(key: str, values: torch.Tensor) -> torch.Tensor:
    statistics = random_statistics(tiny_config())[key]
    mean, std = (torch.from_numpy(statistics[name]) for name in ('mean', 'std'))
    return (values - mean) / (std + 1e-8)


def test_single_observation_becomes_a_scaled_batch_of_one(act_folder: Path) -> None:
    preprocess, _ = processors(act_folder)
    given = one_observation()
    result = preprocess(given)
    assert set(result) == set(given)
    for key, values in given.items():
        assert torch.equal(result[key], standardized(key, values)[None])
        assert result[key].dtype == torch.float32


def test_batched_observation_gives_the_same(act_folder: Path) -> None:
    preprocess, _ = processors(act_folder)
    single, batched = preprocess(one_observation()), preprocess(one_observation(batched=True))
    assert all(torch.equal(single[key], batched[key]) for key in single)


def test_input_is_not_changed_and_result_is_not_reused(act_folder: Path) -> None:
    preprocess, postprocess = processors(act_folder)
    given = one_observation()
    copies = {key: value.clone() for key, value in given.items()}
    first = preprocess(given)
    kept = first[STATE].clone()
    preprocess({**given, STATE: torch.zeros(5)})
    assert all(torch.equal(given[key], copies[key]) for key in given)
    assert torch.equal(first[STATE], kept)
    chunk = torch.randn(1, 8, 5)
    actions = postprocess(chunk)
    kept = actions.clone()
    postprocess(torch.zeros(1, 8, 5))
    assert torch.equal(actions, kept)


def test_batching_leaves_other_entries_and_its_input_alone() -> None:
    given = {
        STATE: torch.zeros(5),
        FRONT: torch.zeros(3, 4, 4),
        'observation.other': torch.zeros(5),
    }
    result = add_batch_dimension(given)
    shapes = {key: tuple(value.shape) for key, value in result.items()}
    assert shapes == {STATE: (1, 5), FRONT: (1, 3, 4, 4), 'observation.other': (5,)}
    assert given[STATE].shape == (5,)


def test_postprocessing_returns_dataset_units(act_folder: Path) -> None:
    _, postprocess = processors(act_folder)
    statistics = random_statistics(tiny_config())['action']
    mean, std = (torch.from_numpy(statistics[name]) for name in ('mean', 'std'))
    chunk = torch.randn(2, 8, 5)
    assert torch.equal(postprocess(chunk), chunk * std + mean)
    assert torch.equal(postprocess(chunk[:, 0]), chunk[:, 0] * std + mean)


def test_inputs_are_renamed_before_they_are_scaled(make_act_folder: ActFolderFactory) -> None:
    folder = make_act_folder(rename_map={'observation.images.cam_high': FRONT})
    preprocess, _ = processors(folder)
    given = one_observation()
    given['observation.images.cam_high'] = given.pop(FRONT)
    given['task'] = torch.zeros(1)
    result = preprocess(given)
    assert set(result) == {FRONT, WRIST, STATE, 'task'}
    expected = standardized(FRONT, given['observation.images.cam_high'])[None]
    assert torch.equal(result[FRONT], expected)


def test_swapped_keys_are_swapped_at_once(make_act_folder: ActFolderFactory) -> None:
    preprocess, _ = processors(make_act_folder(rename_map={FRONT: WRIST, WRIST: FRONT}))
    given = one_observation()
    assert torch.equal(preprocess(given)[WRIST], standardized(WRIST, given[FRONT])[None])


def test_two_inputs_for_one_key_are_refused(make_act_folder: ActFolderFactory) -> None:
    preprocess, _ = processors(make_act_folder(rename_map={'observation.images.top': FRONT}))
    given = one_observation()
    with pytest.raises(ObservationError, match=f'{FRONT}: found two inputs of that name'):
        preprocess({**given, 'observation.images.top': given[FRONT]})


def test_order_of_the_file_decides(make_act_folder: ActFolderFactory) -> None:
    """Scaling before renaming uses the statistics of the incoming name."""
    config = tiny_config(
        normalization_mapping={
            FeatureType.STATE: NormalizationMode.MEAN_STD,
            FeatureType.ACTION: NormalizationMode.MEAN_STD,
        }
    )
    statistics = random_statistics(config)
    statistics['observation.qpos'] = statistics.pop(STATE)
    folder = make_act_folder(
        config=config, statistics=statistics, rename_map={'observation.qpos': STATE}
    )

    def scale_first(data: dict) -> None:
        data['steps'].insert(0, data['steps'].pop(3))
        listed = data['steps'][0]['config']['features']
        listed['observation.qpos'] = listed.pop(STATE)

    edit_json(folder / PRE, scale_first)
    preprocess, _ = processors(folder)
    given = one_observation()
    values = given.pop(STATE)
    result = preprocess({**given, 'observation.qpos': values})
    assert torch.equal(result[STATE], standardized(STATE, values)[None])
    with pytest.raises(ObservationError, match=STATE):
        preprocess({**given, 'observation.other': values})


def test_eps_of_the_file_is_used(make_act_folder: ActFolderFactory) -> None:
    statistics = random_statistics(tiny_config())
    statistics[STATE]['std'][0] = 0
    folder = make_act_folder(statistics=statistics)
    edit_json(folder / PRE, lambda data: data['steps'][3]['config'].update(eps=0.5))
    preprocess, _ = processors(folder)
    given = one_observation()
    mean = float(statistics[STATE]['mean'][0])
    expected = (given[STATE][0] - mean) / torch.tensor(0.5)
    assert float(preprocess(given)[STATE][0, 0]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize('mode', [m for m in NormalizationMode if m.value != 'MEAN_STD'])
def test_value_that_never_varied_stays_finite_and_comes_back(
    make_act_folder: ActFolderFactory, mode: NormalizationMode
) -> None:
    modes = {FeatureType.STATE: mode, FeatureType.ACTION: mode}
    config = tiny_config(normalization_mapping=modes)
    statistics = random_statistics(config)
    for key in (STATE, 'action'):
        for name in ('min', 'max', 'q01', 'q99', 'q10', 'q90'):
            statistics[key][name][2] = 0.75
    preprocess, postprocess = processors(make_act_folder(config=config, statistics=statistics))
    given = one_observation()
    given[STATE][2] = 0.75
    expected = 0.75 if mode is NormalizationMode.IDENTITY else -1.0
    assert float(preprocess(given)[STATE][0, 2]) == expected
    row = postprocess(torch.full((1, 5), -1.0))
    expected = -1.0 if mode is NormalizationMode.IDENTITY else 0.75
    assert float(row[0, 2]) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize('mode', list(NormalizationMode))
def test_scaling_back_and_forth_is_the_identity(
    make_act_folder: ActFolderFactory, mode: NormalizationMode
) -> None:
    modes = {FeatureType.STATE: mode, FeatureType.ACTION: mode}
    config = tiny_config(normalization_mapping=modes)
    statistics = random_statistics(config)
    statistics['action'] = statistics[STATE]
    preprocess, postprocess = processors(make_act_folder(config=config, statistics=statistics))
    given = one_observation(batched=True)
    back = postprocess(preprocess(given)[STATE])
    np.testing.assert_allclose(back.numpy(), given[STATE].numpy(), atol=1e-5)


WRONG_INPUTS = {
    'missing camera': ({WRIST: None}, f'{WRIST}: found only {FRONT}, {STATE}'),
    'bytes': ({FRONT: torch.zeros(3, 64, 64, dtype=torch.uint8)}, 'found torch.uint8'),
    'double': ({STATE: torch.zeros(5, dtype=torch.float64)}, 'found torch.float64'),
    'half': ({STATE: torch.zeros(5, dtype=torch.float16)}, 'found torch.float16'),
    'short state': ({STATE: torch.zeros(1, 4)}, 'found shape (1, 4); expected shape (batch, 5)'),
    'state of one': (
        {STATE: torch.zeros(1, 1)},
        f'{STATE}: found shape (1, 1); expected shape (batch, 5)',
    ),
    'state with time': ({STATE: torch.zeros(1, 1, 5)}, 'found shape (1, 1, 5)'),
    'channels last': (
        {FRONT: torch.zeros(64, 64, 3)},
        'found shape (1, 64, 64, 3); expected shape (batch, 3, 64, 64)',
    ),
    'sequence of images': ({FRONT: torch.zeros(1, 1, 3, 64, 64)}, 'found shape (1, 1, 3, 64, 64)'),
}


@pytest.mark.parametrize('name', WRONG_INPUTS)
def test_wrong_input_is_named(act_folder: Path, name: str) -> None:
    changes, text = WRONG_INPUTS[name]
    preprocess, _ = processors(act_folder)
    given = {**one_observation(), **changes}
    key = next(iter(changes))
    with pytest.raises(ObservationError) as caught:
        preprocess({name: value for name, value in given.items() if value is not None})
    assert caught.value.where == key
    assert text in str(caught.value)


WRONG_OUTPUTS = {
    'columns': (torch.zeros(1, 8, 6), 'found shape (1, 8, 6); expected (batch, 5)'),
    'one row': (torch.zeros(5), 'found shape (5,)'),
    'rank four': (torch.zeros(1, 1, 8, 5), 'found shape (1, 1, 8, 5)'),
    'half': (torch.zeros(1, 8, 5, dtype=torch.float16), 'found torch.float16'),
    'bfloat': (torch.zeros(1, 8, 5, dtype=torch.bfloat16), 'found torch.bfloat16'),
}


@pytest.mark.parametrize('name', WRONG_OUTPUTS)
def test_wrong_output_never_becomes_an_action(act_folder: Path, name: str) -> None:
    actions, text = WRONG_OUTPUTS[name]
    _, postprocess = processors(act_folder)
    with pytest.raises(ActionError) as caught:
        postprocess(actions)
    assert text in str(caught.value)


def test_environment_state_is_batched_and_required(make_act_folder: ActFolderFactory) -> None:
    key = 'observation.environment_state'
    config = tiny_config(input_features=features(feature(key, 'ENV', 4)))
    preprocess, _ = processors(make_act_folder(config=config))
    assert preprocess({key: torch.ones(4)})[key].shape == (1, 4)
    with pytest.raises(ObservationError, match=f'{key}: found only nothing'):
        preprocess({})


def test_saved_gpu_does_not_matter_on_a_machine_without_one(act_folder: Path) -> None:
    for file, at in ((PRE, 2), ('policy_postprocessor.json', 1)):
        edit_json(
            act_folder / file,
            lambda data, at=at: data['steps'][at]['config'].update(device='cuda'),
        )
    preprocess, postprocess = processors(act_folder)
    assert preprocess(one_observation())[STATE].device.type == 'cpu'
    assert postprocess(torch.zeros(1, 5)).device.type == 'cpu'


class Operations(TorchDispatchMode):
    """Records which tensor operations run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_hot_path_is_arithmetic_on_prepared_statistics(act_folder: Path) -> None:
    """No value is read back and no statistic is copied: both would break graph capture."""
    preprocess, postprocess = processors(act_folder)
    given, chunk = one_observation(batched=True), torch.zeros(1, 8, 5)
    with Operations() as operations:
        preprocess(given)
        postprocess(chunk)
    allowed = {'aten.sub.Tensor', 'aten.div.Tensor', 'aten.mul.Tensor', 'aten.add.Tensor'}
    assert len(operations.names) == 3 * 2 + 2
    assert set(operations.names) <= allowed


def test_processors_import_no_ros() -> None:
    code = (
        'import sys; sys.modules["rclpy"] = None\n'
        'import sparkrt_ros.runtime.processors, sparkrt_ros.runtime.checkpoint.report'
    )
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
def test_both_directions_can_be_captured_into_a_cuda_graph(act_folder: Path) -> None:
    preprocess, postprocess = make_processors(describe_checkpoint(act_folder), device='cuda')
    on_host, _ = processors(act_folder)
    batch = {key: value.cuda() for key, value in one_observation(batched=True).items()}
    chunk = torch.zeros(1, 8, 5, device='cuda')
    preprocess(batch), postprocess(chunk)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs, actions = preprocess(batch), postprocess(chunk)
    fresh = {key: torch.rand_like(value) for key, value in one_observation(batched=True).items()}
    for key, value in fresh.items():
        batch[key].copy_(value)
    chunk.fill_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    expected = on_host(fresh)
    assert all(torch.equal(inputs[key].cpu(), expected[key]) for key in fresh)
    assert actions.device.type == 'cuda'
    assert bool((actions != 0).any())

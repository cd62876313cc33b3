"""Our ACT against the outputs of a real LeRobot, for every variant of the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from act_cases import ACT_CASES, KEY_CASES, ActCase
from golden_folder import GOLDEN, lerobot_shapes
from seeded_weights import seeded_tensor

from sparkrt_ros.runtime.checkpoint.config import (
    ENVIRONMENT_STATE_KEY,
    STATE_KEY,
    ActConfig,
    FeatureSpec,
    FeatureType,
)
from sparkrt_ros.runtime.policies.act import TRAINING_ONLY_PREFIXES, ActModel

CHUNK_TOLERANCE = 1e-5
VISIBLE = 1e-3


def features(raw: dict[str, dict[str, Any]]) -> dict[str, FeatureSpec]:
    return {
        key: FeatureSpec(key=key, type=FeatureType(value['type']), shape=tuple(value['shape']))
        for key, value in raw.items()
    }


def make_model(case: ActCase) -> ActModel:
    """Our network with the weights LeRobot had; a wrong name would give a wrong weight."""
    config = ActConfig(
        input_features=features(case.input_features()),
        output_features=features(case.output_features()),
        **case.options,
    )
    model = ActModel(config).eval()
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    weights = {key: torch.from_numpy(seeded_tensor(key, shape)) for key, shape in shapes.items()}
    model.load_state_dict(weights)
    return model


def inputs(case: ActCase, name: str, batch: int) -> dict[str, torch.Tensor]:
    tensors = {}
    for key, value in case.observation(name, batch=batch).items():
        tensor = torch.from_numpy(value)
        if tensor.dtype == torch.uint8:
            tensor = tensor.permute(0, 3, 1, 2).to(torch.float32).contiguous() / 255
        tensors[key] = tensor
    return tensors


def predict(model: ActModel, tensors: dict[str, torch.Tensor]) -> np.ndarray:
    with torch.inference_mode():
        chunk = model(
            images=[value for key, value in tensors.items() if 'images' in key],
            state=tensors.get(STATE_KEY),
            environment_state=tensors.get(ENVIRONMENT_STATE_KEY),
        )
    return chunk.numpy()


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'act_chunks.npz') as arrays:
        return dict(arrays)


def test_every_case_has_a_golden_chunk(golden: dict[str, np.ndarray]) -> None:
    assert set(golden) == {f'{name}/{batch}' for name in ACT_CASES for batch in (1, 2)}


@pytest.mark.parametrize('name', ACT_CASES)
def test_chunk_equals_lerobots(name: str, golden: dict[str, np.ndarray]) -> None:
    case = ACT_CASES[name]
    model = make_model(case)
    for batch in (1, 2):
        chunk = predict(model, inputs(case, name, batch))
        assert np.abs(chunk - golden[f'{name}/{batch}']).max() <= CHUNK_TOLERANCE


def test_chunk_depends_on_every_input() -> None:
    """A golden chunk that ignored a camera would prove nothing about it."""
    case = ACT_CASES['everything']
    model = make_model(case)
    given = inputs(case, 'everything', 1)
    other = inputs(case, 'another seed', 1)
    reference = predict(model, given)
    for key in given:
        changed = predict(model, {**given, key: other[key]})
        assert np.abs(changed - reference).max() > VISIBLE, key


@pytest.mark.parametrize('name', KEY_CASES)
def test_state_dict_has_lerobots_names_and_shapes(name: str) -> None:
    ours = {
        key: tuple(value.shape) for key, value in make_model(ACT_CASES[name]).state_dict().items()
    }
    theirs = {key.removeprefix('model.'): shape for key, shape in lerobot_shapes(name).items()}
    inference = {
        key: shape for key, shape in theirs.items() if not key.startswith(TRAINING_ONLY_PREFIXES)
    }
    assert ours == inference


def test_default_act_with_one_camera_saves_234_tensors_of_which_178_serve() -> None:
    names = lerobot_shapes('full_size')
    assert len(names) == 234
    assert len(make_model(ACT_CASES['full_size']).state_dict()) == 178

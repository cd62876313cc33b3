"""Normalisation equals LeRobot's to the last bit: every mode, direction and kind of feature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from normalization_cases import (
    NORMALIZATION_FEATURES,
    NORMALIZATION_MODES,
    normalization_input,
    normalization_statistics,
)

from sparkrt_ros.runtime.checkpoint.config import FeatureSpec, FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling, StatisticsTable, resolve_scaling
from sparkrt_ros.runtime.checkpoint.steps import NormalizeStep, PipelineSpec, UnnormalizeStep
from sparkrt_ros.runtime.processors import FeatureScaler, Postprocessor, Preprocessor

GOLDEN = Path(__file__).resolve().parent / 'normalization.npz'
EPS = 1e-8


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as data:
        return dict(data)


def spec_of(key: str) -> FeatureSpec:
    entry = NORMALIZATION_FEATURES[key]
    return FeatureSpec(key=key, type=FeatureType(entry['type']), shape=tuple(entry['shape']))


def scaling_of(key: str, mode: str) -> FeatureScaling:
    table = StatisticsTable(source='golden', by_feature=normalization_statistics(), datasets={})
    return resolve_scaling(table, spec_of(key), NormalizationMode(mode))


@pytest.mark.parametrize('direction', ['forward', 'inverse'])
@pytest.mark.parametrize('key', NORMALIZATION_FEATURES)
@pytest.mark.parametrize('mode', NORMALIZATION_MODES)
def test_scaler_is_exact(
    golden: dict[str, np.ndarray], mode: str, key: str, direction: str
) -> None:
    scaler = FeatureScaler(scaling_of(key, mode), eps=EPS, device=torch.device('cpu'))
    apply = scaler.normalize if direction == 'forward' else scaler.unnormalize
    result = apply(torch.from_numpy(normalization_input(key, direction))).numpy()
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, golden[f'{mode}/{direction}/{key}'])


@pytest.mark.parametrize('mode', NORMALIZATION_MODES)
def test_preprocessor_is_exact(golden: dict[str, np.ndarray], mode: str) -> None:
    keys = [key for key in NORMALIZATION_FEATURES if key != 'action']
    specs = {key: spec_of(key) for key in keys}
    step = NormalizeStep(
        eps=EPS, features=specs, scalings=tuple(scaling_of(key, mode) for key in keys)
    )
    pipeline = PipelineSpec(name='pre', file=GOLDEN, steps=(step,))
    preprocess = Preprocessor(pipeline, features=specs, device='cpu')
    inputs = {key: torch.from_numpy(normalization_input(key, 'forward')) for key in keys}
    result = preprocess(inputs)
    assert set(result) == set(keys)
    for key in keys:
        np.testing.assert_array_equal(result[key].numpy(), golden[f'{mode}/forward/{key}'])


@pytest.mark.parametrize('mode', NORMALIZATION_MODES)
def test_postprocessor_is_exact_on_chunks_and_on_single_rows(
    golden: dict[str, np.ndarray], mode: str
) -> None:
    step = UnnormalizeStep(
        eps=EPS, features={'action': spec_of('action')}, scalings=(scaling_of('action', mode),)
    )
    pipeline = PipelineSpec(name='post', file=GOLDEN, steps=(step,))
    postprocess = Postprocessor(pipeline, action_size=9, device='cpu')
    chunk = torch.from_numpy(normalization_input('action', 'inverse'))
    expected = golden[f'{mode}/inverse/action']
    np.testing.assert_array_equal(postprocess(chunk).numpy(), expected)
    np.testing.assert_array_equal(postprocess(chunk[:, 3]).numpy(), expected[:, 3])

"""Whole policies against LeRobot's own select_action, processors included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from act_cases import (
    ENSEMBLE_COEFFS,
    ENSEMBLE_SHAPE,
    ENSEMBLE_STEPS,
    SESSION_CASES,
    SessionCase,
    ensemble_chunk,
)
from golden_folder import GOLDEN, write_session_folder

from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import Observation

ACTION_TOLERANCE = 1e-5
AS_WRITTEN = RuntimeConfig(backend='eager')


def observation(case: SessionCase, step: int) -> Observation:
    arrays = case.observation(step)
    return Observation(
        images={key: value for key, value in arrays.items() if 'images' in key},
        state=arrays['observation.state'],
    )


def play(policy: Policy, case: SessionCase) -> np.ndarray:
    actions = []
    for step in range(case.steps):
        if step == case.reset_before:
            policy.reset()
        actions.append(policy.step(observation(case, step)))
    return np.stack(actions)


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'act_sessions.npz') as arrays:
        return dict(arrays)


@pytest.mark.parametrize('name', SESSION_CASES)
def test_actions_equal_lerobots_over_chunks_and_a_reset(
    name: str, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    case = SESSION_CASES[name]
    with load_policy(write_session_folder(name, tmp_path / 'policy'), config=AS_WRITTEN) as policy:
        actions = play(policy, case)
    assert actions.shape == golden[f'{name}/actions'].shape
    assert np.abs(actions - golden[f'{name}/actions']).max() <= ACTION_TOLERANCE


@pytest.mark.parametrize('name', SESSION_CASES)
def test_predicted_chunk_equals_lerobots_in_policy_units(
    name: str, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    with load_policy(write_session_folder(name, tmp_path / 'policy'), config=AS_WRITTEN) as policy:
        chunk = policy.predict_chunk(observation(SESSION_CASES[name], 0))
    assert np.abs(chunk - golden[f'{name}/chunk']).max() <= ACTION_TOLERANCE


@pytest.mark.parametrize('coefficient', ENSEMBLE_COEFFS)
def test_ensembler_equals_lerobots_to_the_last_bit(coefficient: float) -> None:
    with np.load(GOLDEN / 'ensemble.npz') as arrays:
        expected = arrays[f'{coefficient}/actions']
        weights = arrays[f'{coefficient}/weights']
    ensembler = TemporalEnsembler(
        coefficient=coefficient, chunk_size=ENSEMBLE_SHAPE[0], weights=weights
    )
    actions = [
        ensembler.update(ensemble_chunk(coefficient, step)) for step in range(ENSEMBLE_STEPS)
    ]
    np.testing.assert_array_equal(np.stack(actions), expected)

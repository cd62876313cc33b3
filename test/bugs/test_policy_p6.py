"""P6: actions of an old episode after a reset; ensembling bypassed.

Sources: huggingface/lerobot#1116, #319; strands-labs/robots#731; hud-evals/hud-python#419.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory, tiny_config

from sparkrt_ros.runtime.checkpoint.config import ActConfig
from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError
from sparkrt_ros.runtime.policy import load_policy
from sparkrt_ros.runtime.types import Observation

CHUNK_SIZE = 100


def config(**changes: object) -> ActConfig:
    return tiny_config(chunk_size=CHUNK_SIZE, n_action_steps=CHUNK_SIZE, **changes)


@pytest.fixture
def folder(make_act_folder: ActFolderFactory) -> Path:
    return make_act_folder('long_chunks', config=config())


def observe(seed: int) -> Observation:
    rng = np.random.default_rng(seed)
    return Observation(
        images={name: rng.integers(0, 256, (64, 64, 3), np.uint8) for name in ('front', 'wrist')},
        state=rng.standard_normal(5).astype(np.float32),
    )


def test_the_first_action_after_a_reset_comes_from_the_new_observation(folder: Path) -> None:
    policy = load_policy(folder)
    for _ in range(10):
        policy.step(observe(0))
    policy.reset()
    action = policy.step(observe(1))
    np.testing.assert_array_equal(action, policy.predict_chunk(observe(1))[0])
    assert np.abs(action - policy.predict_chunk(observe(0))[10]).max() > 1e-3


def test_the_older_prediction_weighs_more() -> None:
    ensembler = TemporalEnsembler(coefficient=0.01, chunk_size=2)
    ensembler.update(np.zeros((2, 1), np.float32))
    action = ensembler.update(np.ones((2, 1), np.float32))
    assert round(float(action[0]), 4) == 0.4975


def test_an_ensemble_runs_longer_than_one_chunk() -> None:
    ensembler = TemporalEnsembler(coefficient=0.01, chunk_size=CHUNK_SIZE)
    for step in range(2 * CHUNK_SIZE + 1):
        chunk = np.arange(step, step + CHUNK_SIZE, dtype=np.float32)[:, None]
        assert ensembler.update(chunk)[0] == pytest.approx(step, rel=1e-5)


def test_ensembling_is_what_step_does_when_it_is_chosen(folder: Path) -> None:
    policy = load_policy(folder, config=RuntimeConfig(temporal_ensemble_coeff=0.01))
    first, second = policy.predict_chunk(observe(0)), policy.predict_chunk(observe(1))
    policy.step(observe(0))
    weights = np.exp(-0.01 * np.arange(2))
    expected = (first[1] * weights[0] + second[0] * weights[1]) / weights.sum()
    np.testing.assert_allclose(policy.step(observe(1)), expected, atol=1e-5)


def test_a_coefficient_with_many_action_steps_is_a_contradiction(folder: Path) -> None:
    both = RuntimeConfig(temporal_ensemble_coeff=0.01, n_action_steps=CHUNK_SIZE)
    with pytest.raises(ConfigError, match='100 together with temporal ensembling'):
        load_policy(folder, config=both)


def test_a_checkpoint_that_contradicts_itself_is_refused(
    make_act_folder: ActFolderFactory,
) -> None:
    folder = make_act_folder(
        'contradiction', config=config(), extra_config={'temporal_ensemble_coeff': 0.01}
    )
    with pytest.raises(CheckpointError, match='n_action_steps'):
        load_policy(folder)

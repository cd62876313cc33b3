"""A policy folder from loading to closing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from act_folder_factory import ActFolderFactory, tiny_config

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError, CheckpointError, ConfigError
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import Observation

CPU = RuntimeConfig(device='cpu')


def observe(seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    return Observation(
        images={name: rng.integers(0, 256, (64, 64, 3), np.uint8) for name in ('front', 'wrist')},
        state=rng.standard_normal(5).astype(np.float32),
    )


@pytest.fixture
def policy(act_folder: Path) -> Policy:
    return load_policy(act_folder, config=CPU)


def test_step_plays_the_chunk_it_predicted(policy: Policy) -> None:
    chunk = policy.predict_chunk(observe(0))
    assert chunk.shape == (8, 5)
    assert chunk.dtype == np.float32
    steps = [policy.step(observe(seed)) for seed in range(4)]
    np.testing.assert_array_equal(steps, chunk[:4])
    np.testing.assert_array_equal(policy.step(observe(9)), policy.predict_chunk(observe(9))[0])


def test_the_same_observation_gives_the_same_bits(policy: Policy, act_folder: Path) -> None:
    chunk = policy.predict_chunk(observe())
    np.testing.assert_array_equal(policy.predict_chunk(observe()), chunk)
    again = load_policy(str(act_folder), config=CPU)
    np.testing.assert_array_equal(again.predict_chunk(observe()), chunk)


def test_reset_begins_a_new_episode(policy: Policy) -> None:
    policy.step(observe(0))
    policy.reset()
    np.testing.assert_array_equal(policy.step(observe(1)), policy.predict_chunk(observe(1))[0])


def test_a_warm_policy_serves_and_compiles_nothing_more(policy: Policy) -> None:
    cold = policy.predict_chunk(observe())
    policy.warm_up()
    np.testing.assert_array_equal(policy.predict_chunk(observe()), cold)


def test_the_receipt_says_what_serves_and_can_be_written_down(
    policy: Policy, act_folder: Path
) -> None:
    receipt = policy.receipt
    assert json.loads(json.dumps(receipt)) == receipt
    served = {key: receipt[key] for key in ('policy', 'backend', 'precision', 'device', 'mode')}
    assert served == {
        'policy': 'act',
        'backend': 'fused',
        'precision': 'fp32',
        'device': 'cpu',
        'mode': 'queue',
    }
    assert receipt['folder'] == str(act_folder)
    assert len(receipt['digest']) == 64
    assert any('device' in warning for warning in receipt['warnings'])
    receipt['mode'] = 'changed'
    assert policy.receipt['mode'] == 'queue'


def test_capabilities_carry_the_choices_of_the_user(act_folder: Path) -> None:
    queue = load_policy(act_folder, config=RuntimeConfig(device='cpu', n_action_steps=7))
    assert queue.capabilities.n_action_steps == 7
    chunk = queue.predict_chunk(observe(0))
    np.testing.assert_array_equal([queue.step(observe(0)) for _ in range(7)], chunk[:7])
    assert not np.array_equal(queue.step(observe(1)), chunk[7])
    ensemble = load_policy(
        act_folder, config=RuntimeConfig(device='cpu', temporal_ensemble_coeff=0.5)
    )
    assert ensemble.capabilities.n_action_steps == 1
    assert ensemble.capabilities.temporal_ensemble_coeff == 0.5
    assert ensemble.receipt['mode'] == 'ensemble'


def test_a_closed_policy_refuses_everything_but_closing(policy: Policy) -> None:
    with policy:
        policy.step(observe())
    policy.close()
    for use in (policy.reset, policy.warm_up, lambda: policy.step(observe())):
        with pytest.raises(BackendError, match='closed'):
            use()
    assert policy.receipt['policy'] == 'act'


def test_threads_are_set_only_when_asked_for(act_folder: Path) -> None:
    before = torch.get_num_threads()
    load_policy(act_folder, config=CPU)
    assert torch.get_num_threads() == before
    try:
        load_policy(act_folder, config=RuntimeConfig(device='cpu', num_threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_device_that_is_not_there_is_refused_before_the_folder_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='device'):
        load_policy(tmp_path / 'nothing', config=RuntimeConfig(device='cuda:99'))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='nothing'):
        load_policy(tmp_path / 'nothing', config=CPU)


def test_renamed_observations_are_given_by_policy_key(make_act_folder: ActFolderFactory) -> None:
    """The preprocessor's rename step is for the keys of the training data, which differ."""
    plain = load_policy(make_act_folder('plain'), config=CPU)
    swapped_twice = {
        'observation.images.front': 'observation.images.wrist',
        'observation.images.wrist': 'observation.images.front',
    }
    folder = make_act_folder('renamed', config=tiny_config(), rename_map=swapped_twice)
    renamed = load_policy(folder, config=CPU)
    np.testing.assert_array_equal(renamed.predict_chunk(observe()), plain.predict_chunk(observe()))


def test_loading_does_not_import_the_compiler(act_folder: Path) -> None:
    """Some operators on the meta device would: seconds at every start."""
    code = (
        'import sys; from sparkrt_ros.runtime.policy import load_policy;'
        'from sparkrt_ros.runtime.config import RuntimeConfig;'
        f'load_policy({str(act_folder)!r}, config=RuntimeConfig(device="cpu")).warm_up();'
        'sys.exit(int("torch._dynamo" in sys.modules))'
    )
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0

"""The eager reference on a GPU: the CPU's numbers, in full fp32, whatever the switches say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import Observation

FP32_TOLERANCE = 5e-5
"""Other orders of summation differ by about 1e-6 here, TF32 by about 1e-3."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]


def observe(seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    return Observation(
        images={name: rng.integers(0, 256, (64, 64, 3), np.uint8) for name in ('front', 'wrist')},
        state=rng.standard_normal(5).astype(np.float32),
    )


@pytest.fixture
def policy(act_folder: Path) -> Policy:
    policy = load_policy(act_folder, config=RuntimeConfig(device='cuda'))
    policy.warm_up()
    return policy


def test_cuda_gives_the_cpus_chunks(policy: Policy, act_folder: Path) -> None:
    reference = load_policy(act_folder, config=RuntimeConfig(device='cpu'))
    for seed in range(5):
        difference = policy.predict_chunk(observe(seed)) - reference.predict_chunk(observe(seed))
        assert np.abs(difference).max() <= FP32_TOLERANCE


@pytest.mark.parametrize(
    'mode', [{}, {'temporal_ensemble_coeff': 0.01}], ids=['queue', 'ensemble']
)
def test_cuda_gives_the_cpus_steps(act_folder: Path, mode: dict[str, float]) -> None:
    policies = [
        load_policy(act_folder, config=RuntimeConfig(device=device, **mode))
        for device in ('cuda', 'cpu')
    ]
    for seed in range(10):
        ours, reference = (policy.step(observe(seed)) for policy in policies)
        assert np.abs(ours - reference).max() <= FP32_TOLERANCE


def test_tf32_allowed_elsewhere_does_not_reach_the_reference(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = policy.predict_chunk(observe())
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', True)
    monkeypatch.setattr(torch.backends.cuda.matmul, 'allow_tf32', True)
    np.testing.assert_array_equal(policy.predict_chunk(observe()), chunk)


def test_observations_in_quick_succession_are_not_mixed_up(policy: Policy) -> None:
    """Pixels travel through one pinned buffer per camera, which must not be refilled too early."""
    expected = [policy.predict_chunk(observe(seed)) for seed in range(3)]
    for _ in range(20):
        for seed in range(3):
            np.testing.assert_array_equal(policy.predict_chunk(observe(seed)), expected[seed])


def test_the_receipt_names_the_gpu(policy: Policy) -> None:
    assert policy.receipt['device'] == 'cuda:0'
    assert policy.receipt['device_name'] == torch.cuda.get_device_name(0)

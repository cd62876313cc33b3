"""ACT from camera pixels to actions as one recording: the same numbers, kept apart and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.parity import compare, probe_observations
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.types import Observation

SHIPPED = Path(__file__).resolve().parents[2] / 'checkpoints' / 'embedded_pick_place'
TOLERANCE = 1e-5

pytestmark = pytest.mark.gpu


def load(folder: Path, **options: object) -> Policy:
    policy = load_policy(folder, config=RuntimeConfig(**{'device': 'cuda', **options}))
    policy.warm_up()
    return policy


def observations(policy: Policy, *, count: int, seed: int = 7) -> tuple[Observation, ...]:
    return probe_observations(policy.capabilities, count=count, seed=seed)


def chunk_region(policy: Policy) -> dict[str, object]:
    return policy.receipt['regions']['chunk']


@pytest.fixture
def captured(act_folder: Path) -> Policy:
    return load(act_folder, backend='cudagraph')


@pytest.mark.parametrize('backend', ['cudagraph', 'auto'])
def test_a_prediction_is_one_recording(act_folder: Path, backend: str) -> None:
    policy = load(act_folder, backend=backend)
    before = chunk_region(policy)
    assert policy.receipt['backend'] == 'cudagraph'
    assert policy.receipt['refused'] == []
    assert before['form'] == 'cudagraph'
    assert before['reason'] == ''
    assert before['recordings'] == 1
    for observation in observations(policy, count=5):
        policy.predict_chunk(observation)
    after = chunk_region(policy)
    assert after['recordings'] == 1
    assert after['replays'] == before['replays'] + 5
    assert after['eager_calls'] == 0


def test_chunks_are_those_of_the_reference(captured: Policy, act_folder: Path) -> None:
    reference = load(act_folder, backend='eager')
    for observation in observations(captured, count=10):
        wanted = reference.predict_chunk(observation)
        difference = np.abs(captured.predict_chunk(observation) - wanted).max()
        assert difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))


@pytest.fixture(scope='module')
def shipped_reference() -> Policy:
    return load(SHIPPED, backend='eager')


@pytest.mark.parametrize('precision', [name for name in TIERS if name != 'int8'])
def test_the_shipped_policy_serves_captured_in_every_precision(
    shipped_reference: Policy, precision: str
) -> None:
    policy = load(SHIPPED, backend='cudagraph', precision=precision)
    receipt = policy.receipt
    assert (receipt['backend'], receipt['precision']) == ('cudagraph', precision)
    assert receipt['refused'] == []
    tier = TIERS[precision]
    assert receipt['gate']['cosine'] >= tier.min_cosine
    # Other observations than the gate's own; in policy units.
    seen = observations(policy, count=5, seed=99)
    chunks = [policy.predict_chunk(observation) for observation in seen]
    wanted = [shipped_reference.predict_chunk(observation) for observation in seen]
    for found, chunk in zip(chunks, wanted, strict=True):
        assert compare(found, chunk).cosine >= tier.min_cosine
    if precision == 'fp32':
        scale = max(1.0, float(np.abs(wanted).max()))
        assert compare(chunks, wanted).max_abs <= TOLERANCE * scale


def test_the_same_observation_gives_the_same_bytes(captured: Policy) -> None:
    first, second = observations(captured, count=2)
    wanted = captured.predict_chunk(first).tobytes()
    other = captured.predict_chunk(second).tobytes()
    assert wanted != other
    for _ in range(100):
        assert captured.predict_chunk(first).tobytes() == wanted
        assert captured.predict_chunk(second).tobytes() == other


def test_what_a_user_holds_is_never_overwritten(captured: Policy) -> None:
    first, second, third = observations(captured, count=3)
    held = captured.predict_chunk(first)
    kept = held.copy()
    captured.predict_chunk(second)
    captured.predict_chunk(third)
    np.testing.assert_array_equal(held, kept)
    held.fill(0.0)
    np.testing.assert_array_equal(captured.predict_chunk(first), kept)
    captured.reset()
    step = captured.step(first)
    step_kept = step.copy()
    captured.step(second)
    captured.step(third)
    np.testing.assert_array_equal(step, step_kept)


@pytest.mark.parametrize(
    'mode', [{}, {'temporal_ensemble_coeff': 0.01}], ids=['queue', 'ensemble']
)
def test_steps_are_those_of_the_reference(act_folder: Path, mode: dict[str, float]) -> None:
    policy, reference = (
        load(act_folder, backend=backend, **mode) for backend in ('cudagraph', 'eager')
    )
    for observation in observations(policy, count=12):
        wanted = reference.step(observation)
        difference = np.abs(policy.step(observation) - wanted).max()
        assert difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))
    assert chunk_region(policy)['eager_calls'] == 0


def test_two_policies_at_once_do_not_disturb_each_other(act_folder: Path) -> None:
    policies = [load(act_folder, backend='cudagraph') for _ in range(2)]
    seen = observations(policies[0], count=4)
    wanted = [policies[0].predict_chunk(observation) for observation in seen]
    for number, observation in enumerate(seen):
        for policy in policies:
            np.testing.assert_array_equal(policy.predict_chunk(observation), wanted[number])


def test_a_closed_policy_gives_its_memory_back(act_folder: Path) -> None:
    load(act_folder, backend='cudagraph').close()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        policy = load(act_folder, backend='cudagraph')
        policy.close()
        with pytest.raises(BackendError, match='closed'):
            policy.reset()
    del policy
    # Less than one workspace of cuBLAS, or than the weights.
    assert torch.cuda.memory_allocated() <= before + 100_000

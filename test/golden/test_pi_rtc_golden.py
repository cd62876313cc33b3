"""Real-time chunking against LeRobot's own processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from golden_folder import GOLDEN
from pi_cases import RTC_WEIGHTS
from seeded_weights import seeded_vector

from sparkrt_ros.runtime.policies.rtc import (
    PreviousChunk,
    guidance_weights,
    guided,
    prefix_weights,
)

MAX_WEIGHT = 10.0


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'pi_rtc.npz') as arrays:
        return dict(arrays)


@pytest.mark.parametrize(('schedule', 'delay', 'horizon', 'rows'), RTC_WEIGHTS)
def test_weights_are_lerobots(
    schedule: str, delay: int, horizon: int, rows: int, golden: dict[str, np.ndarray]
) -> None:
    expected = golden[f'weights/{schedule}/{delay}/{horizon}/{rows}']
    found = prefix_weights(
        torch.tensor([delay]), torch.tensor([horizon]), rows=rows, schedule=schedule.lower()
    )
    assert np.abs(found[0].numpy() - expected).max() <= 1e-6


def test_every_sample_of_a_batch_has_weights_of_its_own(golden: dict[str, np.ndarray]) -> None:
    found = prefix_weights(torch.tensor([0, 3, 5]), torch.tensor([4, 3, 2]), rows=8)
    for row, (delay, horizon) in zip(found, ((0, 4), (3, 3), (5, 2)), strict=True):
        expected = golden[f'weights/LINEAR/{delay}/{horizon}/8']
        assert np.abs(row.numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize('step', range(10))
def test_guided_velocity_is_lerobots(step: int, golden: dict[str, np.ndarray]) -> None:
    actions, velocity, previous = (
        torch.from_numpy(seeded_vector(f'rtc/{name}', (2, 8, 5)))
        for name in ('actions', 'velocity', 'previous')
    )
    times = [1.0 + number * -0.1 for number in range(10)]
    weights = prefix_weights(torch.tensor([2, 2]), torch.tensor([6, 6]), rows=8)
    bent = guided(
        lambda x, number: velocity,
        PreviousChunk(actions=previous, weights=weights),
        times=times,
        weights=guidance_weights(times, max_weight=MAX_WEIGHT),
    )
    assert np.abs(bent(actions, step).numpy() - golden[f'guided/{step}']).max() <= 1e-5


def test_no_previous_chunk_means_the_plain_velocity() -> None:
    velocity = torch.from_numpy(seeded_vector('rtc/velocity', (2, 8, 5)))
    nothing = PreviousChunk(actions=torch.ones(2, 8, 5), weights=torch.zeros(2, 8))
    bent = guided(lambda x, number: velocity, nothing, times=[1.0], weights=[MAX_WEIGHT])
    assert torch.equal(bent(torch.zeros(2, 8, 5), 0), velocity)


def test_guidance_is_limited_where_it_would_have_no_end() -> None:
    weights = guidance_weights([1.0, 0.5, 0.1], max_weight=MAX_WEIGHT)
    assert weights[0] == MAX_WEIGHT
    assert weights[1] == pytest.approx(2.0)
    assert all(0.0 < weight <= MAX_WEIGHT for weight in weights)

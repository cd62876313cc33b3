"""Temporal ensembling against its definition: a weighted mean over all chunks, offline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler, ensemble_weights
from sparkrt_ros.runtime.errors import ActionError, ConfigError


def offline(chunks: np.ndarray, step: int, coefficient: float) -> np.ndarray:
    """The mean of what chunks 0..step say about ``step``; chunks (n, T, A), made one a step."""
    size = chunks.shape[1]
    oldest = max(0, step - size + 1)
    said = np.stack([chunks[made, step - made] for made in range(oldest, step + 1)])
    weights = np.exp(-coefficient * np.arange(len(said)))
    return (said * weights[:, None]).sum(0) / weights.sum()


@settings(max_examples=40, deadline=None)
@given(
    coefficient=st.floats(-0.5, 0.5),
    chunk_size=st.integers(1, 6),
    steps=st.integers(1, 15),
    seed=st.integers(0, 2**31),
)
def test_equals_the_offline_mean(
    coefficient: float, chunk_size: int, steps: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    chunks = rng.standard_normal((steps, chunk_size, 2)).astype(np.float32)
    ensembler = TemporalEnsembler(coefficient=coefficient, chunk_size=chunk_size)
    for step, chunk in enumerate(chunks):
        action = ensembler.update(chunk)
        np.testing.assert_allclose(action, offline(chunks, step, coefficient), atol=1e-5)


def test_a_positive_coefficient_favours_the_older_prediction() -> None:
    zeros, ones = np.zeros((2, 1), np.float32), np.ones((2, 1), np.float32)
    for coefficient, favoured in [(0.5, 'old'), (-0.5, 'new')]:
        ensembler = TemporalEnsembler(coefficient=coefficient, chunk_size=2)
        ensembler.update(zeros)
        assert (ensembler.update(ones)[0] < 0.5) == (favoured == 'old')


def test_reset_forgets_all_chunks() -> None:
    ensembler = TemporalEnsembler(coefficient=0.1, chunk_size=3)
    ensembler.update(np.full((3, 2), 100, np.float32))
    ensembler.reset()
    np.testing.assert_array_equal(ensembler.update(np.ones((3, 2), np.float32)), [1, 1])


def test_actions_and_chunks_are_never_shared() -> None:
    ensembler = TemporalEnsembler(coefficient=0.0, chunk_size=3)
    chunk = np.ones((3, 2), np.float32)
    first = ensembler.update(chunk)
    first[:] = 50
    chunk[:] = 50
    np.testing.assert_array_equal(ensembler.update(np.ones((3, 2), np.float32)), [1, 1])


@pytest.mark.parametrize('shape', [(2, 2), (3,), (1, 3, 2), (3, 1)])
def test_a_chunk_that_does_not_fit_is_refused_and_changes_nothing(shape: tuple[int, ...]) -> None:
    ensembler = TemporalEnsembler(coefficient=0.0, chunk_size=3)
    ensembler.update(np.zeros((3, 2), np.float32))
    with pytest.raises(ActionError, match='chunk of shape'):
        ensembler.update(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(ensembler.update(np.ones((3, 2), np.float32)), [0.5, 0.5])


@pytest.mark.parametrize('coefficient', [float('nan'), float('inf'), -10.0])
def test_a_coefficient_whose_weights_leave_fp32_is_refused(coefficient: float) -> None:
    with pytest.raises(ConfigError, match='temporal_ensemble_coeff'):
        TemporalEnsembler(coefficient=coefficient, chunk_size=100)


def test_a_steep_coefficient_keeps_the_oldest_and_stays_finite() -> None:
    ensembler = TemporalEnsembler(coefficient=50.0, chunk_size=10)
    actions = [ensembler.update(np.full((10, 1), value, np.float32)) for value in (3.0, 4.0, 5.0)]
    np.testing.assert_array_equal(np.concatenate(actions), [3, 3, 3])


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(ConfigError, match='shape'):
        TemporalEnsembler(coefficient=0.1, chunk_size=3, weights=ensemble_weights(0.1, 4))

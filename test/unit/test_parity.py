"""The gate: what it lets through, and the candidates it must not let through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.parity import (
    compare,
    gate,
    judge,
    negative_controls,
    probe_observations,
)
from sparkrt_ros.runtime.types import Capabilities, Observation

ROWS, SIZE = 10, 3
LOOSE = {'min_cosine': -1.0, 'max_abs': 1e9}


def motion(count: int, *, step: float, seed: int = 0) -> np.ndarray:
    """(count, ROWS, SIZE): a smooth random walk of chunks; ``step`` from one to the next."""
    random = np.random.default_rng(seed)
    speed = np.cumsum(random.standard_normal((count, 1, SIZE)), axis=0)
    speed /= np.abs(speed).max()
    ramp = np.linspace(0.5, 1.5, ROWS).reshape(1, ROWS, 1)
    return (1.0 + np.cumsum(speed * step, axis=0)) * ramp


def noise(like: np.ndarray, size: float) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(like.shape) * size


def follows(found: np.ndarray, wanted: np.ndarray) -> tuple[bool, bool]:
    verdict = judge(list(found), list(wanted), **LOOSE)
    return verdict.follows_input, verdict.clear


def test_compare_gives_the_three_figures() -> None:
    wanted = np.zeros((10, 10))
    wanted[0, 0] = 3.0
    found = wanted.copy()
    found[0, 0] = 4.0
    agreement = compare(found, wanted)
    assert (agreement.cosine, agreement.max_abs) == (1.0, 1.0)
    assert agreement.p99_abs == pytest.approx(0.01)


def test_compare_refuses_other_shapes() -> None:
    with pytest.raises(ConfigError, match=r'\(2, 3\).*\(3, 2\)'):
        compare(np.zeros((2, 3)), np.zeros((3, 2)))


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_a_chunk_that_is_not_finite_fails(bad: float) -> None:
    wanted = motion(4, step=0.1)
    found = wanted.copy()
    found[2, 1, 0] = bad
    verdict = judge(list(found), list(wanted), min_cosine=0.9, max_abs=1.0)
    assert not verdict.passed
    assert verdict.worst.cosine == -1.0
    assert verdict.worst.max_abs == np.inf


@pytest.mark.parametrize(
    ('limits', 'reason'),
    [
        ({'min_cosine': 1.0, 'max_abs': 1.0}, 'cosine'),
        ({'min_cosine': 0.9, 'max_abs': 1e-3}, 'largest difference'),
        ({'min_cosine': 0.9, 'max_abs': 1.0, 'p99_abs': 1e-4}, '1 of 100'),
    ],
)
def test_each_limit_is_judged_on_the_worst_chunk(limits: dict[str, float], reason: str) -> None:
    wanted = motion(5, step=0.1)
    found = wanted.copy()
    found[3, 0, 0] += 0.02
    verdict = judge(list(found), list(wanted), **limits)
    assert not verdict.passed
    assert reason in verdict.reason
    assert verdict.each[3] == verdict.worst


def test_an_equal_candidate_passes_every_limit() -> None:
    wanted = motion(30, step=1e-6)
    verdict = judge(list(wanted), list(wanted), min_cosine=1.0 - 1e-12, max_abs=0.0, p99_abs=0.0)
    assert verdict.passed
    assert (verdict.follows_input, verdict.clear) == (True, True)


def test_one_observation_cannot_be_judged() -> None:
    with pytest.raises(ConfigError, match='at least 2'):
        judge([np.zeros((2, 2))], [np.zeros((2, 2))], **LOOSE)


@pytest.mark.parametrize('count', [2, 3, 4, 7, 60, 600])
@pytest.mark.parametrize('control', ['frozen input', 'input one observation late'])
def test_the_negative_controls_fail_however_wide_the_limits(count: int, control: str) -> None:
    wanted = motion(count, step=1e-4)
    found = negative_controls(list(wanted))[control]
    verdict = judge(found, list(wanted), **LOOSE)
    assert not verdict.passed
    assert 'does not follow' in verdict.reason


@pytest.mark.parametrize('lag', [1, 2, 5, 8])
def test_a_candidate_that_lags_fails_in_spite_of_noise(lag: int) -> None:
    wanted = motion(100, step=0.01)
    late = np.concatenate([wanted[:1].repeat(lag, axis=0), wanted[:-lag]])
    assert follows(late + noise(late, 1e-3), wanted) == (False, True)


def test_a_frozen_candidate_fails_in_spite_of_noise() -> None:
    wanted = motion(100, step=0.01)
    frozen = np.broadcast_to(wanted[50], wanted.shape)
    assert follows(frozen + noise(wanted, 1e-3), wanted) == (False, True)


@pytest.mark.parametrize('count', [3, 5, 40])
def test_a_single_chunk_of_old_input_fails(count: int) -> None:
    wanted = motion(count, step=0.05)
    found = wanted + noise(wanted, 1e-5)
    found[count // 2] = found[count // 2 - 1]
    assert follows(found, wanted) == (False, True)


def test_chunks_in_another_order_fail() -> None:
    wanted = motion(12, step=0.5)
    assert follows(wanted[::-1], wanted) == (False, True)


@pytest.mark.parametrize('error', [1e-6, 1e-3, 1e-2])
@pytest.mark.parametrize('step', [1e-2, 1e-3, 1e-5])
def test_a_faithful_candidate_never_fails_for_its_noise(error: float, step: float) -> None:
    wanted = motion(200, step=step)
    found = wanted + noise(wanted, error)
    assert judge(list(found), list(wanted), **LOOSE).follows_input


def test_constant_and_proportional_errors_are_no_lag() -> None:
    wanted = motion(200, step=1e-3)
    assert follows(wanted * 1.002 + 0.05, wanted) == (True, True)


def test_a_reference_that_stands_still_tells_nothing() -> None:
    wanted = np.ones((20, ROWS, SIZE))
    assert follows(wanted, wanted) == (True, False)
    assert follows(wanted + noise(wanted, 1e-3), wanted) == (True, False)


def test_motion_below_the_noise_tells_nothing() -> None:
    wanted = motion(50, step=1e-7)
    assert follows(1.0 + noise(wanted, 1e-2), wanted) == (True, False)


class Follower:
    """Predicts what its state says; ``see`` chooses which observation it really looks at."""

    def __init__(self, see: Callable[[int], int]) -> None:
        self._see = see
        self._seen: list[Observation] = []

    def __call__(self, observation: Observation) -> np.ndarray:
        self._seen.append(observation)
        used = self._seen[self._see(len(self._seen) - 1)]
        assert used.state is not None
        return np.linspace(0, 1, ROWS, dtype=np.float32)[:, None] * used.state


@pytest.mark.parametrize('count', [2, 3, 8])
def test_the_gate_runs_both_and_lets_only_the_follower_pass(count: int) -> None:
    needs = Capabilities(
        model_type='test',
        image_shapes={},
        state_size=SIZE,
        environment_state_size=0,
        action_size=SIZE,
        chunk_size=ROWS,
        n_action_steps=ROWS,
    )
    observations = probe_observations(needs, count=count)
    reference = Follower(lambda i: i)
    limits = {'min_cosine': 1.0 - 1e-9, 'max_abs': 0.0}
    assert gate(Follower(lambda i: i), reference, observations, **limits).passed
    for see in (lambda i: 0, lambda i: max(0, i - 1)):
        verdict = gate(Follower(see), Follower(lambda i: i), observations, **LOOSE)
        assert not verdict.passed
        assert not verdict.follows_input

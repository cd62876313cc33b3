"""Noise is handed to every arm: the same for all, one generator for each chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_factory import write_mcap
from parity_bags import JOINTS, PI_JOINTS, drive, write_pi_robot
from parity_fakes import ROWS, ToyLoader, ToyPolicy
from pi_folder import write_pi_folder
from test_parity_run import Runs

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.errors import ConfigError


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_every_arm_gets_the_same_noise_for_each_chunk(runs: Runs) -> None:
    shape = (1, ROWS, len(JOINTS))
    results, noises = [], []
    for seed in (1, 1, 2):
        policies = [ToyPolicy(noise_shape=shape) for _ in range(2)]
        results.append(run_parity(runs.options(seed=seed), load=ToyLoader(*policies)))
        assert all(
            np.array_equal(a, b)
            for a, b in zip(policies[0].noises, policies[1].noises, strict=True)
        )
        noises.append(np.stack(policies[0].noises))
    assert results[0].arms[0].actions.tobytes() == results[1].arms[0].actions.tobytes()
    assert not np.array_equal(noises[0], noises[2])
    assert noises[0].shape[1:] == shape
    assert noises[0].std() == pytest.approx(1.0, abs=0.1)
    assert len({noise.tobytes() for noise in noises[0]}) == len(noises[0])


def test_noise_depends_on_the_chunk_alone(runs: Runs) -> None:
    shape = (1, ROWS, len(JOINTS))
    everything, few = ToyPolicy(noise_shape=shape), ToyPolicy(noise_shape=shape)
    run_parity(runs.options(), load=ToyLoader(everything, ToyPolicy(noise_shape=shape)))
    run_parity(
        runs.options(replay=ReplayOptions(max_chunks=2)),
        load=ToyLoader(few, ToyPolicy(noise_shape=shape)),
    )
    assert len(few.noises) == 2
    for a, b in zip(few.noises, everything.noises, strict=False):
        assert np.array_equal(a, b)


def test_a_policy_that_draws_no_noise_is_given_none(runs: Runs) -> None:
    policy = ToyPolicy()
    run_parity(runs.options(), load=ToyLoader(policy, ToyPolicy()))
    assert policy.noises == [None] * len(policy.seen)


def test_a_policy_that_starts_from_noise_can_be_repeated(tmp_path: Path) -> None:
    """Pi0.5, tiny: its forms agree because they start alike, and the seed decides how."""
    robot = write_pi_robot(tmp_path)
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=2.0, names=PI_JOINTS))
    folder = write_pi_folder('pi05', tmp_path / 'policy')

    def run(seed: int, **parameters: Any) -> list[np.ndarray]:
        result = run_parity(
            ParityOptions(
                bag=tmp_path / 'bag.mcap',
                robot=str(robot),
                checkpoint=folder,
                candidates=(ArmSpec(backend='eager'),),
                parameters={'prompt': 'pick up the cube', **parameters},
                replay=ReplayOptions(max_chunks=3),
                seed=seed,
            )
        )
        (comparison,) = result.comparisons
        assert comparison.spaces[0].overall.max_abs == 0.0
        return [arm.actions for arm in result.arms]

    first, again, other = run(1), run(1), run(2)
    assert first[0].tobytes() == first[1].tobytes() == again[0].tobytes()
    assert np.abs(first[0] - other[0]).max() > 1e-3
    with pytest.raises(ConfigError, match='an empty prompt'):
        run(1, prompt='')


def test_in_mode_rtc_every_arm_goes_on_from_its_own_chunks(tmp_path: Path) -> None:
    robot = write_pi_robot(tmp_path)
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=3.0, names=PI_JOINTS))
    folder = write_pi_folder('pi05', tmp_path / 'policy', chunk_size=12, n_action_steps=6)

    def options(mode: str, **changes: Any) -> ParityOptions:
        return ParityOptions(
            bag=tmp_path / 'bag.mcap',
            robot=str(robot),
            checkpoint=folder,
            candidates=(ArmSpec(backend='eager'), ArmSpec(backend='fused', precision='bf16')),
            parameters={'prompt': 'lift', 'num_steps': 4, 'chunking.mode': mode},
            replay=ReplayOptions(latency_s=0.15, max_chunks=5),
            **changes,
        )

    def actions(mode: str) -> list[np.ndarray]:
        result = run_parity(options(mode))
        assert result.comparisons[0].spaces[0].overall.max_abs == 0.0
        assert 0.0 < result.comparisons[1].spaces[0].overall.max_abs < 0.3
        return [arm.actions for arm in result.arms]

    plain, continued, again = actions('queue'), actions('rtc'), actions('rtc')
    assert continued[0].tobytes() == again[0].tobytes()
    assert np.array_equal(plain[0][0], continued[0][0]), 'the first has nothing to go on from'
    assert np.abs(plain[0][1:] - continued[0][1:]).max() > 0.05
    for arm in (0, 2):
        # Six rows on, the chunk before says where the next begins.
        leaps = [
            np.abs(chunks[arm][2:, 0] - chunks[arm][1:-1, 6]).mean()
            for chunks in (continued, plain)
        ]
        assert leaps[0] < 0.5 * leaps[1]
    with pytest.raises(ConfigError, match="'rtc' with files of observations"):
        run_parity(options('rtc', export=tmp_path / 'observations.npz'))

"""Whole runs: what passes, what must not, and that a run can be repeated to the last byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory
from bag_factory import START_NS, write_folder, write_mcap
from parity_bags import JOINTS, drive, write_robot
from parity_fakes import ToyLoader, ToyPolicy, loaded_toy, make_replay
from rosbags.rosbag2 import StoragePlugin

from sparkrt_ros.nodes.policy_worker import chunk_actions
from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.judge import ThresholdTable
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.receipt import receipt
from sparkrt_ros.replay.result import Comparison, ParityResult
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    ContractError,
    ObservationError,
)
from sparkrt_ros.runtime.policy import load_policy

FUSED = (ArmSpec(backend='fused'),)


class Runs:
    """Runs on one bag of the little robot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.robot = write_robot(folder)
        self.bag = folder / 'bag.mcap'
        write_mcap(self.bag, drive(seconds=4.0))

    def options(self, **changes: Any) -> ParityOptions:
        values: dict[str, Any] = {
            'bag': self.bag,
            'robot': str(self.robot),
            'checkpoint': Path('/toy'),
            'candidates': FUSED,
        }
        return ParityOptions(**{**values, **changes})

    def toys(self, *candidates: ToyPolicy, **changes: Any) -> ParityResult:
        changes.setdefault('candidates', FUSED * len(candidates))
        return run_parity(self.options(**changes), load=ToyLoader(ToyPolicy(), *candidates))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def repeatable(result: ParityResult) -> dict[str, Any]:
    content = receipt(result)
    for name in ('measured', 'environment'):
        assert content['provenance'].pop(name)
    return content


# A real policy


@pytest.fixture(scope='module')
def act(tmp_path_factory: pytest.TempPathFactory, act_weights_cache: Path) -> Path:
    return ActFolderFactory(tmp_path_factory.mktemp('act'), act_weights_cache)('policy')


def test_the_served_form_of_a_real_policy_passes(runs: Runs, act: Path) -> None:
    options = runs.options(
        checkpoint=act, candidates=(ArmSpec(), ArmSpec(backend='eager')), seed=3
    )
    result = run_parity(options)
    assert [c.band for c in result.comparisons] == ['pass', 'pass']
    served, same = result.comparisons
    assert result.arms[1].label == 'auto, fp32 (fused, fp32)'
    assert 0 < served.spaces[0].overall.max_abs < 1e-4
    assert same.spaces[0].overall.max_abs == same.spaces[1].overall.max_abs == 0.0
    assert len(result.records) == 10
    assert result.arms[0].actions.shape == (10, 8, 5)
    assert result.provenance['self_check'] == {
        'fp32': {'frozen input': 'fail', 'input one observation late': 'fail'}
    }


def test_same_bag_same_seed_same_bytes(runs: Runs, act: Path) -> None:
    options = runs.options(checkpoint=act, replay=ReplayOptions(max_chunks=4))
    first, second = run_parity(options), run_parity(options)
    assert json.dumps(repeatable(first)) == json.dumps(repeatable(second))
    for a, b in zip(first.arms, second.arms, strict=True):
        assert a.actions.tobytes() == b.actions.tobytes()
        assert a.normalized is not None
        assert b.normalized is not None
        assert a.normalized.tobytes() == b.normalized.tobytes()


def test_copies_in_another_storage_give_bit_identical_actions(runs: Runs, act: Path) -> None:
    messages = drive(seconds=4.0)
    write_folder(runs.folder / 'db3', messages, storage=StoragePlugin.SQLITE3)
    write_folder(runs.folder / 'mcap', messages, storage=StoragePlugin.MCAP)
    digests = []
    for name in ('db3', 'mcap', 'bag.mcap'):
        result = run_parity(
            runs.options(
                bag=runs.folder / name, checkpoint=act, replay=ReplayOptions(max_chunks=3)
            )
        )
        digests.append({k: v['actions_sha256'] for k, v in result.provenance['arms'].items()})
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0].values())) == 2


def test_the_reference_computes_what_the_node_publishes(runs: Runs, act: Path) -> None:
    """Arms use predict_both; the node uses predict_chunk. Both give the same actions."""
    result = run_parity(runs.options(checkpoint=act, replay=ReplayOptions(max_chunks=3)))
    with open_bag(runs.bag) as bag:
        observed = list(make_replay(bag, runs.robot, max_chunks=3))
    contract = loaded_toy(runs.robot).contract
    for arm in result.arms:
        config = RuntimeConfig(
            backend=arm.receipt['backend'], num_threads=arm.receipt['num_threads']
        )
        with load_policy(act, config=config) as policy:
            for o, actions, normalized in zip(observed, arm.actions, arm.normalized, strict=True):
                published = chunk_actions(policy.predict_chunk(o.observation), contract)
                assert np.array_equal(published.astype(np.float64), actions)
                infer = policy._open().infer_normalized
                assert np.array_equal(infer(o.observation), normalized)


def test_a_missing_policy_and_a_missing_robot_are_told(runs: Runs) -> None:
    with pytest.raises(CheckpointError):
        run_parity(runs.options(checkpoint=runs.folder / 'nothing'))
    with pytest.raises(ContractError, match='no shipped robot'):
        run_parity(runs.options(robot='nobody'))


# Candidates that must not pass


def only(result: ParityResult) -> Comparison:
    (comparison,) = result.comparisons
    return comparison


def test_an_equal_candidate_passes(runs: Runs) -> None:
    comparison = only(runs.toys(ToyPolicy()))
    assert (comparison.band, comparison.reasons, comparison.follows_input) == ('pass', (), True)


@pytest.mark.parametrize(
    ('see', 'what'),
    [
        (lambda seen: seen[0], 'frozen'),
        (lambda seen: seen[max(0, len(seen) - 2)], 'one late'),
        (lambda seen: seen[max(0, len(seen) - 4)], 'three late'),
        (lambda seen: seen[-2 if len(seen) == 6 else -1], 'one old'),
    ],
    ids=['frozen', 'one late', 'three late', 'one old'],
)
def test_a_candidate_that_replays_old_input_fails_at_any_threshold(
    runs: Runs, see: Callable[..., Any], what: str
) -> None:
    wide = ThresholdTable.make(changes={'cosine': -1.0, 'max_abs': 1e9, 'p99_abs': 1e9})
    comparison = only(runs.toys(ToyPolicy(see=see), thresholds=wide))
    assert comparison.band == 'fail', what
    assert not comparison.follows_input
    assert comparison.reasons == ('its output does not follow its input',)


@pytest.mark.parametrize(('error', 'band'), [(2e-5, 'pass'), (7e-5, 'warn'), (3e-4, 'fail')])
def test_the_size_of_an_error_decides_the_band(runs: Runs, error: float, band: str) -> None:
    def alter(index: int, chunk: np.ndarray) -> np.ndarray:
        if index == 4:
            chunk[3, 2] += np.float32(error)
        return chunk

    comparison = only(runs.toys(ToyPolicy(alter=alter)))
    assert comparison.band == band
    assert comparison.worst_chunk == 4
    model, robot = comparison.spaces
    assert model.chunks[4].max_abs == pytest.approx(error, rel=0.1)
    assert robot.chunks[4].max_abs == pytest.approx(error / 2, rel=0.1)
    assert [j.max_abs > 0 for j in model.joints] == [False, False, True, False, False]
    assert bool(comparison.reasons) == (band != 'pass')


def test_chunks_that_the_node_would_refuse_fail(runs: Runs) -> None:
    def alter(index: int, chunk: np.ndarray) -> np.ndarray:
        return np.full_like(chunk, np.nan) if index == 2 else chunk

    result = runs.toys(ToyPolicy(alter=alter))
    comparison = only(result)
    assert comparison.band == 'fail'
    assert any('finite actions' in reason for reason in comparison.reasons)
    assert np.isnan(result.arms[1].actions[2]).all()
    assert comparison.worst_chunk == 2
    assert comparison.spaces[0].chunks[2].max_abs == np.inf


def test_a_reference_that_fails_is_no_reference(runs: Runs) -> None:
    def alter(index: int, chunk: np.ndarray) -> np.ndarray:
        return np.full_like(chunk, np.nan)

    result = run_parity(runs.options(), load=ToyLoader(ToyPolicy(alter=alter), ToyPolicy()))
    assert result.band == 'fail'


def test_a_form_that_cannot_serve_fails_by_name(runs: Runs, act: Path) -> None:
    result = run_parity(
        runs.options(
            checkpoint=act,
            candidates=(ArmSpec(backend='cudagraph', device='cpu'),),
            replay=ReplayOptions(max_chunks=3),
        )
    )
    comparison = only(result)
    assert comparison.candidate == 'cudagraph, fp32, cpu (fused, fp32)'
    assert comparison.band == 'fail'
    assert 'does not serve here' in comparison.reasons[0]
    assert 'a CUDA device' in comparison.reasons[0]


def test_the_reference_has_to_serve_as_asked(runs: Runs, act: Path) -> None:
    with pytest.raises(BackendError, match='cudagraph'):
        run_parity(
            runs.options(checkpoint=act, reference=ArmSpec(backend='cudagraph', device='cpu'))
        )


def test_a_bag_without_motion_cannot_pass(runs: Runs) -> None:
    still = runs.folder / 'still.mcap'
    write_mcap(still, drive(seconds=4.0, moving=False))
    result = runs.toys(ToyPolicy(), ToyPolicy(see=lambda seen: seen[0]), bag=still)
    for comparison in result.comparisons:
        assert comparison.band == 'warn'
        assert any('frozen input' in reason for reason in comparison.reasons)
    assert result.provenance['self_check']['fp32']['frozen input'] != 'fail'


def test_a_single_chunk_cannot_pass(runs: Runs) -> None:
    result = runs.toys(ToyPolicy(), replay=ReplayOptions(max_chunks=1))
    assert only(result).band == 'warn'


def test_the_worst_band_is_the_result(runs: Runs) -> None:
    def alter(index: int, chunk: np.ndarray) -> np.ndarray:
        return chunk + np.float32(3e-5)

    result = runs.toys(ToyPolicy(), ToyPolicy(alter=alter), ToyPolicy())
    assert [c.band for c in result.comparisons] == ['pass', 'warn', 'pass']
    assert result.band == 'warn'
    labels = [arm.label for arm in result.arms]
    assert labels == ['eager, fp32', 'fused, fp32', 'fused, fp32 #2', 'fused, fp32 #3']


# What is shown and told


def test_the_frames_of_the_worst_chunk_are_kept(runs: Runs) -> None:
    def alter(index: int, chunk: np.ndarray) -> np.ndarray:
        return chunk + np.float32(1e-6 * index if index < 8 else 0.0)

    candidate = ToyPolicy(alter=alter)
    result = runs.toys(candidate)
    assert only(result).worst_chunk == 7
    frames = result.worst_frames['fused, fp32']
    assert set(frames) == {'observation.images.front', 'observation.images.wrist'}
    for key, image in frames.items():
        assert np.array_equal(image, candidate.seen[7].images[key])


def test_every_arm_sees_the_same_and_is_closed(runs: Runs) -> None:
    loader = ToyLoader(ToyPolicy(), ToyPolicy())
    result = run_parity(runs.options(), load=loader)
    first, second = loader.policies
    assert len(first.seen) == len(second.seen) == len(result.records)
    for a, b in zip(first.seen, second.seen, strict=True):
        assert a is b
    assert first.closed
    assert second.closed
    assert first.resets == second.resets == 1


def test_arms_are_loaded_as_the_node_loads(runs: Runs) -> None:
    loader = ToyLoader(ToyPolicy(), ToyPolicy())
    result = run_parity(
        runs.options(
            candidates=(ArmSpec(precision='bf16', threads=3),),
            parameters={'chunking.n_action_steps': 6},
        ),
        load=loader,
    )
    reference, candidate = loader.configs
    assert (reference.backend, reference.precision) == ('eager', 'fp32')
    assert (candidate.backend, candidate.precision, candidate.num_threads) == ('auto', 'bf16', 3)
    assert [arm.receipt['n_action_steps'] for arm in result.arms] == [6, 6]


def test_an_unknown_parameter_is_refused_before_anything_is_loaded(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r'chunking\.modus'):
        run_parity(runs.options(parameters={'chunking.modus': 'queue'}))
    with pytest.raises(ConfigError, match='expected integer'):
        run_parity(runs.options(parameters={'chunking.n_action_steps': 'many'}))


def test_a_bag_that_gives_nothing_is_an_error_with_the_reason(runs: Runs) -> None:
    path = runs.folder / 'zero.mcap'
    write_mcap(path, drive(zero_stamps=True))
    with pytest.raises(ObservationError, match='a header stamp of zero'):
        runs.toys(ToyPolicy(), bag=path)
    parameters = {'observation.on_zero_stamp': 'receive'}
    result = runs.toys(ToyPolicy(), bag=path, parameters=parameters)
    assert len(result.records) == 8
    assert any('dated by arrival' in text for text in result.warnings)


def test_progress_goes_up_to_the_end(runs: Runs) -> None:
    told: list[tuple[str, float | None]] = []
    run_parity(
        runs.options(),
        load=ToyLoader(ToyPolicy(), ToyPolicy()),
        progress=lambda text, share: told.append((text, share)),
    )
    shares = [share for _, share in told if share is not None]
    assert shares == sorted(shares)
    assert 0.8 < shares[-1] <= 1.0
    assert told[0][0] == 'loading eager, fp32'


def test_provenance_names_everything_that_decides(runs: Runs) -> None:
    result = runs.toys(ToyPolicy(), seed=5)
    facts = result.provenance
    assert len(facts['bag']['digest']) == 64
    assert facts['bag']['complete'] is True
    assert facts['bag']['duration_s'] == pytest.approx(4.0, abs=0.1)
    assert facts['checkpoint']['digest'] == 'd1'
    assert len(facts['contract']['digest']) == 64
    assert facts['options']['seed'] == 5
    assert facts['parameters']['chunking.lead_margin_s'] == 0.02
    assert facts['environment']['python']
    assert facts['measured']['times_real_time'] > 0
    assert result.units == ('rad',) * len(JOINTS)
    assert {s.name for s in result.streams} == {'front', 'wrist', 'arm'}
    assert result.records[0].reference_ns == START_NS
    json.dumps(receipt(result), allow_nan=False)

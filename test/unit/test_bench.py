"""``sparkrt bench`` on a tiny policy: what it reports, not how fast this machine is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sparkrt_ros.cli.main import main
from sparkrt_ros.runtime import bench
from sparkrt_ros.runtime.bench import BenchOptions, Spread, count_work, run_bench
from sparkrt_ros.runtime.bench_machine import best_seconds, machine_facts, measure_ceilings
from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.planning import REFERENCE, Form
from sparkrt_ros.runtime.policy import Policy
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.sim.random_policy import RANDOM_POLICIES, write_random_policy

CPU = torch.device('cpu')
FUSED = Form(backend='fused', precision='fp32')


def options(*forms: Form, repeat: int = 5, warmup: int = 1) -> BenchOptions:
    return BenchOptions(forms=forms, device='cpu', threads=1, repeat=repeat, warmup=warmup)


@pytest.fixture(autouse=True)
def _small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {'MATMUL_SIZE': {'cpu': 64}, 'COPY_BYTES': {'cpu': 4096}, 'BUDGET_S': 0.01}
    for name, value in sizes.items():
        monkeypatch.setattr(f'sparkrt_ros.runtime.bench_machine.{name}', value)


def test_quantiles_are_samples_in_milliseconds() -> None:
    spread = Spread.of([0.001 * value for value in range(100, 0, -1)])
    assert spread.count == 100
    found = (spread.min_ms, spread.p50_ms, spread.p95_ms, spread.p99_ms, spread.max_ms)
    np.testing.assert_allclose(found, (1, 51, 96, 100, 100))


def test_every_form_is_measured_as_often_as_asked(act_folder: Path) -> None:
    result = run_bench(act_folder, options(REFERENCE, FUSED, repeat=7))
    arms = result['arms']
    assert [arm['arm'] for arm in arms] == ['eager, fp32', 'fused, fp32']
    assert [arm['served'] for arm in arms] == ['eager, fp32', 'fused, fp32']
    for arm in arms:
        assert len(arm['samples_ms']) == arm['whole']['count'] == arm['model']['count'] == 7
        assert 0 < arm['model']['p50_ms'] < arm['whole']['max_ms']
        assert arm['load_s'] > 0
        assert arm['warm_up_s'] > 0
        assert arm['resident_mb'] > 1
        assert arm['num_threads'] == 1
    assert arms[0]['gate'] is None
    assert arms[1]['gate']['cosine'] > 0.999999


def test_rates_follow_from_work_time_and_ceilings(act_folder: Path) -> None:
    result = run_bench(act_folder, options(FUSED))
    (arm,), work = result['arms'], result['work']
    seconds = arm['model']['p50_ms'] / 1e3
    assert arm['tflop_per_s'] == pytest.approx(work['flop'] / seconds / 1e12)
    assert arm['weights_gb_per_s'] == pytest.approx(4 * work['parameters'] / seconds / 1e9)
    ceilings = result['ceilings']['fp32']
    assert arm['flop_fraction'] == pytest.approx(
        arm['tflop_per_s'] / ceilings['matmul_tflop_per_s']
    )
    assert arm['bandwidth_fraction'] == pytest.approx(
        arm['weights_gb_per_s'] / ceilings['copy_gb_per_s']
    )


def test_arms_take_turns_on_different_observations(
    act_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    predict = Policy.predict_chunk

    def spy(policy: Policy, observation, **kwargs):
        seen.append((policy.receipt['backend'], id(observation)))
        return predict(policy, observation, **kwargs)

    monkeypatch.setattr(bench.Policy, 'predict_chunk', spy)
    monkeypatch.setattr(bench, 'count_work', lambda _: bench.Work(flop=1, parameters=1))
    run_bench(act_folder, options(REFERENCE, FUSED, repeat=8, warmup=0))
    rounds = [seen[index : index + 2] for index in range(0, len(seen), 2)]
    assert len(rounds) == 8
    assert all({name for name, _ in pair} == {'eager', 'fused'} for pair in rounds)
    assert all(len({picture for _, picture in pair}) == 1 for pair in rounds)
    assert {pair[0][0] for pair in rounds} == {'eager', 'fused'}
    assert len({pair[0][1] for pair in rounds}) >= 4


def test_operations_are_those_of_the_network(tmp_path: Path) -> None:
    """Two per multiplication: convolutions of a resnet18 and products of the transformer."""
    folder = write_random_policy('act-small', tmp_path / 'policy')
    work = count_work(folder)
    config = RANDOM_POLICIES['act-small']
    # 1.81 G multiplications for 224x224 pictures is the figure of the ResNet paper's table.
    pixels = 96 * 128 * len(config.image_features)
    convolutions = 2 * 1.81e9 * pixels / 224**2
    assert convolutions * 0.9 < work.flop < convolutions * 1.15
    assert work.parameters == pytest.approx(11.2e6 + 0.15e6, rel=0.05)


def test_the_threads_of_the_process_are_put_back(act_folder: Path) -> None:
    before = torch.get_num_threads()
    other = 2 if before == 1 else 1
    run_bench(act_folder, BenchOptions(forms=(REFERENCE,), device='cpu', threads=other, repeat=1))
    assert torch.get_num_threads() == before


def test_what_really_served_is_reported(act_folder: Path) -> None:
    wanted = Form(backend='cudagraph', precision='fp32')
    (arm,) = run_bench(act_folder, options(wanted))['arms']
    assert (arm['arm'], arm['served']) == ('cudagraph, fp32', 'fused, fp32')
    assert 'CUDA' in arm['refused'][0]['reason']


def test_ceilings_count_both_ways_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('sparkrt_ros.runtime.bench_machine.best_seconds', lambda *_, **__: 1e-3)
    ceilings = measure_ceilings(CPU, TIERS['bf16'])
    assert ceilings.matmul_tflop_per_s == pytest.approx(2 * 64**3 / 1e-3 / 1e12)
    assert ceilings.copy_gb_per_s == pytest.approx(2 * 4096 / 1e-3 / 1e9)


def test_the_first_run_does_not_count_and_three_do() -> None:
    calls: list[int] = []
    best = best_seconds(lambda: calls.append(1), CPU, budget_s=0.0)
    assert len(calls) == 4
    assert best > 0


def test_facts_name_machine_versions_commit_and_date() -> None:
    facts = machine_facts(CPU)
    assert facts['torch'] == torch.__version__
    assert facts['cores'] >= 1
    assert facts['date'].endswith('+00:00')
    assert {'commit', 'cpu', 'system', 'python', 'sparkrt'} <= set(facts)


@pytest.mark.parametrize('name', RANDOM_POLICIES)
def test_a_random_policy_is_a_whole_folder(name: str, tmp_path: Path) -> None:
    folder = write_random_policy(name, tmp_path / name)
    described = describe_checkpoint(folder)
    assert described.config.chunk_size == RANDOM_POLICIES[name].chunk_size
    assert all('the runtime options decide' in warning for warning in described.warnings)


def test_a_seed_gives_the_same_weights_and_disturbs_nothing(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    digests = [
        (write_random_policy('act-small', tmp_path / str(i), seed=seed) / 'model.safetensors')
        for i, seed in enumerate((0, 0, 1))
    ]
    first, second, third = (path.read_bytes() for path in digests)
    assert first == second != third
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unknown_random_policy_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='act-480x640x2'):
        write_random_policy('act-huge', tmp_path)


def test_the_command_prints_and_writes_everything(
    act_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, picture = tmp_path / 'bench.json', tmp_path / 'bench.png'
    arguments = ['bench', str(act_folder), '--device', 'cpu', '--threads', '1', '--repeat', '4']
    arguments += ['--backend', 'eager', 'fused', '--precision', 'fp32', 'bf16']
    code = main([*arguments, '--json', str(target), '--plot', str(picture)])
    assert code == 0
    result = json.loads(target.read_text())
    names = [arm['arm'] for arm in result['arms']]
    assert names == ['eager, fp32', 'eager, bf16', 'fused, fp32', 'fused, bf16']
    assert result['machine']['torch'] == torch.__version__
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert 'GFLOP' in printed
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_the_command_says_what_serves_instead(
    act_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ['bench', str(act_folder), '--device', 'cpu', '--threads', '1', '--repeat', '1']
    assert main([*arguments, '--backend', 'cudagraph']) == 0
    assert 'cudagraph, fp32: fused, fp32 serves' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'named'),
    [
        (['--random', 'act-huge'], 'act-huge'),
        (['--random', 'act-small', '--backend', 'warp'], 'warp'),
        (['--random', 'act-small', '--precision', 'int3'], 'int3'),
        (['nowhere'], 'nowhere'),
    ],
)
def test_wrong_choices_are_told_in_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['bench', '--device', 'cpu', *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith('sparkrt: error:')
    assert named in error


@pytest.mark.parametrize(
    'arguments',
    [
        ['bench'],
        ['bench', 'folder', '--random', 'act-small'],
        ['bench', 'folder', '--repeat', '0'],
    ],
)
def test_impossible_arguments_end_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2

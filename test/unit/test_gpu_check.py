"""The one call for GPU machines: every step has its end, and none takes the others with it."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location('gpu_check', ROOT / 'tools' / 'gpu_check.py')
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, 'gpu_check', module)
    spec.loader.exec_module(module)
    monkeypatch.setenv('OUT', str(tmp_path))
    return module


def steps(module: ModuleType, *codes: str, limit_s: float = 20.0) -> list:
    return [
        module.Step(name=f'step{n}', command=(sys.executable, '-c', code), limit_s=limit_s)
        for n, code in enumerate(codes)
    ]


def run_with(module: ModuleType, monkeypatch: pytest.MonkeyPatch, chosen: list, *arguments: str):
    monkeypatch.setattr(module, 'plan', lambda options, out: chosen)
    return module.main(list(arguments))


def test_a_step_that_fails_does_not_stop_the_next(
    gpu_check, monkeypatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = steps(gpu_check, 'raise SystemExit(7)', 'print("went well")')
    assert run_with(gpu_check, monkeypatch, chosen) == 1
    table = (tmp_path / 'gpu_check.txt').read_text()
    assert 'step0  failed with code 7' in table
    assert 'step1  ok' in table
    assert 'went well' in (tmp_path / 'gpu_check.log').read_text()
    assert table in capsys.readouterr().out


def test_all_steps_going_well_is_success(gpu_check, monkeypatch) -> None:
    assert run_with(gpu_check, monkeypatch, steps(gpu_check, 'pass', 'pass')) == 0


def test_a_step_over_its_limit_is_cut_off_with_its_children(
    gpu_check, monkeypatch, tmp_path
) -> None:
    note = tmp_path / 'pid'
    code = (
        'import subprocess\n'
        'child = subprocess.Popen(["sleep", "60"])\n'
        f'open({str(note)!r}, "w").write(str(child.pid))\n'
        'child.wait()'
    )
    assert run_with(gpu_check, monkeypatch, steps(gpu_check, code, limit_s=2.0)) == 1
    assert 'cut off after 2 s' in (tmp_path / 'gpu_check.txt').read_text()
    deadline_s = time.monotonic() + 10.0
    while is_running(int(note.read_text())):
        assert time.monotonic() < deadline_s, 'the child still runs'


def is_running(pid: int) -> bool:
    """A zombie, which somebody else has to bury, does not."""
    try:
        stat = Path(f'/proc/{pid}/stat').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(')')[2].split()[0] != 'Z'


def test_no_step_begins_when_the_time_for_all_is_over(gpu_check, monkeypatch, tmp_path) -> None:
    assert run_with(gpu_check, monkeypatch, steps(gpu_check, 'pass'), '--limit', '1') == 1
    assert 'no time left' in (tmp_path / 'gpu_check.txt').read_text()


def test_the_table_holds_what_the_reports_say(gpu_check, monkeypatch, tmp_path) -> None:
    times = {'count': 10, 'p50_ms': 0.5, 'p99_ms': 0.6}
    arm = {'served': 'cudagraph, fp16', 'whole': times, 'model': times}
    arm |= {'load_s': 1.0, 'warm_up_s': 0.25}
    (tmp_path / 'replays.json').write_text(json.dumps({'arms': [arm]}))
    (tmp_path / 'versus.json').write_text('{"unfinished"')
    run_with(gpu_check, monkeypatch, [])
    table = (tmp_path / 'gpu_check.txt').read_text()
    assert 'cudagraph, fp16: whole, 10 times' in table
    assert 'p50 0.500 p99 0.600 ms, p99/p50 1.200' in table
    assert '1.25 s' in table
    assert 'versus.json' in table
    assert 'not understood' in table


def test_chunks_of_pi_policies_are_told_with_what_was_left_out(
    gpu_check, monkeypatch, tmp_path
) -> None:
    times = {'p50_ms': 10.0, 'p99_ms': 11.0, 'count': 5}
    arms = [{'arm': name, **times, 'cosine': 1.0} for name in ('fused', 'lerobot eager')]
    arms[1]['p50_ms'] = 250.0
    report = {
        'options': {'pi0': 'False', 'views': '3', 'tokens': '200'},
        'arms': arms,
        'alone': times,
        'left_out': {'lerobot compiled': 'takes minutes'},
        'peak_gb': 20.0,
    }
    (tmp_path / 'pi05.json').write_text(json.dumps(report))
    run_with(gpu_check, monkeypatch, [])
    table = (tmp_path / 'gpu_check.txt').read_text()
    assert 'Pi0.5, 3 views, 200 tokens: lerobot eager' in table
    assert 'p50 250.00 p99 11.00 ms, 25.00 x fused' in table
    assert 'p99/p50 1.100' in table
    assert 'without lerobot compiled' in table


@pytest.mark.parametrize('small', [False, True])
def test_the_plan_builds_before_it_tests_and_measures(gpu_check, tmp_path, small: bool) -> None:
    options = gpu_check.parse(['--wheels', str(tmp_path), *(['--small'] if small else [])])
    planned = gpu_check.plan(options, tmp_path)
    names = [step.name for step in planned]
    pi = ['pi05', 'pi05_short', 'pi0', 'pi05_load']
    assert names == [
        'wheels',
        'build',
        'tests',
        'tests_full',
        'replays',
        'node',
        'versus',
        'forms',
        *pi,
    ]
    assert len({step.report for step in planned if step.report}) == 8
    tests = next(step for step in planned if step.name == 'tests')
    assert str(ROOT / 'test' / 'gpu' / 'test_cudagraph.py') in tests.command


def test_without_wheels_what_is_installed_is_used(gpu_check, tmp_path) -> None:
    options = gpu_check.parse(['--wheels', str(tmp_path / 'none'), '--only', 'wheels', 'build'])
    assert [step.name for step in gpu_check.plan(options, tmp_path)] == ['build']

"""Test processes side by side end as the worst of them does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / 'tools' / 'run_tests.py'
WITH_ROS = '@pytest.mark.ros\ndef test_with():\n    assert {with_}\n'
FAULTS = '@pytest.mark.ros\n@pytest.mark.faults\ndef test_faults():\n    assert {faults}\n'
WITHOUT_ROS = 'def test_without():\n    assert {without}\n'


def run_tests(folder: Path, target: str) -> subprocess.CompletedProcess[str]:
    """The program on the tests in ``target`` of ``folder``."""
    (folder / 'pytest.ini').write_text('[pytest]\nmarkers =\n  ros\n  faults\n')
    return subprocess.run(
        [sys.executable, PROGRAM, '-v', '-p', 'no:cacheprovider', target],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ('codes', 'expected'),
    [
        *(((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5)),
        *(((1, 0), 1), ((0, 1), 1), ((5, 2), 2)),
        ((0, 0, 0), 0),
        ((0, 5, 0), 0),
        ((5, 0, 5), 0),
        ((5, 5, 5), 5),
        ((1, 0, 0), 1),
        ((0, 1, 5), 1),
        ((5, 2, 1), 2),
    ],
)
def test_the_worse_code_counts(codes: tuple[int, ...], expected: int) -> None:
    spec = importlib.util.spec_from_file_location('run_tests', PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.verdict(codes) == expected


@pytest.mark.parametrize('with_', [True, False])
@pytest.mark.parametrize('faults', [True, False])
@pytest.mark.parametrize('without', [True, False])
def test_all_kinds_run_and_tell(tmp_path: Path, with_: bool, faults: bool, without: bool) -> None:
    text = 'import pytest\n\n' + WITH_ROS + FAULTS + WITHOUT_ROS
    (tmp_path / 'test_three.py').write_text(
        text.format(with_=with_, faults=faults, without=without)
    )
    done = run_tests(tmp_path, 'test_three.py')
    assert done.returncode == (0 if with_ and faults and without else 1), done.stdout + done.stderr
    for name, good in (('test_with', with_), ('test_faults', faults), ('test_without', without)):
        word = 'PASSED' if good else 'FAILED'
        times = 1 if good or name == 'test_without' else 2
        assert len(re.findall(f'^test_three.py::{name} {word}', done.stdout, re.M)) == times


FLAKY = """import pathlib
import pytest


class TestKind:
    @pytest.mark.ros
    @pytest.mark.parametrize('name', ['a.b[c]', 'd'])
    def test_flaky(self, name):
        mark = pathlib.Path('seen ' + name)
        seen = mark.exists()
        mark.write_text('')
        assert seen or name == 'd'


@pytest.mark.ros
@pytest.mark.faults
def test_broken():
    assert {good}


def test_rest():
    pass
"""


@pytest.mark.parametrize('good', [True, False])
def test_what_failed_with_ros_runs_again_alone_and_is_named(tmp_path: Path, good: bool) -> None:
    (tmp_path / 'inner').mkdir()
    (tmp_path / 'inner' / 'test_flaky.py').write_text(FLAKY.format(good=good))
    done = run_tests(tmp_path, 'inner')
    assert done.returncode == (0 if good else 1), done.stdout + done.stderr
    name = 'inner/test_flaky.py::TestKind::test_flaky[a.b[c]]'
    assert done.stdout.count(f'{name} FAILED') == done.stdout.count(f'{name} PASSED') == 1
    assert done.stdout.count('test_flaky[d] PASSED') == 1, 'what passed does not run again'
    told = f'passed only when they ran again, alone:\n  {name}\n' in done.stdout
    assert told == good

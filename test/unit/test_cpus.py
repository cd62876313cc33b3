"""Which processors threads may run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkrt_ros.nodes.cpus import Cpus, parse_cpus
from sparkrt_ros.runtime.errors import ConfigError

MINE = sorted(os.sched_getaffinity(0))
MOVE = """
import os, threading
from sparkrt_ros.nodes.cpus import Cpus

def affinity():
    return [os.sched_getaffinity(int(task)) for task in sorted(os.listdir('/proc/self/task'))]

cpus, end = Cpus(), threading.Event()
threading.Thread(target=end.wait).start()
first = {min(os.sched_getaffinity(0))}
before = affinity()
cpus.use(str(*first))
threading.Thread(target=end.wait).start()
assert affinity() == [first] * 3, affinity()
cpus.use('')
assert affinity() == [before[0]] * 3, affinity()
end.set()
print('moved')
"""


@pytest.mark.parametrize(
    ('text', 'numbers'),
    [
        ('', set()),
        ('  ', set()),
        ('0', {0}),
        ('2-4', {2, 3, 4}),
        (' 0, 2 - 3 ', {0, 2, 3}),
        ('1,1', {1}),
        ('5-5', {5}),
    ],
)
def test_numbers_and_ranges(text: str, numbers: set[int]) -> None:
    assert parse_cpus(text) == numbers


@pytest.mark.parametrize('text', ['a', '-1', '3-2', '1,', ',', '0x1', '1-', '0;1', '99999', '1 2'])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="'0, 2-3'") as refused:
        parse_cpus(text)
    assert repr(text) in str(refused.value)


def test_processors_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match='may not use 4000') as refused:
        Cpus().check(f'{MINE[0]}, 4000')
    assert f'some of {", ".join(map(str, MINE))}' in str(refused.value)


def test_nothing_chosen_is_everything() -> None:
    assert Cpus().check('') == set(MINE)


def test_every_thread_moves_and_those_that_start_later_follow() -> None:
    root = Path(__file__).resolve().parents[2]
    code = [sys.executable, '-c', MOVE]
    done = subprocess.run(code, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == 'moved\n', done.stderr

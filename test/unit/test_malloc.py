"""Keeping freed memory: seen from the page faults of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
import numpy as np
from sparkrt_ros.runtime.malloc import keep_freed_memory, return_freed_memory
kept = keep_freed_memory() if sys.argv[1] != 'leave' else None
if sys.argv[1] == 'return': return_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(40_000_000, np.uint8)
before = faults()
for _ in range(5): np.ones(40_000_000, np.uint8)
print(kept, faults() - before)
"""


def run(choice: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, '-c', _PROGRAM, choice],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='only glibc is told')
def test_large_blocks_are_not_mapped_anew_each_time() -> None:
    kept, faults = run('keep')
    assert kept == 'True'
    _, faults_otherwise = run('leave')
    assert faults * 10 < faults_otherwise


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='only glibc is told')
def test_freed_memory_can_be_returned_again() -> None:
    _, faults_when_kept = run('keep')
    _, faults_when_returned = run('return')
    assert faults_when_kept * 10 < faults_when_returned


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkrt_ros.runtime import malloc

    monkeypatch.setattr(malloc.sys, 'platform', 'darwin')
    assert malloc.keep_freed_memory() is False


_GIVING_BACK = """
from pathlib import Path
import numpy as np
from sparkrt_ros.runtime.malloc import give_back_now, keep_freed_memory
def resident_mb():
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('RssAnon')) // 1024
keep_freed_memory()
blocks = [np.ones(1_000_000, np.uint8) for _ in range(200)]
last = blocks[-1]
del blocks
before = resident_mb()
given = give_back_now()
print(given, before, resident_mb())
"""


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='only glibc is told')
def test_what_is_kept_can_be_given_back_at_once() -> None:
    command = [sys.executable, '-c', _GIVING_BACK]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    given, before, after = done.stdout.split()
    assert given == 'True'
    assert int(before) > 190
    assert int(after) < int(before) - 150

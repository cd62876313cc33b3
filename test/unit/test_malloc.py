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

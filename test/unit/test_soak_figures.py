"""What the soak calls growth."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy')
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'bench'))

from soak import Sample, growth


def samples(**changes):
    """Ten minutes of a sample each 5 s; ``changes``: figure -> function of the minute."""
    still = {'resident': 100.0, 'unique': 90.0, 'shm': 70.0}
    counts = {'threads': 20, 'handles': 25, 'shm_files': 3}
    return [
        Sample(at_s=5.0 * n, **(still | counts | {k: f(n / 12) for k, f in changes.items()}))
        for n in range(120)
    ]


def failed(**changes) -> set[str]:
    return {row.figure for row in growth('node', samples(**changes)) if not row.passed}


def test_what_stays_passes():
    assert failed() == set()


def test_memory_may_grow_by_less_than_a_megabyte_a_minute():
    assert failed(resident=lambda minute: 100 + 0.9 * minute) == set()
    assert failed(resident=lambda minute: 100 + 1.1 * minute) == {'resident'}
    assert failed(unique=lambda minute: 90 + 2 * minute, shm=lambda m: 70 - m) == {'unique'}


@pytest.mark.parametrize('figure', ['threads', 'handles', 'shm_files'])
def test_counts_may_not_grow_at_all(figure):
    assert failed(**{figure: lambda minute: 20 + int(minute > 5)}) == {figure}


def test_a_single_reading_is_no_growth():
    assert failed(handles=lambda minute: 25 + int(abs(minute - 5) < 0.01)) == set()


def test_a_process_is_read_from_proc():
    sample = Sample.of(os.getpid(), at_s=1.0)
    assert sample.threads >= 1
    assert sample.handles > 2
    assert sample.resident > 0
    assert sample.unique > 0

"""Every benchmark with real nodes can be started: it imports what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ros

BENCH = Path(__file__).resolve().parents[2] / 'bench'
PROGRAMS = ('bag_stream', 'control_jitter', 'hot_swap', 'node_latency', 'seams', 'soak')


@pytest.mark.parametrize('name', PROGRAMS)
def test_it_tells_how_it_is_used(name):
    command = [sys.executable, str(BENCH / f'{name}.py'), '--help']
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert f'usage: {name}.py' in run.stdout

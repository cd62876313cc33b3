"""The streamer as a process of its own: small, without torch, safe when something in it breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ros_harness import ROOT
from streamer_rig import StreamerRig, make_rig, still

pytestmark = pytest.mark.ros

ALTERED = ROOT / 'test' / 'ros' / 'altered_action_streamer.py'
HEAVY = ('torch', 'cv2', 'safetensors', 'matplotlib')


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def test_importing_the_streamer_loads_no_heavy_library():
    code = (
        'import sys, sparkrt_ros.nodes.action_streamer\n'
        f'print([name for name in {HEAVY!r} if name in sys.modules])'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == '[]'


def test_a_running_streamer_is_small_and_maps_no_torch(rig: StreamerRig):
    process = rig.start()
    rig.publish(still(50))
    rig.wait_status('streaming')
    maps = Path(f'/proc/{process.pid}/maps').read_text()
    assert not [name for name in HEAVY if name in maps]
    status = Path(f'/proc/{process.pid}/status').read_text()
    memory_kb = {
        line.split()[0]: int(line.split()[1]) for line in status.splitlines() if 'Rss' in line
    }
    assert memory_kb['RssAnon:'] < 60_000
    assert memory_kb['RssFile:'] < 60_000


def test_a_defect_in_the_control_loop_ends_in_a_stop_that_is_explained(rig: StreamerRig):
    process = rig.start(script=ALTERED)
    rig.publish(still(500, x=0.2))
    status = rig.wait_status('stopped', reason='RuntimeError: the outlet broke')
    assert 'deactivate and activate' in status.reason
    process.wait_for_log('Traceback')
    assert rig.base.last.linear.x == 0.0, 'the base is not left driving'
    assert not rig.call('resume').success
    assert rig.now_status().commands == status.commands
    assert rig.change_state('deactivate')
    assert rig.change_state('activate')
    rig.wait_status('waiting', reason='no action chunk yet')
    rig.publish(still(50))
    rig.wait_status('streaming')


def test_real_time_priority_is_used_or_its_absence_explained(rig: StreamerRig):
    process = rig.start(control__realtime_priority=10)
    rig.publish(still(50))
    rig.wait_status('streaming')
    policies = [
        (Path(f'/proc/{process.pid}/task/{task.name}/stat').read_text().rsplit(')', 1)[1].split())
        for task in Path(f'/proc/{process.pid}/task').iterdir()
    ]
    # Fields 40 and 41 of stat(5) are priority and policy; policy 1 is SCHED_FIFO.
    in_real_time = {fields[37] for fields in policies if fields[38] == '1'}
    explained = process.count('SCHED_FIFO priority 10 is not permitted')
    assert (in_real_time, explained) in (({'10', '9'}, 0), (set(), 1))
    assert rig.change_state('deactivate')
    tasks = [int(task.name) for task in Path(f'/proc/{process.pid}/task').iterdir()]
    assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
    assert '10' not in {str(os.sched_getparam(task).sched_priority) for task in tasks}

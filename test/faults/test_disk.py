"""A disk that is full: the robot does not notice, and what was measured is not lost."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from act_folder_factory import ActFolderFactory
from bag_factory import write_mcap
from parity_bags import drive, write_robot
from ros_harness import ROOT

pytestmark = pytest.mark.ros

FULL = '/dev/full'


def sparkrt(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'sparkrt_ros.cli.main', *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )


def log_sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_logs_that_cannot_be_written_cost_the_logs_alone(stack, tmp_path, monkeypatch):
    logs = tmp_path / 'logs'
    monkeypatch.setenv('ROS_LOG_DIR', str(logs))
    stack.feed.start()
    stack.start()
    stack.wait_streaming()
    for process in stack.processes:
        # Every file is as long as it may be from now on; shared memory is mapped, not written.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
    full = log_sizes(logs)
    assert len(full) == 2
    cut_ns = stack.peer.now_ns
    stack.feed.stop('front')
    stack.wait_reason('stopped', 'the actions ran out', 'front_camera')
    stack.assert_ended_with_its_actions(stack.pause_after(cut_ns))
    stack.assert_resumes(lambda: stack.feed.start('front'))
    assert log_sizes(logs) == full
    for process in stack.processes:
        assert 'Traceback' not in process.log


def test_output_that_cannot_be_written_costs_the_output_alone(stack):
    stack.feed.start()
    stack.output = FULL
    stack.start()
    begin_ns = stack.wait_streaming()
    stack.feed.stop('front')
    stack.wait_reason('stopped', 'the actions ran out', 'front_camera')
    stack.pause_after(begin_ns)
    stack.assert_resumes(lambda: stack.feed.start('front'))
    # Its exit code must not depend on it either.
    for process in stack.processes:
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_parity_report_that_cannot_be_written_leaves_the_verdict(
    tmp_path, act_weights_cache: Path
):
    bag, policy = tmp_path / 'bag.mcap', ActFolderFactory(tmp_path, act_weights_cache)('policy')
    write_mcap(bag, drive(seconds=1.0, commands=True), chunk_every=40)
    robot = ('--robot', write_robot(tmp_path), '--checkpoint', policy)
    done = sparkrt('parity', bag, *robot, '--max-chunks', 3, '--report', FULL)
    assert done.returncode == 2
    assert done.stdout.rstrip().endswith('PASS')
    assert 'Traceback' not in done.stderr
    assert f'sparkrt: error: {FULL}: found No space left on device' in done.stderr


@pytest.mark.slow
def test_a_demo_report_that_cannot_be_written_leaves_the_figures():
    done = sparkrt('demo', '--episodes', 1, '--report', FULL)
    assert done.returncode == 2
    assert 'of 1 attempts succeeded' in done.stdout
    assert 'Traceback' not in done.stderr
    assert f'sparkrt: error: {FULL}: found No space left on device' in done.stderr

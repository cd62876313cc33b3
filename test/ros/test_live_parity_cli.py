"""``sparkrt parity --live`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ros_harness import ROOT, ros_environment

from sparkrt_ros.cli._parity_live import live_parity_options
from sparkrt_ros.cli._parity_options import parity_options
from sparkrt_ros.cli.main import build_parser
from sparkrt_ros.runtime.errors import ConfigError

pytestmark = pytest.mark.ros

CHECKPOINT = ROOT / 'checkpoints' / 'embedded_pick_place'
BASE = ['parity', str(ROOT / 'bags' / 'embedded_sqlite3'), '--robot', 'embedded']
BASE += ['--checkpoint', str(CHECKPOINT)]


def options_of(*arguments: str):
    args = build_parser().parse_args([*BASE, *arguments])
    return live_parity_options(args, parity_options(args))


def test_the_reference_is_played_unless_another_form_is_named():
    assert options_of() is None
    plain = options_of('--live')
    assert (plain.form.backend, plain.form.precision, plain.rate) == ('eager', 'fp32', None)
    other = options_of('--live', 'backend=fused,threads=1', '--live-rate', '2')
    assert (other.form.backend, other.form.threads, other.rate) == ('fused', 1, 2.0)
    assert options_of('--live', '--latency-ms', '30').replay.latency_s == 0.0


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (('--live-rate', '1'), 'no --live'),
        (('--live', '--live-rate', '0'), 'from 0.01 to 100'),
        (('--live', '--live-rate', 'nan'), 'from 0.01 to 100'),
        (('--live', 'backend=fast'), 'backend'),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(arguments, text):
    with pytest.raises(ConfigError, match=text):
        options_of(*arguments)


def test_without_ros_it_says_what_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.startswith('sparkrt_ros.replay.live')]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'rclpy', None)
    with pytest.raises(ConfigError, match='the built package') as caught:
        options_of('--live')
    assert 'ros2 run sparkrt' in str(caught.value)


@pytest.mark.slow
def test_a_bag_is_played_and_the_receipt_holds_the_verdict(ros_domain, tmp_path: Path):
    receipt = tmp_path / 'receipt.json'
    command = [sys.executable, '-m', 'sparkrt_ros.cli.main', *BASE]
    command += ['--live', 'threads=1', '--json', str(receipt)]
    done = subprocess.run(
        command,
        env=ros_environment(ros_domain),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'live (step by step): pass' in done.stdout
    live = json.loads(receipt.read_text())['provenance']['live']
    assert live['band'] == 'pass'
    assert live['chunks'] == live['chunks_identical'] > 0
    assert len(live['digest']) == 64
    assert {path.name for path in (tmp_path / 'log' / 'parity_live').iterdir()} == {
        'action_streamer.txt',
        'policy_node.txt',
    }

"""``sparkrt parity`` as a user types it: exit codes, files, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from act_folder_factory import ActFolderFactory
from bag_factory import write_mcap
from parity_bags import JOINTS, drive, in_namespace, write_robot

from sparkrt_ros.cli.main import main

EAGER = ('--candidate', 'backend=eager')


class Shell:
    """Runs the command on one bag and policy."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.folder = folder
        self.bag = folder / 'bag.mcap'
        self.messages = drive(seconds=3.0, commands=True)
        write_mcap(self.bag, self.messages, chunk_every=40)
        self.arguments = ['--robot', str(write_robot(folder)), '--checkpoint', str(policy)]

    def parity(self, *arguments: object, bag: Path | None = None) -> int:
        return main(['parity', str(bag or self.bag), *self.arguments, *map(str, arguments)])


@pytest.fixture(scope='module')
def shell(tmp_path_factory: pytest.TempPathFactory, act_weights_cache: Path) -> Shell:
    folder = tmp_path_factory.mktemp('shell')
    return Shell(folder, ActFolderFactory(folder, act_weights_cache)('policy'))


def test_it_passes_and_writes_everything(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ('out.html', 'out.json', 'out.png', 'out.npz')
    html, receipt, png, observations = (tmp_path / name for name in names)
    code = shell.parity(
        *('--report', html, '--json', receipt, '--png', png),
        *('--export-observations', observations, '--seed', 4),
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith('PASS')
    assert 'auto, fp32 (fused, fp32)' in printed
    for name in JOINTS:
        assert f' {name} ' in printed
    content = json.loads(receipt.read_text())
    assert content['band'] == 'pass'
    assert content['provenance']['options']['seed'] == 4
    (comparison,) = content['comparisons']
    assert set(comparison['spaces']) == {'model', 'robot'}
    assert set(comparison['spaces']['robot']['joints']) == set(JOINTS)
    assert len(comparison['spaces']['model']['chunks']) == len(content['chunks']) == 8
    assert html.read_text().startswith('<!')
    assert png.read_bytes().startswith(b'\x89PNG')
    assert observations.stat().st_size > 8 * 2 * 64 * 64 * 3


def test_a_stricter_threshold_fails_with_the_reason(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.parity('--threshold', 'max_abs=1e-12', '--max-chunks', 3, '--quiet') == 1
    printed = capsys.readouterr().out
    assert 'largest difference' in printed
    assert printed.rstrip().endswith('FAIL')


def test_a_warning_has_a_code_of_its_own(shell: Shell) -> None:
    assert shell.parity(*EAGER, '--max-chunks', 1) == 3


def test_an_incomplete_bag_has_a_code_of_its_own(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / 'cut.mcap'
    whole = shell.bag.read_bytes()
    cut.write_bytes(whole[: round(0.8 * len(whole))])
    receipt = tmp_path / 'out.json'
    assert shell.parity(*EAGER, '--json', receipt, bag=cut) == 4
    content = json.loads(receipt.read_text())
    assert content['band'] == 'pass'
    assert content['provenance']['bag']['complete'] is False
    assert any('cut.mcap' in text for text in content['warnings'])
    assert 'note: ' in capsys.readouterr().out
    assert shell.parity(*EAGER, '--max-chunks', 1, bag=cut) == 3


def test_recorded_commands_are_compared(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = tmp_path / 'out.json'
    code = shell.parity(*EAGER, '--against', 'recorded', '--json', receipt)
    assert code == 1  # a policy of random weights does not drive as the bag does
    content = json.loads(receipt.read_text())
    kinds = [(c['of'], c['reference'], c['band']) for c in content['comparisons']]
    assert kinds[0] == ('chunks', 'eager, fp32', 'pass')
    assert kinds[1] == ('commands', 'recorded', 'fail')
    assert 'recorded commands' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--candidate', 'backend=tensorrt'], 'one of'),
        (['--candidate', 'fused'], 'backend=…'),
        (['--candidate', 'backend=fused,backend=eager'], 'each at most once'),
        (['--candidate', 'threads=many'], 'an integer'),
        (['--against', 'lerobot'], "'lerobot FILE.npz'"),
        (['--against', 'something'], "'recorded'"),
        (['--threshold', 'max_abs'], 'NAME=NUMBER'),
        (['--threshold', 'size=1'], 'unknown threshold'),
        (['--set', 'chunking.mode=sometimes'], 'one of'),
        (['--set', 'backend=eager'], '--candidate'),
        (['--set', 'chunking.mode'], 'NAME=VALUE'),
        (['--rate-hz', '0'], 'above 0'),
        (['--latency-ms', '-1'], 'at least 0'),
        (['--latency-ms', 'nan'], 'at least 0'),
        (['--max-chunks', '0'], 'at least 1'),
        (['--seed', '-1'], 'at least 0'),
        (['--json', '/no/such/folder/x.json'], 'no folder'),
        (['--thresholds', '/no/such/file.yaml'], 'no readable YAML'),
        (['--namespace', '/robot1'], 'add --namespace /'),
        (['--time', 'clock'], 'no /clock'),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    shell: Shell, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.parity(*arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith('sparkrt: error: ')
    assert message in line


def test_a_missing_bag_is_told(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.parity(bag=shell.folder / 'nothing') == 2
    assert 'nothing' in capsys.readouterr().err


def test_a_robot_among_others_is_chosen_by_its_namespace(shell: Shell, tmp_path: Path) -> None:
    bag = tmp_path / 'two.mcap'
    messages = [
        *in_namespace(shell.messages, '/robot1'),
        *in_namespace(drive(seconds=3.0, moving=False), '/robot2'),
    ]
    write_mcap(bag, sorted(messages, key=lambda m: m.log_ns))
    assert shell.parity(*EAGER, bag=bag) == 2
    assert shell.parity(*EAGER, '--namespace', 'robot1', bag=bag) == 0
    assert shell.parity(*EAGER, '--namespace', 'robot2', bag=bag) == 3


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-c', code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_it_runs_without_any_ros_package(shell: Shell) -> None:
    code = (
        'import sys\n'
        'for name in ("rclpy", "sensor_msgs", "std_msgs", "sparkrt", "rosbag2_py"):\n'
        '    sys.modules[name] = None\n'
        'from sparkrt_ros.cli.main import main\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    arguments = ['parity', str(shell.bag), *shell.arguments, *EAGER, '--max-chunks', '3']
    done = run_python(code, *arguments)
    assert done.returncode == 0, done.stderr
    assert 'PASS' in done.stdout


def test_without_rosbags_it_names_the_extra(shell: Shell) -> None:
    code = (
        'import sys\n'
        'sys.modules["rosbags"] = None\n'
        'from sparkrt_ros.cli.main import main\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    done = run_python(code, 'parity', str(shell.bag), *shell.arguments)
    assert done.returncode == 2
    assert 'sparkrt-ros[bags]' in done.stderr
    assert 'Traceback' not in done.stderr


def test_the_help_tells_the_exit_codes() -> None:
    done = run_python('from sparkrt_ros.cli.main import main\nmain(["parity", "--help"])')
    assert '0 pass, 1 fail, 2 error, 3 warn, 4 pass on an incomplete bag' in ' '.join(
        done.stdout.split()
    )

"""The ``sparkrt`` command: help, version, sub-commands as files, errors in one line."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import sparkrt_ros
from sparkrt_ros.cli import main as cli
from sparkrt_ros.runtime.errors import ConfigError


def sparkrt(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'sparkrt_ros.cli.main', *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def add_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put a command ``probe`` beside the real ones."""

    def add(run: Callable[..., int]) -> None:
        module = types.ModuleType('probe', 'Try something out.\n\nMore about it.')
        module.add_arguments = lambda parser: parser.add_argument('--rate', type=float)  # type: ignore[attr-defined]
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setattr(cli, 'command_modules', lambda: {'probe': module})

    return add


def test_version_is_that_of_the_package() -> None:
    done = sparkrt('--version')
    assert done.returncode == 0
    assert done.stdout == f'sparkrt {sparkrt_ros.__version__}\n'


def test_help_lists_every_command_module() -> None:
    done = sparkrt('--help')
    assert done.returncode == 0
    folder = Path(cli.__file__).parent
    names = {path.stem for path in folder.glob('[!_]*.py')} - {'main'}
    assert 'inspect' in names
    assert names == set(cli.command_modules())
    assert all(f'\n    {name}' in done.stdout for name in names)


def test_help_needs_neither_torch_nor_ros() -> None:
    code = (
        'import sys\n'
        'for name in ("torch", "rclpy", "cv2", "matplotlib"): sys.modules[name] = None\n'
        'from sparkrt_ros.cli.main import main; main(["--help"])'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_command_prints_help_and_fails() -> None:
    done = sparkrt()
    assert done.returncode == 2
    assert done.stdout == ''
    assert 'inspect' in done.stderr


@pytest.mark.parametrize(
    'arguments', [('explode',), ('inspect',), ('inspect', 'x', '--frobnicate')]
)
def test_wrong_arguments_exit_with_2(arguments: tuple[str, ...]) -> None:
    done = sparkrt(*arguments)
    assert done.returncode == 2
    assert 'usage: sparkrt' in done.stderr
    assert 'Traceback' not in done.stderr


def test_command_gets_its_arguments_and_gives_the_exit_code(
    add_command: Callable[..., None],
) -> None:
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 3

    add_command(run)
    assert cli.main(['probe', '--rate', '2.5']) == 3
    assert seen[0].rate == 2.5


def test_deliberate_error_is_one_line_on_stderr(
    add_command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise ConfigError('rate_hz', found='0', expected='more than 0', remedy='give --rate')

    add_command(run)
    assert cli.main(['probe']) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err == (
        'sparkrt: error: rate_hz: found 0; expected more than 0; remedy: give --rate\n'
    )


def test_missing_optional_module_is_named(
    add_command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        import a_module_that_is_not_there  # noqa: F401

        return 0

    add_command(run)
    assert cli.main(['probe']) == 2
    assert 'Python module a_module_that_is_not_there is not installed' in capsys.readouterr().err


def test_defects_of_ours_are_not_hidden(add_command: Callable[..., None]) -> None:
    def missing_part(_: argparse.Namespace) -> int:
        import sparkrt_ros.no_such_part  # noqa: F401

        return 0

    add_command(missing_part)
    with pytest.raises(ModuleNotFoundError):
        cli.main(['probe'])
    add_command(lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(['probe'])


def test_interrupt_ends_without_traceback(
    add_command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    add_command(run)
    assert cli.main(['probe']) == 130
    assert capsys.readouterr().err == ''


def test_reader_that_goes_away_causes_no_traceback(act_folder: Path) -> None:
    command = [sys.executable, '-m', 'sparkrt_ros.cli.main', 'inspect', str(act_folder), '--json']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=30) == cli.EXIT_BROKEN_PIPE
    assert errors == b''

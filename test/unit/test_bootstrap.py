"""Setting up from nothing says clearly what a machine lacks, and repeats for free."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def bootstrap():
    spec = importlib.util.spec_from_file_location('bootstrap', ROOT / 'tools' / 'bootstrap.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def everything(name):
    return f'/usr/bin/{name}'


@pytest.mark.parametrize('version', [(2, 7, 18), (3, 6, 15), (3, 9, 18), (3, 14, 0)])
def test_a_python_outside_the_range_is_named_with_a_remedy(bootstrap, version):
    reason = bootstrap.check_machine(version, everything)
    assert f'found Python {version[0]}.{version[1]}' in reason
    assert 'expected 3.10 to 3.13' in reason
    assert 'PYTHON=' in reason


@pytest.mark.parametrize('version', [(3, 10, 0), (3, 11, 7), (3, 12, 1), (3, 13, 0)])
def test_every_supported_python_is_taken(bootstrap, version):
    assert bootstrap.check_machine(version, everything) is None


def test_a_missing_compiler_is_named_with_a_remedy(bootstrap):
    reason = bootstrap.check_machine(
        (3, 11, 0), lambda name: None if '+' in name else everything(name)
    )
    assert 'no C++ compiler' in reason
    assert 'apt install g++' in reason


def test_a_missing_make_is_named_with_a_remedy(bootstrap):
    reason = bootstrap.check_machine(
        (3, 11, 0), lambda name: None if name == 'make' else everything(name)
    )
    assert 'no make' in reason


def test_a_sourced_distribution_is_recognised_by_its_rclpy(bootstrap, tmp_path):
    environ = {'ROS_DISTRO': 'jazzy', 'AMENT_PREFIX_PATH': str(tmp_path)}
    assert bootstrap.sourced_distribution(environ) is None
    (tmp_path / 'share' / 'rclpy').mkdir(parents=True)
    assert bootstrap.sourced_distribution(environ) == 'jazzy'
    assert bootstrap.sourced_distribution({'AMENT_PREFIX_PATH': str(tmp_path)}) is None


def test_ros_wheels_are_only_installed_where_no_distribution_is_sourced(bootstrap):
    def names(distribution):
        return [path.name for path in bootstrap.requirement_files(distribution)]

    assert 'requirements-ros.txt' in names(None)
    assert 'requirements-ros.txt' not in names('jazzy')


def test_the_script_still_parses_on_a_python_too_old_to_be_used():
    """It has to start there to give its message."""
    ast.parse((ROOT / 'tools' / 'bootstrap.py').read_text(), feature_version=(3, 7))


def test_repeating_the_set_up_changes_nothing(bootstrap):
    stamps = [ROOT / '.venv' / 'sparkrt.stamp', ROOT / 'install' / 'sparkrt.stamp']
    distribution = bootstrap.sourced_distribution(os.environ)
    if not bootstrap.is_current(stamps[0], bootstrap.environment_digest(distribution)):
        pytest.skip('the tests do not run in the environment that tools/bootstrap.py made')
    script = [sys.executable, str(ROOT / 'tools' / 'bootstrap.py')]
    subprocess.run(script, check=True, capture_output=True)
    before = [stamp.stat().st_mtime_ns for stamp in stamps]
    again = subprocess.run(script, check=True, capture_output=True, text=True)
    assert again.stdout == ''
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == before

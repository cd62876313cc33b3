"""Arrows point one way: nodes -> convert -> runtime; and the streamer's side needs no torch."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'sparkrt_ros'
ROS_PACKAGES = ('rclpy', 'sensor_msgs', 'std_msgs', 'sparkrt', 'builtin_interfaces', 'rosbag2_py')

# Modules that the streamer, which has no torch, is built from.
TORCH_FREE = ('sparkrt_ros.convert', 'sparkrt_ros.runtime.chunking')


# Only some GPU machines have Triton; whoever imports these asks first.
NEEDS_TRITON = (
    'triton_forms',
    'triton_kernels',
    'attention_kernels',
    'flow_kernels',
    'prefix_kernels',
    'pi_triton',
    'pi_triton_prefix',
)


# What is built on top of the nodes.
OUTER = ('sparkrt_ros.sim', 'sparkrt_ros.demo', 'sparkrt_ros.replay', 'sparkrt_ros.cli')


def modules_below(*parts: str) -> list[str]:
    """Return the dotted names of all modules in a folder of the package."""
    folder = PACKAGE.joinpath(*parts)
    names = []
    skipped = () if find_spec('triton') else NEEDS_TRITON
    for path in sorted(folder.rglob('*.py')):
        if path.stem in skipped:
            continue
        dotted = path.relative_to(ROOT).with_suffix('').parts
        names.append('.'.join(p for p in dotted if p != '__init__'))
    return names


def import_blocked(modules: list[str], blocked: tuple[str, ...]) -> subprocess.CompletedProcess:
    code = (
        'import importlib, sys\n'
        f'for name in {blocked!r}: sys.modules[name] = None\n'
        f'for name in {modules!r}: importlib.import_module(name)\n'
    )
    return subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize('part', ['runtime', 'convert', 'cli'])
def test_imports_without_any_ros_package(part):
    modules = modules_below(part)
    assert modules
    result = import_blocked(modules, ROS_PACKAGES)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize('package', TORCH_FREE)
def test_the_streamers_side_imports_without_torch(package):
    modules = modules_below(*package.split('.')[1:])
    assert modules
    result = import_blocked(modules, ('torch', *ROS_PACKAGES))
    assert result.returncode == 0, result.stderr


def test_the_wall_test_itself_can_fail():
    result = import_blocked(['rclpy'], ('rclpy',))
    assert result.returncode != 0


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


@pytest.mark.parametrize(
    ('part', 'forbidden'),
    [
        ('runtime', (*OUTER, 'sparkrt_ros.convert', 'sparkrt_ros.nodes')),
        ('convert', (*OUTER, 'sparkrt_ros.nodes')),
        ('nodes', (*OUTER, 'torch')),
        ('replay', ('sparkrt_ros.sim', 'sparkrt_ros.cli')),
    ],
)
def test_arrows_point_one_way(part, forbidden):
    for path in sorted((PACKAGE / part).rglob('*.py')):
        wrong = [n for n in imported_by(path) if n.startswith(forbidden)]
        assert not wrong, f'{path.relative_to(ROOT)} imports {wrong}'


def test_importing_the_package_changes_no_process_wide_switch():
    switches = ('torch.set_num_threads', 'torch.backends.', 'torch._inductor.config', 'cv2.setNum')
    for path in sorted(PACKAGE.rglob('*.py')):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.Expr, ast.Assign)):
                text = ast.unparse(node)
                assert not text.startswith(switches), f'{path.relative_to(ROOT)}: {text}'

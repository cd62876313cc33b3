"""Launch files name only what exists, and load where the launch system is installed."""

import ast
import configparser
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCH_FILES = sorted((ROOT / 'launch').glob('*.launch.py'))


def tree_of(name: str) -> ast.Module:
    return ast.parse((ROOT / 'launch' / name).read_text())


def constant(tree: ast.Module, name: str) -> ast.expr:
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return node.value
    raise AssertionError(f'{name} is not assigned at module level')


def argument_names() -> set[str]:
    return {key.value for key in constant(tree_of('policy.launch.py'), 'ARGUMENTS').keys}


def keyword_values(tree: ast.Module, keyword: str) -> set[str]:
    return {
        k.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for k in node.keywords
        if k.arg == keyword and isinstance(k.value, ast.Constant)
    }


def entry_points() -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / 'setup.cfg')
    lines = parser['options.entry_points']['console_scripts'].split('\n')
    return {line.split('=')[0].strip() for line in lines if line.strip()}


@pytest.mark.parametrize('path', LAUNCH_FILES, ids=lambda p: p.name)
def test_executables_exist(path):
    executables = keyword_values(ast.parse(path.read_text()), 'executable')
    assert executables
    assert executables <= entry_points()


def test_the_promised_arguments_exist():
    promised = {'checkpoint', 'robot', 'backend', 'precision', 'namespace', 'use_sim_time'}
    assert promised | {'autostart', 'params_file', 'log_level'} <= argument_names()


@pytest.mark.ros
def test_overridden_parameters_are_declared_by_the_nodes():
    from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS
    from sparkrt_ros.nodes.streamer_parameters import STREAMER_PARAMETERS

    tree = tree_of('policy.launch.py')
    policy = set(ast.literal_eval(constant(tree, 'POLICY_OVERRIDES'))) | {'autostart'}
    streamer = set(ast.literal_eval(constant(tree, 'STREAMER_OVERRIDES'))) | {'autostart'}
    streamer |= set(ast.literal_eval(constant(tree, 'PREVIEW_ONLY')))
    assert policy <= {spec.name for spec in POLICY_PARAMETERS}
    assert streamer <= {spec.name for spec in STREAMER_PARAMETERS}


def test_the_demo_forwards_only_arguments_of_the_policy_launch_file():
    forwarded = {
        element.value
        for node in ast.walk(tree_of('demo.launch.py'))
        if isinstance(node, ast.Assign) and node.targets[0].id == 'forwarded'
        for element in node.value.elts
    }
    assert forwarded
    assert forwarded <= argument_names()


@pytest.mark.parametrize('path', LAUNCH_FILES, ids=lambda p: p.name)
def test_loads_and_describes_its_arguments(path):
    pytest.importorskip('launch_ros', reason='the launch system is not on PyPI')
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    description = module.generate_launch_description()
    arguments = description.get_launch_arguments()
    assert arguments
    assert all(argument.description for argument in arguments)

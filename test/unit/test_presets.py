"""Presets: what the shipped ones choose, and how they combine with a caller's choices."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.presets import list_presets, read_preset

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ('default', 'latency', 'memory', 'quality', 'safe')


def test_the_shipped_presets_are_listed() -> None:
    assert list_presets() == SHIPPED


@pytest.mark.parametrize('name', SHIPPED)
def test_a_shipped_preset_is_a_valid_choice_that_explains_itself(name: str) -> None:
    config = RuntimeConfig.from_preset(name)
    values = read_preset(name)
    assert values
    assert {key: getattr(config, key) for key in values} == values
    folder = ROOT / 'sparkrt_ros' / 'runtime' / 'presets'
    lines = (folder / f'{name}.yaml').read_text(encoding='utf-8').splitlines()
    assert lines[0].startswith('# ')
    assert all('#' in line for line in lines)


def test_no_two_shipped_presets_are_the_same() -> None:
    assert len({RuntimeConfig.from_preset(name) for name in SHIPPED}) == len(SHIPPED)


def test_safe_is_the_reference_and_quality_never_leaves_fp32() -> None:
    safe = RuntimeConfig.from_preset('safe')
    assert (safe.backend, safe.precision) == ('eager', 'fp32')
    assert RuntimeConfig.from_preset('quality').precision == 'fp32'
    assert RuntimeConfig.from_preset('latency').precision == 'bf16'


@pytest.mark.parametrize('name', SHIPPED)
def test_a_preset_leaves_alone_what_it_does_not_name(name: str) -> None:
    config, defaults = RuntimeConfig.from_preset(name), RuntimeConfig()
    for item in fields(RuntimeConfig):
        if item.name not in read_preset(name):
            assert getattr(config, item.name) == getattr(defaults, item.name)


def test_the_callers_changes_win() -> None:
    config = RuntimeConfig.from_preset('safe', precision='bf16', n_action_steps=3)
    assert (config.backend, config.precision, config.n_action_steps) == ('eager', 'bf16', 3)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match='fastest') as caught:
        RuntimeConfig.from_preset('fastest')
    assert all(name in str(caught.value) for name in SHIPPED)


@pytest.mark.parametrize('as_text', [False, True])
def test_a_file_of_the_user_works(tmp_path: Path, *, as_text: bool) -> None:
    path = tmp_path / 'mine.yaml'
    path.write_text('backend: fused\ndevice: cpu\n')
    config = RuntimeConfig.from_preset(str(path) if as_text else path)
    assert config == RuntimeConfig(backend='fused', device='cpu')


def test_an_empty_file_chooses_nothing(tmp_path: Path) -> None:
    path = tmp_path / 'empty.yaml'
    path.write_text('# nothing\n')
    assert RuntimeConfig.from_preset(path) == RuntimeConfig()


@pytest.mark.parametrize(
    ('text', 'found'),
    [
        ('- fused\n', 'list'),
        ('fused\n', 'str'),
        ('1: fused\n', 'dict'),
        ('backend: [\n', 'flow node'),
        ('backnd: fused\n', 'backnd'),
        ('backend: fussed\n', 'fussed'),
        ('num_threads: two\n', 'two'),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / 'wrong.yaml'
    path.write_text(text)
    with pytest.raises(ConfigError, match=found):
        RuntimeConfig.from_preset(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r'nowhere/mine\.yaml.*No such file'):
        RuntimeConfig.from_preset('nowhere/mine.yaml')


def test_with_changes_checks_what_it_is_given() -> None:
    config = RuntimeConfig(backend='fused')
    assert config.with_changes(precision='bf16') == RuntimeConfig(
        backend='fused', precision='bf16'
    )
    assert config == RuntimeConfig(backend='fused')
    with pytest.raises(ConfigError, match='precison'):
        config.with_changes(precison='bf16')
    with pytest.raises(ConfigError, match='int3'):
        config.with_changes(precision='int3')


def test_the_files_are_package_data() -> None:
    """The wheel and the ROS install take the YAML files of every package."""
    text = (ROOT / 'setup.cfg').read_text(encoding='utf-8')
    assert '*.yaml' in text.split('[options.package_data]')[1].splitlines()[1]
    for name in SHIPPED:
        assert yaml.safe_load((ROOT / f'sparkrt_ros/runtime/presets/{name}.yaml').read_text())


def test_the_environment_chooses_what_it_names() -> None:
    environment = {'SPARKRT_BACKEND': 'fused', 'SPARKRT_N_ACTION_STEPS': '7', 'HOME': '/root'}
    config = RuntimeConfig.from_env(environment)
    assert config == RuntimeConfig(backend='fused', n_action_steps=7)
    assert RuntimeConfig.from_env(environment, backend='eager').backend == 'eager'


@pytest.mark.parametrize(
    ('variable', 'text', 'named'),
    [
        ('SPARKRT_BACKENDS', 'fused', 'SPARKRT_BACKEND, '),
        ('SPARKRT_NUM_THREADS', 'two', 'an integer'),
        ('SPARKRT_BACKEND', 'warp', 'fused'),
    ],
)
def test_a_wrong_variable_is_refused_with_what_is_known(
    variable: str, text: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        RuntimeConfig.from_env({variable: text})


def test_a_default_choice_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('SPARKRT_BACKEND', 'fused')
    assert RuntimeConfig().backend == 'auto'
    assert RuntimeConfig.from_env().backend == 'fused'

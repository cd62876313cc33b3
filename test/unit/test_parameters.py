"""The parameters of a node: declared from specs, checked as a whole, frozen by phase."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip('rclpy', reason='needs ROS 2')

import rclpy
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter

from sparkrt_ros.nodes.parameters import ParameterSet, ParameterSpec
from sparkrt_ros.nodes.policy_parameters import (
    POLICY_PARAMETERS,
    SWAP_PARAMETERS,
    PolicySettings,
)
from sparkrt_ros.nodes.streamer_parameters import STREAMER_PARAMETERS
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[2]
ALL = {'sparkrt': POLICY_PARAMETERS, 'action_streamer': STREAMER_PARAMETERS}

SPECS = (
    ParameterSpec(name='rate', default=1.0, description='[Hz]', kind='live', bounds=(0.0, 100.0)),
    ParameterSpec(name='home', default=(), element=float, description='[rad]', kind='fixed'),
    ParameterSpec(name='mode', default='a', description='?', kind='swap', choices=('a', 'b')),
    ParameterSpec(name='low', default=0.0, description='[rad]', kind='live'),
    ParameterSpec(name='high', default=1.0, description='[rad]', kind='live'),
)


@pytest.fixture
def make_node(monkeypatch):
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'OFF')
    context = Context()
    rclpy.init(context=context)
    nodes = []

    def make(**overrides):
        nodes.append(
            Node(
                'tested',
                context=context,
                use_global_arguments=False,
                start_parameter_services=False,
                parameter_overrides=[Parameter(k, value=v) for k, v in overrides.items()],
            )
        )
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    context.shutdown()


def set_all(node, **values):
    return node.set_parameters_atomically([Parameter(k, value=v) for k, v in values.items()])


def ordered(values):
    if values['low'] > values['high']:
        raise ConfigError("parameter 'low'", found=str(values['low']), expected='at most high')


def test_defaults_and_overrides(make_node):
    node = make_node(rate=50, home=[0, 1])
    parameters = ParameterSet(node, SPECS)
    assert parameters['rate'] == 50.0
    assert parameters['home'] == (0.0, 1.0)
    assert parameters['mode'] == 'a'
    assert node.get_parameter('rate').type_ == Parameter.Type.DOUBLE
    assert node.get_parameter('home').type_ == Parameter.Type.DOUBLE_ARRAY


def test_an_empty_array_is_an_array(make_node):
    assert ParameterSet(make_node(home=[]), SPECS)['home'] == ()


def test_all_wrong_overrides_are_named_at_once(make_node):
    with pytest.raises(ConfigError) as caught:
        ParameterSet(make_node(rate='50', mode='c'), SPECS)
    assert "'rate': string '50'" in str(caught.value)
    assert "'mode': string 'c'" in str(caught.value)


def test_a_combination_that_cannot_be_is_refused_at_the_start(make_node):
    with pytest.raises(ConfigError, match='at most high'):
        ParameterSet(make_node(low=5.0), SPECS, check=ordered)


def test_the_snapshot_is_immutable_and_replaced_as_a_whole(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    before = parameters.values
    with pytest.raises(TypeError):
        before['rate'] = 3.0
    assert set_all(node, rate=2, low=0.5).successful
    assert before['rate'] == 1.0
    assert (parameters['rate'], parameters['low']) == (2.0, 0.5)


def test_a_set_is_all_or_nothing_and_checked_as_a_whole(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS, check=ordered)
    assert not set_all(node, rate=2.0, low=3.0).successful
    assert parameters['rate'] == 1.0
    assert set_all(node, low=3.0, high=4.0).successful
    result = set_all(node, high=1.0)
    assert not result.successful
    assert 'at most high' in result.reason
    assert node.get_parameter('high').value == 4.0


def test_kinds_follow_the_phase_of_the_node(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    parameters.set_phase(configured=True)
    assert 'clean the node up' in set_all(node, home=[1.0]).reason
    assert set_all(node, home=[]).successful  # no change, so nothing to refuse
    assert set_all(node, mode='b', rate=9.0).successful
    parameters.set_phase(configured=False)
    assert set_all(node, home=[1.0], mode='a').successful


def test_a_veto_knows_what_changes_and_its_reason_reaches_the_asker(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    asked = []

    def veto(values, changed):
        asked.append((values['rate'], set(changed)))
        if values['mode'] == 'b':
            raise CheckpointError('/nowhere', found='nothing there', expected='a folder')

    parameters.veto = veto
    assert set_all(node, rate=2.0, low=0.0).successful
    refused = set_all(node, rate=3.0, mode='b')
    assert refused.reason == '/nowhere: found nothing there; expected a folder'
    assert asked == [(2.0, {'rate'}), (3.0, {'rate', 'mode'})]
    assert parameters['rate'] == 2.0


def test_a_defect_in_a_check_refuses_the_set_and_nothing_more(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    parameters.veto = lambda values, changed: 1 / 0
    assert set_all(node, rate=2.0).reason.startswith('ZeroDivisionError')
    assert parameters['rate'] == 1.0


def test_what_was_in_effect_is_put_back_without_asking_again(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    heard = []
    parameters.on_change(lambda values, changed: heard.append(set(changed)))
    parameters.veto = lambda values, changed: 1 / 0
    parameters.put_back({'rate': 5.0, 'home': (1.0,)})
    assert (parameters['rate'], parameters['home']) == (5.0, (1.0,))
    assert list(node.get_parameter('home').value) == [1.0]
    assert heard == [{'rate', 'home'}]
    assert not set_all(node, rate=6.0).successful


def test_listeners_hear_what_changed_and_nothing_of_what_did_not(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    heard = []
    parameters.on_change(lambda values, changed: heard.append((dict(values), set(changed))))
    set_all(node, rate=2.0, low=0.0)
    set_all(node, rate=2.0)
    set_all(node, rate='x')
    assert [changed for _, changed in heard] == [{'rate'}]
    assert heard[0][0]['rate'] == 2.0


def test_a_file_set_again_counts_as_changed(make_node):
    """It may hold something else now."""
    node = make_node()
    robot = ParameterSpec(
        name='robot', default='a.yaml', description='?', kind='live', names_file=True
    )
    parameters = ParameterSet(node, (*SPECS, robot))
    heard, asked = [], []
    parameters.on_change(lambda values, changed: heard.append(set(changed)))
    parameters.veto = lambda values, changed: asked.append(set(changed))
    set_all(node, robot='a.yaml', rate=1.0)
    set_all(node, rate=2.0)
    assert heard == asked == [{'robot'}, {'rate'}]


def test_a_parameter_cannot_be_deleted(make_node):
    node = make_node()
    parameters = ParameterSet(node, SPECS)
    assert not node.set_parameters([Parameter('rate')])[0].successful
    assert node.get_parameter('rate').value == parameters['rate'] == 1.0


def test_descriptors_tell_what_is_allowed(make_node):
    node = make_node()
    ParameterSet(node, SPECS)
    rate = node.describe_parameter('rate')
    assert rate.description == '[Hz]'
    assert rate.floating_point_range[0].to_value == 100.0
    assert "one of ['a', 'b']" in node.describe_parameter('mode').additional_constraints
    assert node.describe_parameter('home').additional_constraints.startswith('fixed')


@pytest.mark.parametrize('node', ALL)
def test_every_parameter_is_described_and_bounded(node):
    for spec in ALL[node]:
        assert spec.description.endswith('.'), spec.name
        assert re.fullmatch(r'[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*', spec.name)
        if spec.scalar_type in (int, float):
            assert spec.bounds is not None, spec.name
        for suffix, unit in (('_s', '[s]'), ('_hz', '[Hz]')):
            if spec.name.endswith(suffix):
                assert unit in spec.description, spec.name


@pytest.mark.parametrize('node', ALL)
def test_the_shipped_file_holds_every_parameter_with_its_default(node):
    content = yaml.safe_load((ROOT / 'config' / 'policy.yaml').read_text())
    flat = dict(flatten(content[f'/**/{node}']['ros__parameters']))
    expected = {spec.name: spec.default for spec in ALL[node]}
    assert flat == expected
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in expected.items()}


def flatten(tree, prefix=''):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f'{prefix}{key}.')
        else:
            yield prefix + key, tuple(value) if isinstance(value, list) else value


def test_the_shipped_file_and_the_readme_are_as_generated():
    command = [sys.executable, str(ROOT / 'tools' / 'generate_parameters.py'), '--check']
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_settings_of_the_policy():
    values = {spec.name: spec.default for spec in POLICY_PARAMETERS}
    settings = PolicySettings.of({**values, 'checkpoint': '/x', 'threads': 2})
    assert settings.checkpoint == '/x'
    assert settings.config.num_threads == 2
    assert settings.config.n_action_steps is None
    assert settings.config.temporal_ensemble_coeff is None
    ensemble = PolicySettings.of({**values, 'chunking.mode': 'ensemble'})
    assert ensemble.config.temporal_ensemble_coeff == 0.01
    assert ensemble != settings
    with pytest.raises(ConfigError, match='device'):
        PolicySettings.of({**values, 'device': 'gpu'})


def test_only_what_changes_the_policy_itself_asks_for_another():
    values = {spec.name: spec.default for spec in POLICY_PARAMETERS}
    loaded = PolicySettings.of({**values, 'checkpoint': '/x'}).to_load
    for name, value in [
        ('chunking.mode', 'ensemble'),
        ('chunking.n_action_steps', 7),
        ('task', 'lift'),
    ]:
        same = PolicySettings.of({**values, 'checkpoint': '/x', name: value})
        assert same.to_load == loaded, name
    for name in SWAP_PARAMETERS:
        value = {'checkpoint': '/y', 'device': 'cpu', 'threads': 3, 'num_steps': 3}.get(name)
        value = {'backend': 'eager', 'precision': 'bf16'}.get(name, value)
        other = PolicySettings.of({**values, 'checkpoint': '/x', name: value})
        assert other.to_load != loaded, name

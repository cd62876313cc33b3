"""Following a policy while it is loaded, and what is known of it before."""

import shutil

import pytest
from act_folder_factory import tiny_config

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.runtime.build_watch import STAGES, BuildWatch
from sparkrt_ros.runtime.checkpoint.load import describe_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    ContractError,
)
from sparkrt_ros.runtime.outlook import check_same_folder, expected_capabilities
from sparkrt_ros.runtime.policy import load_policy
from sparkrt_ros.runtime.vla_config import VlaConfig

CPU = RuntimeConfig(device='cpu', num_threads=1)

pytestmark = pytest.mark.usefixtures('one_thread')


class Stop(Exception):
    pass


def test_stages_are_told_in_order(act_folder):
    told = []
    with load_policy(act_folder, config=CPU, watch=BuildWatch(stage=told.append)):
        pass
    assert tuple(told) == STAGES


@pytest.mark.parametrize('stage', STAGES)
def test_what_a_stage_raises_ends_the_loading(act_folder, stage):
    def stop(name):
        if name == stage:
            raise Stop

    with pytest.raises(Stop):
        load_policy(act_folder, config=CPU, watch=BuildWatch(stage=stop))


def test_a_form_that_is_not_accepted_is_not_tried(act_folder):
    watch = BuildWatch(accepts=lambda backend, precision: backend == 'eager')
    with load_policy(act_folder, config=CPU, watch=watch) as policy:
        assert (policy.receipt['backend'], policy.receipt['refused']) == ('eager', [])


def test_where_no_accepted_form_serves_the_reasons_are_told(act_folder, monkeypatch):
    def no(*_, **__):
        raise BackendError('gate', found='cosine 0.1', expected='0.99')

    monkeypatch.setattr('sparkrt_ros.runtime.planning.gate', no)
    watch = BuildWatch(accepts=lambda backend, precision: precision == 'bf16')
    with pytest.raises(BackendError, match=r'fused, bf16: gate: found cosine 0\.1') as caught:
        load_policy(act_folder, config=CPU.with_changes(precision='bf16'), watch=watch)
    assert 'precision bf16' in caught.value.where
    with pytest.raises(BackendError, match='no such form'):
        load_policy(act_folder, config=CPU, watch=BuildWatch(accepts=lambda *_: False))


def test_a_policy_is_known_before_its_weights_are_read(act_folder):
    with load_policy(act_folder, config=CPU) as policy:
        assert expected_capabilities(act_folder, config=CPU) == policy.capabilities
    assert describe_checkpoint(act_folder, with_digest=False).digest == ''
    assert describe_checkpoint(act_folder).digest == policy.receipt['digest']


def test_what_is_wrong_with_a_folder_is_known_before_its_weights_are_read(act_folder, tmp_path):
    with pytest.raises(CheckpointError, match='nothing there'):
        expected_capabilities(tmp_path / 'nowhere', config=CPU)
    with pytest.raises(ConfigError, match='chunk size'):
        expected_capabilities(act_folder, config=CPU.with_changes(n_action_steps=9))
    with pytest.raises(ConfigError, match='device'):
        expected_capabilities(act_folder, config=RuntimeConfig(device='cuda:77'))
    with pytest.raises(ConfigError, match='choices for a act policy'):
        expected_capabilities(act_folder, config=CPU.with_changes(vla=VlaConfig(num_steps=3)))
    cut = tmp_path / 'cut'
    shutil.copytree(act_folder, cut)
    weights = cut / 'model.safetensors'
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r'model\.safetensors'):
        expected_capabilities(cut, config=CPU)


def test_other_choices_for_a_loaded_folder_are_checked_without_its_files(act_folder):
    capabilities = expected_capabilities(act_folder, config=CPU)
    shutil.rmtree(act_folder)
    check_same_folder(capabilities, config=CPU.with_changes(precision='bf16'))
    for changes in ({'n_action_steps': 9}, {'vla': VlaConfig(num_steps=3)}, {'device': 'cuda:77'}):
        with pytest.raises(ConfigError):
            check_same_folder(capabilities, config=CPU.with_changes(**changes))


# What the policy node makes of it


@pytest.fixture
def foresight():
    pytest.importorskip('rclpy', reason='needs ROS 2')
    from sparkrt_ros.nodes.foresight import Foresight

    return Foresight()


def settings_of(folder, **changes):
    from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS, PolicySettings

    values = {spec.name: spec.default for spec in POLICY_PARAMETERS}
    return PolicySettings.of({**values, 'checkpoint': str(folder), **changes})


@pytest.fixture
def tiny_robot():
    from ros_fixtures import TINY_ROBOT

    return load_contract(TINY_ROBOT)


def test_a_robot_that_does_not_fit_is_known_before(foresight, act_folder, tiny_robot):
    foresight.check(settings_of(act_folder), tiny_robot, serving=None)
    with pytest.raises(ContractError, match='after crop and resize'):
        foresight.check(settings_of(act_folder), load_contract('embedded'), serving=None)
    with pytest.raises(ConfigError, match="parameter 'checkpoint'"):
        foresight.check(settings_of(''), tiny_robot, serving=None)


def test_a_folder_is_read_again_only_when_it_has_changed(
    foresight, act_folder, tiny_robot, make_act_folder, monkeypatch
):
    looks = []
    look = foresight._look
    monkeypatch.setattr(foresight, '_look', lambda *args: looks.append(args) or look(*args))
    for _ in range(3):
        foresight.check(settings_of(act_folder), tiny_robot, serving=None)
    assert len(looks) == 1
    (act_folder / 'config.json').unlink()
    with pytest.raises(CheckpointError, match=r'config\.json'):
        foresight.check(settings_of(act_folder), tiny_robot, serving=None)
    assert len(looks) == 2


def test_only_a_few_folders_are_remembered(foresight, make_act_folder, tiny_robot):
    for number in range(10):
        folder = make_act_folder(f'policy_{number}', config=tiny_config())
        foresight.check(settings_of(folder), tiny_robot, serving=None)
    assert len(foresight._known) == 8

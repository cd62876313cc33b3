"""From parameters to the choices a policy with an instruction is loaded with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from pi_folder import PI_SESSIONS, write_pi_folder

from sparkrt_ros.convert.contract_types import CameraSpec, StreamTiming
from sparkrt_ros.nodes.load_config import load_config
from sparkrt_ros.nodes.loaded_policy import prepare
from sparkrt_ros.nodes.policy_parameters import (
    POLICY_PARAMETERS,
    PolicySettings,
    check_values,
    choices_of,
)
from sparkrt_ros.nodes.vla_parameters import vla_choices
from sparkrt_ros.runtime.checkpoint import load_checkpoint
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.processors.prompt import make_instruction
from sparkrt_ros.runtime.vla_config import RtcConfig, StatePromptConfig, VlaConfig

DEFAULTS = {spec.name: spec.default for spec in POLICY_PARAMETERS}
FRONT, WRIST = 'observation.images.front', 'observation.images.wrist'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return write_pi_folder('pi05', tmp_path_factory.mktemp('pi') / 'policy')


def settings_of(folder='/x', **changes):
    named = {name.replace('__', '.'): value for name, value in changes.items()}
    return PolicySettings.of({**DEFAULTS, 'checkpoint': str(folder), **named})


def camera(key, **changes):
    name = key.rpartition('.')[2]
    timing = StreamTiming(max_age_s=1.0)
    return CameraSpec(name=name, key=key, topic=name, type='image', timing=timing, **changes)


CONTRACT = SimpleNamespace(
    cameras=(
        camera(FRONT, source_size=(640, 480)),
        camera(WRIST),
        camera('observation.images.top', resize=(8, 8)),
    )
)


def test_defaults_leave_everything_to_the_checkpoint():
    assert settings_of().config.vla == VlaConfig()


def test_every_choice_of_the_runtime_can_be_made_by_a_parameter():
    changes = {
        'num_steps': 4,
        'vla.schedule': 'power1.5',
        'vla.solver': 'midpoint',
        'vla.tokenizer': '/t',
        'vla.compat': '0.4',
        'vla.missing_cameras': (WRIST,),
        'vla.cfg_beta': 2.5,
        'vla.cfg_conditioned': '{task}, well',
        'vla.cfg_unconditioned': 'do it',
        'vla.state_prompt.mode': 'fixed',
        'vla.state_prompt.lengths': (64,),
        'vla.rtc.schedule': 'exp',
        'vla.rtc.max_guidance_weight': 3.0,
    }
    assert VlaConfig.from_mapping(vla_choices({**DEFAULTS, **changes})) == VlaConfig(
        num_steps=4,
        schedule='power1.5',
        solver='midpoint',
        tokenizer='/t',
        compat='0.4',
        missing_cameras=(WRIST,),
        cfg_beta=2.5,
        cfg_conditioned='{task}, well',
        cfg_unconditioned='do it',
        state_prompt=StatePromptConfig(mode='fixed', lengths=(64,)),
        rtc=RtcConfig(schedule='exp', max_guidance_weight=3.0),
    )


def test_what_contradicts_itself_is_refused_by_name():
    values = {**DEFAULTS, 'vla.state_prompt.mode': 'fixed', 'vla.state_prompt.lengths': (8, 16)}
    with pytest.raises(ConfigError, match=r'vla\.state_prompt\.lengths'):
        check_values(values)


def test_a_policy_that_can_continue_chunks_is_loaded_so_that_it_may(folder):
    config = load_config(folder, settings_of(folder), CONTRACT)
    assert config.vla == VlaConfig(rtc=RtcConfig())
    chosen = settings_of(folder, vla__rtc__schedule='ones', chunking__mode='rtc')
    config = load_config(folder, chosen, CONTRACT)
    assert config.vla.rtc == RtcConfig(schedule='ones')
    assert config.mode == 'auto', 'how chunks are used may change while it is loaded'


def test_picture_sizes_come_from_the_contract_where_it_tells_them(folder):
    config = load_config(folder, settings_of(folder, vla__image_sizes='contract'), CONTRACT)
    assert config.vla.image_sizes == {FRONT: (480, 640)}


def test_act_takes_the_defaults_and_refuses_everything_else(make_act_folder):
    act = make_act_folder('act')
    assert load_config(act, settings_of(act), CONTRACT).vla == VlaConfig()
    with pytest.raises(ConfigError, match='act policy'):
        load_config(act, settings_of(act, vla__image_sizes='contract'), CONTRACT)


def test_strength_of_guidance_and_seed_are_no_part_of_what_is_loaded():
    one, other = settings_of(vla__cfg_beta=2.0), settings_of(vla__cfg_beta=3.0)
    assert one.to_load == other.to_load != settings_of().to_load
    assert (one.cfg_beta, other.cfg_beta, settings_of().cfg_beta) == (2.0, 3.0, None)
    assert settings_of(vla__seed=4).to_load == settings_of().to_load
    receipt = {'mode': 'rtc'}
    loaded = SimpleNamespace(receipt=receipt, settings=other)
    values = {**DEFAULTS, 'vla.seed': 4, 'chunking.execution_horizon': 7}
    choices = choices_of(values, loaded)
    assert (choices.seed, choices.cfg_beta, choices.execution_horizon) == (4, 3.0, 7)
    assert choices.continues
    queued = SimpleNamespace(receipt={'mode': 'queue'}, settings=settings_of())
    assert choices_of(DEFAULTS, queued) == replace(
        choices, seed=None, cfg_beta=None, continues=False, execution_horizon=10
    )


class Unbound:
    """A contract that fits: what is compared with it elsewhere is not the matter here."""

    cameras = ()


@pytest.fixture
def anything_fits(monkeypatch):
    monkeypatch.setattr(
        'sparkrt_ros.nodes.loaded_policy.check_contract', lambda contract, needs: None
    )


@pytest.mark.usefixtures('anything_fits', 'one_thread')
def test_modes_switch_without_another_policy(folder):
    loaded = prepare(settings_of(folder, num_steps=1, device='cpu'), Unbound())
    try:
        assert loaded.receipt['mode'] == 'queue'
        rtc = settings_of(folder, num_steps=1, device='cpu', chunking__mode='rtc')
        assert rtc.to_load == loaded.settings.to_load
        assert loaded.with_settings(rtc).receipt['mode'] == 'rtc'
        ensemble = settings_of(folder, num_steps=1, device='cpu', chunking__mode='ensemble')
        with pytest.raises(ConfigError, match='no temporal ensembling'):
            loaded.with_settings(ensemble)
    finally:
        loaded.policy.close()


@pytest.mark.usefixtures('anything_fits', 'one_thread')
def test_the_receipt_tells_the_strength_of_guidance_that_counts(folder):
    chosen = {'num_steps': 1, 'device': 'cpu', 'vla__cfg_beta': 2.0}
    loaded = prepare(settings_of(folder, **chosen), Unbound())
    try:
        assert loaded.receipt['vla']['cfg_beta'] == 2.0
        other = loaded.with_settings(settings_of(folder, **{**chosen, 'vla__cfg_beta': 3.0}))
        assert other.receipt['vla']['cfg_beta'] == 3.0
    finally:
        loaded.policy.close()


@pytest.mark.usefixtures('anything_fits', 'one_thread')
def test_a_prompt_that_would_lose_its_end_is_refused_while_loading(folder):
    with pytest.raises(ConfigError, match='shorten the instruction'):
        prepare(settings_of(folder, num_steps=1, device='cpu'), Unbound(), prompt='lift ' * 60)


@pytest.mark.usefixtures('anything_fits')
def test_act_refuses_to_continue_chunks_and_says_why(make_act_folder):
    act = make_act_folder('act_rtc')
    with pytest.raises(ConfigError, match='a act policy computes its actions in one go'):
        prepare(settings_of(act, device='cpu', chunking__mode='rtc'), Unbound())


def test_an_instruction_that_lerobot_would_cut_is_refused_and_any_other_is_not(folder):
    instruction = make_instruction(load_checkpoint(folder), VlaConfig())
    first, *_ = PI_SESSIONS['pi05'].tasks
    longest = max(filter(None, PI_SESSIONS['pi05'].tasks), key=len)
    instruction.check(first)
    with pytest.raises(ConfigError, match=r'found a prompt of 49 tokens.* at most 48'):
        instruction.check(longest)

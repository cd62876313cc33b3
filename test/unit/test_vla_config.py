"""Choices for policies that read an instruction: types, limits, and where they come from."""

from __future__ import annotations

from typing import Any

import pytest

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.vla_config import RtcConfig, StatePromptConfig, VlaConfig


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('num_steps', 0),
        ('num_steps', 2.0),
        ('num_steps', True),
        ('schedule', 'cosine'),
        ('solver', 'rk4'),
        ('compat', '0.5'),
        ('cfg_beta', float('inf')),
        ('cfg_beta', '1'),
        ('seed', -1),
        ('image_sizes', {'observation.images.front': (480, 0)}),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        VlaConfig(**{field: value})
    assert refused.value.where.startswith(f'vla.{field}')


@pytest.mark.parametrize(
    ('kind', 'field', 'value'),
    [
        (RtcConfig, 'rtc.schedule', 'cubic'),
        (RtcConfig, 'rtc.max_guidance_weight', 0.0),
        (RtcConfig, 'rtc.execution_horizon', 0),
        (StatePromptConfig, 'state_prompt.mode', 'guess'),
        (StatePromptConfig, 'state_prompt.lengths', (0,)),
    ],
)
def test_an_impossible_nested_value_is_refused_by_name(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        kind(**{field.rpartition('.')[2]: value})
    assert refused.value.where == f'vla.{field}'


def test_fixed_prompts_have_one_length() -> None:
    with pytest.raises(ConfigError, match='at most one length'):
        StatePromptConfig(mode='fixed', lengths=(64, 128))
    assert StatePromptConfig(mode='fixed', lengths=(64,)).resolve(200) == (64,)
    assert StatePromptConfig(mode='fixed').resolve(200) == (200,)
    assert StatePromptConfig(mode='fixed', lengths=(300,)).resolve(200) == (200,)


def test_exact_prompts_always_have_room_for_the_longest() -> None:
    assert StatePromptConfig().resolve(200) == (32, 64, 96, 128, 160, 192, 200)
    assert StatePromptConfig(lengths=(90, 30, 30, 500)).resolve(200) == (30, 90, 200)
    assert StatePromptConfig().resolve(24) == (24,)


def test_a_mapping_builds_the_nested_choices() -> None:
    config = RuntimeConfig.from_mapping(
        {
            'precision': 'bf16',
            'vla': {
                'num_steps': 6,
                'state_prompt': {'mode': 'fixed', 'lengths': [96]},
                'rtc': {'execution_horizon': 12},
                'image_sizes': {'observation.images.front': [480, 640]},
            },
        }
    )
    assert config.vla == VlaConfig(
        num_steps=6,
        state_prompt=StatePromptConfig(mode='fixed', lengths=(96,)),
        rtc=RtcConfig(execution_horizon=12),
        image_sizes={'observation.images.front': (480, 640)},
    )
    assert config.with_changes(precision='fp32').vla == config.vla
    assert len({config, RuntimeConfig()}) == 2


@pytest.mark.parametrize(
    ('values', 'where'),
    [
        ({'steps': 3}, 'vla'),
        ({'rtc': {'horizon': 3}}, 'vla.rtc'),
        ({'state_prompt': {'buckets': [3]}}, 'vla.state_prompt'),
    ],
)
def test_an_unknown_key_is_refused_listing_the_known(values: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match='unknown keys') as refused:
        RuntimeConfig.from_mapping({'vla': values})
    assert refused.value.where == where


def test_something_else_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match='expected a VlaConfig'):
        RuntimeConfig(vla=3)  # type: ignore[arg-type]

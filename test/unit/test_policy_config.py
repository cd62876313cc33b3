"""The user's choices: types, contradictions, and how they meet the checkpoint's."""

from __future__ import annotations

from typing import Any

import pytest
from session_helpers import make_capabilities

from sparkrt_ros.runtime.config import RuntimeConfig, SessionMode, resolve_mode
from sparkrt_ros.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('backend', 'warp'),
        ('backend', None),
        ('precision', 'fp8'),
        ('mode', 'average'),
        ('device', 'gpu'),
        ('device', 'cuda:'),
        ('device', 'cuda:-1'),
        ('device', 'cuda:0 '),
        ('device', 0),
        ('n_action_steps', 0),
        ('n_action_steps', 2.0),
        ('n_action_steps', True),
        ('num_threads', -1),
        ('temporal_ensemble_coeff', float('nan')),
        ('temporal_ensemble_coeff', '0.01'),
        ('temporal_ensemble_coeff', True),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        RuntimeConfig(**{field: value})
    assert refused.value.where == field


@pytest.mark.parametrize('device', ['auto', 'cpu', 'cuda', 'cuda:0', 'cuda:12'])
def test_every_form_of_device_is_taken(device: str) -> None:
    assert RuntimeConfig(device=device).device == device


def test_a_mapping_with_an_unknown_key_is_refused_listing_the_known() -> None:
    with pytest.raises(ConfigError, match=r'unknown keys treads; .*num_threads'):
        RuntimeConfig.from_mapping({'treads': 2})
    assert RuntimeConfig.from_mapping({'num_threads': 2}) == RuntimeConfig(num_threads=2)


def resolve(choices: dict[str, Any], **checkpoint: Any) -> SessionMode:
    return resolve_mode(RuntimeConfig(**choices), make_capabilities(**checkpoint))


QUEUE = SessionMode(name='queue', n_action_steps=3)
ENSEMBLE = SessionMode(name='ensemble', n_action_steps=1, temporal_ensemble_coeff=0.2)
ENSEMBLED = {'temporal_ensemble_coeff': 0.2, 'n_action_steps': 1}


@pytest.mark.parametrize(
    ('choices', 'checkpoint', 'expected'),
    [
        ({}, {}, QUEUE),
        ({}, ENSEMBLED, ENSEMBLE),
        ({'n_action_steps': 1}, ENSEMBLED, ENSEMBLE),
        ({'mode': 'ensemble'}, ENSEMBLED, ENSEMBLE),
        ({'mode': 'rtc'}, {'supports_rtc': True}, SessionMode(name='rtc', n_action_steps=3)),
        ({'mode': 'queue'}, ENSEMBLED, SessionMode(name='queue', n_action_steps=1)),
        ({'mode': 'queue', 'n_action_steps': 3}, ENSEMBLED, QUEUE),
        ({'n_action_steps': 5}, {}, SessionMode(name='queue', n_action_steps=5)),
        ({'temporal_ensemble_coeff': 0.2}, {}, ENSEMBLE),
        ({'temporal_ensemble_coeff': 0.2}, {**ENSEMBLED, 'temporal_ensemble_coeff': 9}, ENSEMBLE),
        ({'temporal_ensemble_coeff': 0, 'mode': 'ensemble'}, {}, None),
    ],
)
def test_choices_and_checkpoint_meet(
    choices: dict[str, Any], checkpoint: dict[str, Any], expected: SessionMode | None
) -> None:
    if expected is None:
        expected = SessionMode(name='ensemble', n_action_steps=1, temporal_ensemble_coeff=0.0)
    assert resolve(choices, **checkpoint) == expected


@pytest.mark.parametrize(
    ('choices', 'checkpoint', 'where'),
    [
        ({'temporal_ensemble_coeff': 0.1, 'n_action_steps': 100}, {}, 'n_action_steps'),
        ({'n_action_steps': 3}, ENSEMBLED, 'n_action_steps'),
        ({'mode': 'ensemble', 'n_action_steps': 2}, ENSEMBLED, 'n_action_steps'),
        ({'mode': 'queue', 'temporal_ensemble_coeff': 0.1}, {}, 'temporal_ensemble_coeff'),
        ({'mode': 'ensemble'}, {}, 'temporal_ensemble_coeff'),
        ({'n_action_steps': 6}, {}, 'n_action_steps'),
        (
            {'mode': 'ensemble', 'temporal_ensemble_coeff': 0.1},
            {'supports_temporal_ensemble': False},
            'mode',
        ),
        ({'mode': 'rtc'}, {}, 'mode'),
        ({'mode': 'rtc'}, {'is_iterative': True}, 'mode'),
        (
            {'mode': 'rtc', 'temporal_ensemble_coeff': 0.1},
            {'supports_rtc': True},
            'temporal_ensemble_coeff',
        ),
    ],
)
def test_a_contradiction_is_refused(
    choices: dict[str, Any], checkpoint: dict[str, Any], where: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(choices, **checkpoint)
    assert refused.value.where == where

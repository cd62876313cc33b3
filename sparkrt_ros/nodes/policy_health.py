"""The rows of /diagnostics about the policy node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkrt_ros.nodes.diagnostics import Health, Level
from sparkrt_ros.nodes.observation_buffer import StreamCounters
from sparkrt_ros.nodes.policy_worker import Figures
from sparkrt_ros.nodes.swap_rules import SwapReport

_LEVELS = {'error': Level.ERROR, 'waiting': Level.WARN}
_PROFILE_VARIABLE = 'FASTDDS_DEFAULT_PROFILES_FILE'
_RECEIPT = (
    'policy',
    'folder',
    'digest',
    'backend',
    'precision',
    'device',
    'device_name',
    'mode',
    'n_action_steps',
    'num_threads',
    'torch',
)


@dataclass(frozen=True, kw_only=True)
class PolicyFacts:
    """Everything the status and the diagnostics of the policy node are made of."""

    state: str
    reason: str
    epoch: int
    swap: SwapReport = field(default_factory=SwapReport)
    receipt: Mapping[str, Any] = field(default_factory=dict)
    load_s: float = 0.0
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    streams: Mapping[str, StreamCounters] = field(default_factory=dict)
    bad_messages: int = 0
    unmatched: tuple[str, ...] = ()
    incompatible: Mapping[str, str] = field(default_factory=dict)
    incompatible_count: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    prompt: str = ''
    prompt_refused: str = ''
    rates_hz: Mapping[str, float] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


def policy_health(facts: PolicyFacts) -> Health:
    """What serves, and whether it works."""
    level = _LEVELS.get(facts.state, Level.OK)
    if facts.state in ('unconfigured', 'inactive') and facts.reason:
        level = Level.ERROR
    return Health(
        name='policy',
        level=level,
        message=f'{facts.state}: {facts.reason}' if facts.reason else facts.state,
        values={
            **{key: facts.receipt[key] for key in _RECEIPT if key in facts.receipt},
            'prompt': facts.prompt,
            **_trust(facts.receipt),
            'epoch': facts.epoch,
            'load time [s]': facts.load_s,
            **{f'{name} [MB]': size / 1e6 for name, size in facts.memory_bytes.items()},
        },
    )


def _trust(receipt: Mapping[str, Any]) -> dict[str, object]:
    """Why this form serves and no other: its gate, and the forms that were refused."""
    values: dict[str, object] = {}
    gate = receipt.get('gate')
    if gate:
        values |= {
            'gate cosine': f'{gate["cosine"]:.7f}',
            'gate largest difference': gate['max_abs'],
        }
    for number, refusal in enumerate(receipt.get('refused', ()), start=1):
        values[f'refused {number}'] = f'{refusal["form"]}: {refusal["reason"]}'
    for kind in ('note', 'warning'):
        for number, text in enumerate(receipt.get(f'{kind}s', ()), start=1):
            values[f'{kind} {number}'] = text
    return values


def swap_health(facts: PolicyFacts) -> Health:
    """What a change of parameters that needs another policy is at, or came to."""
    swap = facts.swap
    failed = swap.state == 'failed'
    return Health(
        name='swap',
        level=Level.WARN if failed else Level.OK,
        message=': '.join(part for part in (swap.state, swap.target, swap.text) if part),
        values={
            'swaps': swap.done,
            'failed': swap.failed,
            'last took [s]': swap.last_s,
        },
    )


def inference_health(facts: PolicyFacts) -> Health:
    """How long inferences take, and how many went wrong."""
    figures = facts.figures
    failing = figures.failures_in_a_row > 0
    return Health(
        name='inference',
        level=Level.ERROR if failing else Level.OK,
        message=f'{figures.failures_in_a_row} failures in a row' if failing else 'ok',
        values={
            'chunks': figures.chunks,
            'withheld after a reset or pause': figures.withheld,
            'failures': figures.failures,
            'p50 [s]': figures.p50_s,
            'p99 [s]': figures.p99_s,
            'preprocess [s]': figures.preprocess_s,
            'model [s]': figures.model_s,
            'postprocess [s]': figures.postprocess_s,
            **{f'{name} [s]': seconds for name, seconds in figures.stages_s.items()},
        },
    )


def observation_health(facts: PolicyFacts) -> Health:
    """Which streams are missing, and what was dropped."""
    missing = [name for name, stream in facts.streams.items() if stream.age_s < 0]
    values: dict[str, object] = {
        'skew [s]': facts.figures.skew_s,
        'refused snapshots': facts.figures.refused,
        'bad messages': facts.bad_messages,
    }
    for name, stream in facts.streams.items():
        values[f'{name} rate [Hz]'] = facts.rates_hz.get(name, 0.0)
        values[f'{name} age [s]'] = stream.age_s
        values[f'{name} received'] = stream.received
        values[f'{name} dropped'] = stream.dropped
    return Health(
        name='observation',
        level=Level.WARN if missing else Level.OK,
        message=f'nothing received: {", ".join(missing)}' if missing else 'ok',
        values=values,
    )


def connection_health(facts: PolicyFacts) -> Health:
    """Whether the middleware delivers: incompatible QoS, nobody there, lost messages."""
    level, message = Level.OK, 'ok'
    if facts.lost:
        level, message = Level.WARN, lost_text(facts.lost)
    if facts.unmatched:
        level, message = Level.WARN, f'no publisher on {", ".join(facts.unmatched)}'
    if facts.silent:
        level, message = Level.WARN, '; '.join(facts.silent.values())
    if facts.incompatible:
        topics = ', '.join(f'{topic} ({policy})' for topic, policy in facts.incompatible.items())
        level, message = Level.ERROR, f'incompatible QoS on {topics}'
    return Health(
        name='connections',
        level=level,
        message=message,
        values={
            'incompatible endpoints': facts.incompatible_count,
            'lost messages': sum(facts.lost.values()),
            **{f'{topic} silent': cause for topic, cause in facts.silent.items()},
        },
    )


def lost_text(lost: Mapping[str, int]) -> str:
    """What was lost between publisher and subscription (topic -> messages), and why."""
    text = f'messages lost on {", ".join(f"{topic} ({count})" for topic, count in lost.items())}'
    if os.environ.get(_PROFILE_VARIABLE):
        return text
    return f'{text}; large images need {_PROFILE_VARIABLE} set to config/fastdds.xml'


HEALTH_ROWS = (
    policy_health,
    inference_health,
    observation_health,
    connection_health,
    swap_health,
)

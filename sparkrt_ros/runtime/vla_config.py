"""Choices that only policies with an instruction and a flow of actions have. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from sparkrt_ros.runtime.errors import ConfigError

SCHEDULES: Mapping[str, float] = MappingProxyType(
    {'uniform': 1.0, 'power1.5': 1.5, 'power2.0': 2.0}
)
"""Name -> exponent p of the times t = ((N - i) / N) ** p; above 1, the last steps are small."""

SOLVERS = ('euler', 'midpoint')
PROMPT_MODES = ('exact', 'fixed')
COMPATIBILITIES = ('0.6', '0.4')
RTC_SCHEDULES = ('linear', 'exp', 'ones', 'zeros')
PROMPT_BUCKETS = (32, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True, kw_only=True)
class StatePromptConfig:
    """How many tokens a prompt takes.

    mode: ``exact`` rounds the length of every prompt up to one of ``lengths``, each of which is
        prepared before the policy acts; ``fixed`` gives all prompts one length. Neither changes
        what the policy computes: what is padded is masked.
    lengths: of exact: as many as wanted, the longest the policy takes is added; empty: every 32.
        Of fixed: one, or none for the longest.
    """

    mode: str = 'exact'
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_choice('state_prompt.mode', self.mode, PROMPT_MODES)
        object.__setattr__(self, 'lengths', tuple(self.lengths))
        if any(type(length) is not int or length < 1 for length in self.lengths):
            _refuse('state_prompt.lengths', self.lengths, 'positive integers')
        if self.mode == 'fixed' and len(self.lengths) > 1:
            _refuse('state_prompt.lengths', self.lengths, "at most one length in mode 'fixed'")

    def resolve(self, longest: int) -> tuple[int, ...]:
        """Return the lengths to prepare for, rising; ``longest`` is the policy's own limit."""
        if self.mode == 'fixed':
            return (min(self.lengths[0], longest) if self.lengths else longest,)
        wanted = self.lengths or PROMPT_BUCKETS
        return (*sorted({length for length in wanted if length < longest}), longest)


@dataclass(frozen=True, kw_only=True)
class RtcConfig:
    """Real-time chunking (arXiv:2506.07339): a chunk that continues the one being played.

    schedule: how the weight of the previous chunk falls from the delay to the horizon.
    max_guidance_weight: upper limit of the pull towards it. execution_horizon: rows it covers.
    """

    schedule: str = 'linear'
    max_guidance_weight: float = 10.0
    execution_horizon: int = 10

    def __post_init__(self) -> None:
        _check_choice('rtc.schedule', self.schedule, RTC_SCHEDULES)
        if not _is_number(self.max_guidance_weight) or self.max_guidance_weight <= 0:
            _refuse('rtc.max_guidance_weight', self.max_guidance_weight, 'a number above 0')
        if type(self.execution_horizon) is not int or self.execution_horizon < 1:
            _refuse('rtc.execution_horizon', self.execution_horizon, 'a positive integer')


@dataclass(frozen=True, kw_only=True)
class VlaConfig:
    """Choices of a user for a vision-language-action policy; None means what the checkpoint says.

    num_steps: denoising steps. schedule: see ``SCHEDULES``. solver: ``euler``, as in training
        frameworks, or ``midpoint``, which asks the network twice per step.
    tokenizer: file or folder, where the checkpoint brings none: ``tokenizer.json`` or a
        SentencePiece model.
    compat: ``0.4`` for a policy trained with LeRobot 0.4, which padded pictures with -3 and the
        state in the prompt to its full size.
    missing_cameras: cameras of the policy that this robot does not have; their place is masked.
    image_sizes: policy key -> (height, width) a camera delivers, where that is not the size in
        ``config.json``; the policy scales pictures itself.
    cfg_beta: classifier-free guidance ``v = v_un + beta * (v_con - v_un)``, where the two
        velocities come from the prompts ``cfg_conditioned`` and ``cfg_unconditioned``, in which
        ``{task}`` stands for the instruction. None: off.
    rtc: None: off, and no chunk can continue another.
    seed: of the noise that actions start from; None: different in every run.
    Raises ConfigError naming the field.
    """

    num_steps: int | None = None
    schedule: str = 'uniform'
    solver: str = 'euler'
    state_prompt: StatePromptConfig = field(default_factory=StatePromptConfig)
    tokenizer: str | None = None
    compat: str = '0.6'
    missing_cameras: tuple[str, ...] = ()
    image_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    cfg_beta: float | None = None
    cfg_conditioned: str = '{task}'
    cfg_unconditioned: str = ''
    rtc: RtcConfig | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_choice('schedule', self.schedule, tuple(SCHEDULES))
        _check_choice('solver', self.solver, SOLVERS)
        _check_choice('compat', self.compat, COMPATIBILITIES)
        if self.num_steps is not None and (type(self.num_steps) is not int or self.num_steps < 1):
            _refuse('num_steps', self.num_steps, 'a positive integer, or None')
        if self.cfg_beta is not None and not _is_number(self.cfg_beta):
            _refuse('cfg_beta', self.cfg_beta, 'a finite number, or None')
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            _refuse('seed', self.seed, 'an integer of at least 0, or None')
        object.__setattr__(self, 'missing_cameras', tuple(self.missing_cameras))
        object.__setattr__(self, 'image_sizes', _sizes(self.image_sizes))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> VlaConfig:
        """Build from a mapping such as a YAML file's; an unknown key is a ConfigError."""
        known = dict(values)
        for name, nested in (('state_prompt', StatePromptConfig), ('rtc', RtcConfig)):
            if isinstance(known.get(name), Mapping):
                _check_keys(nested, known[name], where=f'vla.{name}')
                known[name] = nested(**known[name])
        _check_keys(cls, known, where='vla')
        return cls(**known)


def _check_keys(kind: type[Any], values: Mapping[str, Any], *, where: str) -> None:
    names = [item.name for item in fields(kind)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ConfigError(
            where,
            found=f'unknown keys {", ".join(unknown)}',
            expected=f'keys among {", ".join(names)}',
        )


def _sizes(sizes: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    result = {}
    for key, size in dict(sizes).items():
        pair = tuple(size)
        if len(pair) != 2 or any(type(side) is not int or side < 1 for side in pair):
            _refuse(f'image_sizes.{key}', size, 'a height and a width in pixels')
        result[key] = (pair[0], pair[1])
    return result


def _is_number(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _refuse(name, value, f'one of {", ".join(choices)}')


def _refuse(name: str, found: object, expected: str) -> None:
    raise ConfigError(f'vla.{name}', found=repr(found), expected=expected)

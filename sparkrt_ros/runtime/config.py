"""What a user chooses about how a policy runs. Imports no torch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sparkrt_ros.runtime.backends.backend_config import COMPILE_MODES
from sparkrt_ros.runtime.backends.registry import BACKEND_NAMES
from sparkrt_ros.runtime.environment import read_environment
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.presets import read_preset
from sparkrt_ros.runtime.types import Capabilities
from sparkrt_ros.runtime.vla_config import VlaConfig

PRECISIONS = tuple(TIERS)
BACKENDS = ('auto', *BACKEND_NAMES)
MODES = ('auto', 'queue', 'ensemble', 'rtc')
_DEVICES = re.compile(r'auto|cpu|cuda(:\d+)?')


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """Choices of a user; None means what the checkpoint says.

    backend: how the network is executed. ``auto``: ``cudagraph`` on a CUDA device, ``fused`` on a
        CPU. ``eager`` runs it as written and is what everything else is compared with.
        ``torchcompile`` has it compiled. Where the one asked for cannot serve, the next does,
        and the receipt says why.
    precision: arithmetic of the network; a tier serves only after it has passed its gate.
    compile_mode: of ``torchcompile``.
    device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
    mode: ``queue`` plays the first n_action_steps rows of a chunk and then infers again,
        ``ensemble`` infers at every step and averages over chunks, ``rtc`` is ``queue`` with
        every chunk going on from the rest of the one before (needs ``vla.rtc``), ``auto`` takes
        the one the checkpoint was configured for.
    n_action_steps: rows played per inference in modes queue and rtc, at most the chunk size.
    temporal_ensemble_coeff: above 0 favours older chunks, below 0 newer ones.
    num_threads: CPU threads of torch, for the whole process; None leaves them alone. 0: on a CPU,
        the fastest of a few counts that are tried. Results may differ in their last bits between
        counts, so a run that has to be repeated exactly names one.
    calibration: file of observations of the robot (see ``runtime/observation_file``) for tiers
        that are calibrated (int8), and for gates; empty: synthetic pictures and vectors.
    vla: choices for policies that read an instruction; others take none.
    Raises ConfigError naming the field.
    """

    backend: str = 'auto'
    precision: str = 'fp32'
    device: str = 'auto'
    mode: str = 'auto'
    n_action_steps: int | None = None
    temporal_ensemble_coeff: float | None = None
    num_threads: int | None = None
    compile_mode: str = 'default'
    calibration: str = ''
    vla: VlaConfig = field(default_factory=VlaConfig)

    def __post_init__(self) -> None:
        _check_choice('backend', self.backend, BACKENDS)
        _check_choice('precision', self.precision, PRECISIONS)
        _check_choice('mode', self.mode, MODES)
        _check_choice('compile_mode', self.compile_mode, COMPILE_MODES)
        check_device_name(self.device)
        _check_count('n_action_steps', self.n_action_steps)
        _check_count('num_threads', self.num_threads, least=0)
        _check_coefficient(self.temporal_ensemble_coeff)
        if not isinstance(self.vla, VlaConfig):
            raise ConfigError('vla', found=type(self.vla).__name__, expected='a VlaConfig')

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RuntimeConfig:
        """Build from a mapping such as a YAML file's; an unknown key is a ConfigError."""
        known = [item.name for item in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(
                'runtime configuration',
                found=f'unknown keys {", ".join(unknown)}',
                expected=f'keys among {", ".join(known)}',
            )
        nested = values.get('vla')
        if isinstance(nested, Mapping):
            values = {**values, 'vla': VlaConfig.from_mapping(nested)}
        return cls(**values)

    @classmethod
    def from_preset(cls, name_or_path: str | Path, **changes: Any) -> RuntimeConfig:
        """Build from a preset (see ``runtime/presets``) or a user's YAML file, then ``changes``.

        Raises ConfigError for an unknown name, listing the known ones, and for unknown keys.
        """
        return cls.from_mapping({**read_preset(name_or_path), **changes})

    @classmethod
    def from_env(
        cls, environment: Mapping[str, str] = os.environ, **changes: Any
    ) -> RuntimeConfig:
        """Build from variables such as ``SPARKRT_BACKEND``, then ``changes``.

        Only this reads them. Raises ConfigError for a variable ``SPARKRT_…`` that names no field.
        """
        types = {item.name: str(item.type) for item in fields(cls)}
        return cls.from_mapping({**read_environment(environment, types=types), **changes})

    def with_changes(self, **changes: Any) -> RuntimeConfig:
        """A copy with some fields changed; an unknown one is a ConfigError."""
        return self.from_mapping({**vars(self), **changes})


@dataclass(frozen=True, kw_only=True)
class SessionMode:
    """How a session turns chunks into single actions, with nothing left to choose.

    temporal_ensemble_coeff: None exactly in queue mode. n_action_steps: 1 in ensemble mode.
    """

    name: str
    n_action_steps: int
    temporal_ensemble_coeff: float | None = None


def resolve_mode(config: RuntimeConfig, capabilities: Capabilities) -> SessionMode:
    """Combine the user's choices with the checkpoint's; the user's win.

    Raises ConfigError where two choices contradict each other, or the policy cannot follow one.
    """
    if _wants_ensemble(config, capabilities):
        return _ensemble(config, capabilities)
    if config.temporal_ensemble_coeff is not None:
        raise ConfigError(
            'temporal_ensemble_coeff',
            found=f"{config.temporal_ensemble_coeff} with mode '{_queued(config)}'",
            expected="no coefficient, or mode 'ensemble'",
        )
    if config.mode == 'rtc' and not capabilities.supports_rtc:
        raise _no_rtc(config, capabilities)
    steps = config.n_action_steps or capabilities.n_action_steps
    if steps > capabilities.chunk_size:
        raise ConfigError(
            'n_action_steps',
            found=str(steps),
            expected=f'at most the chunk size of the policy, {capabilities.chunk_size}',
        )
    return SessionMode(name=_queued(config), n_action_steps=steps)


def check_device_name(name: str) -> None:
    """Raise ConfigError unless ``name`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    if not isinstance(name, str) or not _DEVICES.fullmatch(name):
        raise ConfigError('device', found=repr(name), expected="'auto', 'cpu', 'cuda' or 'cuda:N'")


def _wants_ensemble(config: RuntimeConfig, capabilities: Capabilities) -> bool:
    if config.mode != 'auto':
        return config.mode == 'ensemble'
    coefficients = (config.temporal_ensemble_coeff, capabilities.temporal_ensemble_coeff)
    return any(coefficient is not None for coefficient in coefficients)


def _queued(config: RuntimeConfig) -> str:
    return 'rtc' if config.mode == 'rtc' else 'queue'


def _no_rtc(config: RuntimeConfig, capabilities: Capabilities) -> ConfigError:
    kind = capabilities.model_type
    if capabilities.is_iterative:
        return ConfigError(
            'mode',
            found="'rtc', with vla.rtc off",
            expected='vla.rtc, so that a chunk can be told what it goes on from',
            remedy='load the policy with vla.rtc',
        )
    return ConfigError(
        'mode',
        found="'rtc'",
        expected=f"'queue' or 'ensemble': a {kind} policy computes its actions in one go, so that "
        'it cannot be drawn towards the chunk that plays, as policies that start from noise can',
    )


def _ensemble(config: RuntimeConfig, capabilities: Capabilities) -> SessionMode:
    if not capabilities.supports_temporal_ensemble:
        raise ConfigError(
            'mode',
            found="'ensemble'",
            expected=f"'queue': a {capabilities.model_type} policy has no temporal ensembling",
        )
    if config.n_action_steps not in (None, 1):
        raise ConfigError(
            'n_action_steps',
            found=f'{config.n_action_steps} together with temporal ensembling',
            expected='1 or nothing: ensembling infers at every step',
            remedy="set mode to 'queue', or leave n_action_steps out",
        )
    coefficient = config.temporal_ensemble_coeff
    if coefficient is None:
        coefficient = capabilities.temporal_ensemble_coeff
    if coefficient is None:
        raise ConfigError(
            'temporal_ensemble_coeff',
            found='none, neither here nor in the checkpoint',
            expected="a number, for mode 'ensemble'",
            remedy='set temporal_ensemble_coeff (the original ACT uses 0.01)',
        )
    return SessionMode(
        name='ensemble', n_action_steps=1, temporal_ensemble_coeff=float(coefficient)
    )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(name, found=repr(value), expected=f'one of {", ".join(choices)}')


def _check_count(name: str, value: object, *, least: int = 1) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        expected = f'an integer of at least {least}, or None'
        raise ConfigError(name, found=repr(value), expected=expected)


def _check_coefficient(value: object) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value):  # type: ignore[arg-type]
        raise ConfigError(
            'temporal_ensemble_coeff', found=repr(value), expected='a finite number, or None'
        )

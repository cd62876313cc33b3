"""The forms of a policy that are compared: named by the user, loaded as the node does, run alike.

Shapes: ``N`` chunks, ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy, LoadPolicy, load_from_folder, prepare
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS, PolicySettings
from sparkrt_ros.nodes.policy_worker import chunk_actions
from sparkrt_ros.nodes.predictor import continuation_of
from sparkrt_ros.nodes.prompt_rules import check_prompt_fits
from sparkrt_ros.replay.offline import Observed
from sparkrt_ros.replay.result import Arm
from sparkrt_ros.runtime.chunking.prefix import KEPT_CHUNKS, Prefix, PrefixPlan
from sparkrt_ros.runtime.errors import ActionError, ConfigError
from sparkrt_ros.runtime.noise import chunk_noise
from sparkrt_ros.runtime.types import ActionChunk, FloatArray
from sparkrt_ros.runtime.vla_config import RtcConfig


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """What the user asks for; the node's own parameters of the same names.

    threads: CPU threads; 0: all cores but one, as the node does. Every arm of one comparison that
    names none gets the same.
    """

    backend: str = 'auto'
    precision: str = 'fp32'
    device: str = 'auto'
    threads: int = 0

    @classmethod
    def parse(cls, text: str, *, base: ArmSpec | None = None) -> ArmSpec:
        """Read ``backend=cudagraph,precision=bf16``; what is not named is that of ``base``.

        Raises ConfigError for an unknown or repeated key, and for a value that cannot be.
        """
        base = cls() if base is None else base
        changes: dict[str, Any] = {}
        for part in filter(None, text.split(',')):
            key, separator, value = (piece.strip() for piece in part.partition('='))
            if not separator or key not in {f.name for f in fields(cls)} or key in changes:
                known = ', '.join(f'{f.name}=…' for f in fields(cls))
                raise ConfigError(
                    f'arm {text!r}', found=repr(part), expected=f'each at most once: {known}'
                )
            changes[key] = value
        if 'threads' in changes:
            changes['threads'] = _integer(changes['threads'], where=f'arm {text!r}')
        spec = replace(base, **changes)
        known_specs = {parameter.name: parameter for parameter in POLICY_PARAMETERS}
        for name, value in vars(spec).items():
            known_specs[name].check(value)
        return spec

    def __str__(self) -> str:
        parts = [self.backend, self.precision]
        parts += [self.device] if self.device != 'auto' else []
        parts += [f'{self.threads} threads'] if self.threads else []
        return ', '.join(parts)


class RunningArm:
    """One loaded form of the policy, and what it has computed so far. One thread.

    faults: why chunks are NaN, by text. horizon: rows that a chunk is drawn towards the one
    before, where the mode is rtc.
    """

    def __init__(
        self,
        spec: ArmSpec,
        loaded: LoadedPolicy,
        *,
        label: str,
        horizon: int = RtcConfig().execution_horizon,
    ) -> None:
        self.spec, self.loaded, self.label = spec, loaded, label
        self._horizon = horizon
        self._sent: dict[int, FloatArray] = {}
        self.faults: dict[str, int] = {}
        self._normalized: list[FloatArray] = []
        self._actions: list[FloatArray] = []
        self._times_s: list[float] = []
        self._epoch: int | None = None
        needs = loaded.capabilities
        self._none = np.full((needs.chunk_size, needs.action_size), np.nan, dtype=np.float32)

    @property
    def served(self) -> tuple[str, str]:
        """Backend and precision that really compute."""
        return self.loaded.receipt['backend'], self.loaded.receipt['precision']

    @property
    def not_as_asked(self) -> str:
        """Why something else than was asked for serves; empty where it is as asked."""
        backend, precision = self.served
        if self.spec.backend in ('auto', backend) and self.spec.precision == precision:
            return ''
        reasons = [f'{r["form"]}: {r["reason"]}' for r in self.loaded.receipt['refused']]
        return f'{self.spec} does not serve here, {backend}, {precision} does: ' + '; '.join(
            reasons
        )

    @property
    def newest(self) -> FloatArray:
        """The last chunk (T, A), in model space."""
        return self._normalized[-1]

    @property
    def no_actions(self) -> FloatArray:
        """(T, A) NaN, in place of actions that are not known."""
        return self._none

    @property
    def newest_actions(self) -> FloatArray:
        """The last chunk (T, A) as the node publishes it; NaN where it would refuse to."""
        return self._actions[-1]

    @property
    def normalized(self) -> list[FloatArray]:
        """All chunks in model space."""
        return self._normalized

    def noise(self, seed: int, number: int) -> FloatArray | None:
        """What chunk ``number``, counted from 0, starts from; None for a policy without noise."""
        return chunk_noise(seed, number, self.loaded.capabilities.noise_shape)

    def infer(self, observed: Observed, *, noise: FloatArray | None) -> None:
        """Do what the node does with one observation, from pictures to the actions of a chunk.

        Actions that the node would refuse to publish become NaN.
        """
        policy, contract = self.loaded.policy, self.loaded.contract
        self._prepare(observed)
        start_s = time.perf_counter()
        try:
            normalized, rows = policy.predict_both(
                observed.observation,
                noise=self._noise_tensor(noise),
                **self._continuation(observed.prefix),
            )
            actions = chunk_actions(rows, contract)
        except ActionError as error:
            self.faults[str(error)] = self.faults.get(str(error), 0) + 1
            normalized = actions = self._none
        self._times_s.append(time.perf_counter() - start_s)
        self._normalized.append(normalized)
        self._actions.append(actions)
        self.note_sent(observed.chunk.chunk_id, actions)

    def note_sent(self, chunk_id: int, actions: FloatArray) -> None:
        """What the node would have published under this number; later chunks may go on from it."""
        self._sent[chunk_id] = actions
        self._sent.pop(chunk_id - KEPT_CHUNKS, None)

    def chunks(self, observed: list[ActionChunk]) -> list[ActionChunk]:
        """What the node would have published: these chunks with this arm's actions."""
        return [
            replace(chunk, actions=actions)
            for chunk, actions in zip(observed, self._actions, strict=True)
        ]

    def result(self) -> Arm:
        """Everything computed, in the units in which it leaves the node."""
        return Arm(
            label=self.label,
            normalized=np.stack(self._normalized),
            actions=np.stack(self._actions).astype(np.float64),
            inference_s=np.array(self._times_s, dtype=np.float64),
            receipt=self.loaded.receipt,
        )

    def close(self) -> None:
        self.loaded.policy.close()

    def _prepare(self, observed: Observed) -> None:
        """Threads belong to the process, so each arm sets its own; an epoch begins an episode."""
        import torch

        threads = self.loaded.receipt['num_threads']
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if observed.chunk.epoch != self._epoch:
            self._epoch = observed.chunk.epoch
            self.loaded.policy.reset()

    def _continuation(self, plan: PrefixPlan | None) -> dict[str, Any]:
        """What the node hands over: the rest of this arm's own chunk."""
        if plan is None:
            return {}
        actions = plan.actions(self._sent)
        if not np.isfinite(actions).all():
            return {}  # of a chunk that the node would not have published
        prefix = Prefix(actions=actions, plan=plan)
        contract = self.loaded.contract
        return {'continuation': continuation_of(prefix, contract, horizon=self._horizon)}

    def _noise_tensor(self, noise: FloatArray | None) -> Any:
        if noise is None:
            return None
        import torch

        return torch.from_numpy(noise)


def load_arm(
    spec: ArmSpec,
    *,
    values: Mapping[str, Value],
    contract: RobotContract,
    taken: frozenset[str] = frozenset(),
    load: LoadPolicy = load_from_folder,
) -> RunningArm:
    """Load, check and warm up one form, exactly as the policy node configures.

    values: parameters of the node. taken: labels in use. Raises what ``prepare`` raises.
    """
    settings = PolicySettings.of({**values, **vars(spec)})
    loaded = prepare(settings, contract, load=load)
    label = str(spec)
    backend, precision = loaded.receipt['backend'], loaded.receipt['precision']
    if (backend, precision) != (spec.backend, spec.precision):
        label = f'{label} ({backend}, {precision})'
    number = 2
    while label in taken:
        label, number = f'{label.removesuffix(f" #{number - 1}")} #{number}', number + 1
    horizon = values['chunking.execution_horizon']
    assert isinstance(horizon, int)
    return RunningArm(spec, loaded, label=label, horizon=horizon)


def check_replayable(loaded: LoadedPolicy, values: Mapping[str, Value], *, without: str) -> None:
    """Raise ConfigError for a policy that cannot be replayed with these parameters.

    without: what of the command line cannot do with chunks that go on from each other; empty:
        nothing was asked for that cannot.
    """
    check_prompt_fits(str(values['prompt']), loaded)
    if without and loaded.receipt['mode'] == 'rtc':
        raise ConfigError(
            'chunking.mode',
            found=f"'rtc' with {without}",
            expected='a mode in which a chunk follows from its observation alone',
            remedy=f'add --set chunking.mode=queue, or leave {without} out',
        )


def node_values(changes: Mapping[str, Value]) -> dict[str, Value]:
    """The policy node's parameters: their defaults, and ``changes``, checked as the node does.

    Raises ConfigError for an unknown name or an impossible value.
    """
    specs = {spec.name: spec for spec in POLICY_PARAMETERS}
    values: dict[str, Value] = {name: spec.default for name, spec in specs.items()}
    for name, value in changes.items():
        if name not in specs:
            raise ConfigError(
                f'parameter {name!r}',
                found='no such parameter of the policy node',
                expected=f'one of {", ".join(specs)}',
            )
        values[name] = specs[name].check(value)
    return values


def _integer(text: str, *, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(where, found=f'threads={text}', expected='an integer') from None

"""A policy that is loaded, fits its robot and is warm. Made and used in the inference thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkrt_ros.convert.contract import PolicyBinding, RobotContract, check_contract
from sparkrt_ros.nodes.load_config import load_config
from sparkrt_ros.nodes.policy_parameters import PolicySettings
from sparkrt_ros.runtime.build_watch import UNWATCHED, BuildWatch
from sparkrt_ros.runtime.config import resolve_mode
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import Capabilities

if TYPE_CHECKING:
    from sparkrt_ros.runtime.policy import Policy

LoadPolicy = Callable[..., Any]
REHEARSALS = 3


@dataclass(frozen=True, kw_only=True)
class LoadedPolicy:
    """load_s: from the request to the warm policy. receipt: what serves, for people.

    capabilities: of the checkpoint; how its chunks are used is in the receipt. memory_bytes: see
    ``Policy.memory_bytes``, once it was warm.
    """

    policy: Policy
    capabilities: Capabilities
    contract: RobotContract
    binding: PolicyBinding
    settings: PolicySettings
    receipt: dict[str, Any]
    load_s: float
    memory_bytes: Mapping[str, int] = field(default_factory=dict)

    def with_settings(self, settings: PolicySettings) -> LoadedPolicy:
        """The same policy, its chunks used as ``settings`` say; ConfigError where it cannot be."""
        mode = resolve_mode(settings.config, self.capabilities)
        chosen: dict[str, Any] = {
            'mode': mode.name,
            'n_action_steps': mode.n_action_steps,
            'temporal_ensemble_coeff': mode.temporal_ensemble_coeff,
        }
        if settings.cfg_beta is not None:
            chosen['vla'] = {**self.receipt['vla'], 'cfg_beta': settings.cfg_beta}
        return replace(self, settings=settings, receipt={**self.receipt, **chosen})


def load_libraries(device_name: str, precision: str) -> None:
    """Import torch and start the device before a policy is asked for; see ``start_device``."""
    from sparkrt_ros.runtime.preload import start_device

    start_device(device_name, precision)


def load_from_folder(folder: Path, **options: Any) -> Policy:
    """``load_policy``, importing torch only now, in the thread that will own it."""
    from sparkrt_ros.runtime.policy import load_policy

    return load_policy(folder, **options)


def prepare(
    settings: PolicySettings,
    contract: RobotContract,
    *,
    load: LoadPolicy = load_from_folder,
    watch: BuildWatch = UNWATCHED,
    prompt: str = '',
) -> LoadedPolicy:
    """Load, compare with the robot, warm up.

    prompt: an instruction that it has to be able to act by; empty: none is known yet.
    Raises CheckpointError, ContractError, ConfigError or BackendError; nothing stays loaded then.
    """
    start_s = time.perf_counter()
    folder = policy_folder(settings)
    policy = load(folder, config=load_config(folder, settings, contract), watch=watch)
    try:
        binding = check_contract(contract, policy.capabilities)
        resolve_mode(settings.config, policy.capabilities)
        if prompt and policy.capabilities.requires_task:
            policy.check_task(prompt)
        watch.stage('warming')
        policy.warm_up()
    except BaseException:
        policy.close()
        raise
    loaded = LoadedPolicy(
        policy=policy,
        capabilities=policy.capabilities,
        contract=contract,
        binding=binding,
        settings=settings,
        receipt=policy.receipt,
        load_s=time.perf_counter() - start_s,
        memory_bytes=policy.memory_bytes,
    )
    return loaded.with_settings(settings)


def rehearse(loaded: LoadedPolicy) -> tuple[float, ...]:
    """Infer a few times as it will be done in earnest; the seconds each took.

    Raises ActionError for a policy whose output is not finite.
    """
    from sparkrt_ros.runtime.parity import probe_observations

    times_s = []
    for observation in probe_observations(loaded.capabilities, count=REHEARSALS):
        start_s = time.perf_counter()
        loaded.policy.predict_chunk(observation)
        times_s.append(time.perf_counter() - start_s)
    loaded.policy.reset()
    return tuple(times_s)


def free_leftovers() -> None:
    """Give back the memory of a policy that was given up half-way."""
    from sparkrt_ros.runtime.policy import free_memory

    free_memory()


def policy_folder(settings: PolicySettings) -> Path:
    """The folder of the policy. Raises ConfigError where none is named."""
    if not settings.checkpoint:
        raise ConfigError(
            "parameter 'checkpoint'",
            found='nothing',
            expected='the folder of a trained policy',
            remedy='set it to a folder with config.json and model.safetensors',
        )
    return Path(settings.checkpoint).expanduser()

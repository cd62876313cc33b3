"""A policy that is loaded, fits its robot and is warm. Made and used in the inference thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkrt_ros.convert.contract import PolicyBinding, RobotContract, check_contract
from sparkrt_ros.nodes.policy_parameters import PolicySettings
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import Capabilities

if TYPE_CHECKING:
    from sparkrt_ros.runtime.policy import Policy

LoadPolicy = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class LoadedPolicy:
    """load_s: from the request to the warm policy. receipt: what serves, for people."""

    policy: Policy
    capabilities: Capabilities
    contract: RobotContract
    binding: PolicyBinding
    settings: PolicySettings
    receipt: dict[str, Any]
    load_s: float


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
) -> LoadedPolicy:
    """Load, compare with the robot, warm up.

    Raises CheckpointError, ContractError, ConfigError or BackendError; nothing stays loaded then.
    """
    if not settings.checkpoint:
        raise ConfigError(
            "parameter 'checkpoint'",
            found='nothing',
            expected='the folder of a trained policy',
            remedy='set it to a folder with config.json and model.safetensors',
        )
    start_s = time.perf_counter()
    policy = load(Path(settings.checkpoint).expanduser(), config=settings.config)
    try:
        binding = check_contract(contract, policy.capabilities)
        policy.warm_up()
    except BaseException:
        policy.close()
        raise
    return LoadedPolicy(
        policy=policy,
        capabilities=policy.capabilities,
        contract=contract,
        binding=binding,
        settings=settings,
        receipt=policy.receipt,
        load_s=time.perf_counter() - start_s,
    )

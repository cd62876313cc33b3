"""What is known of a policy before its weights are read, in milliseconds."""

from __future__ import annotations

from pathlib import Path

from sparkrt_ros.runtime.checkpoint.load import describe_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig, resolve_mode
from sparkrt_ros.runtime.device import resolve_device
from sparkrt_ros.runtime.policies.registry import capabilities_of, check_choices
from sparkrt_ros.runtime.types import Capabilities


def expected_capabilities(folder: Path | str, *, config: RuntimeConfig) -> Capabilities:
    """What ``load_policy`` would yield, as far as that can be told without the weights' values.

    Raises ConfigError and CheckpointError as ``load_policy`` would for devices, folders, files,
    shapes and choices; not for damaged weights, lack of memory or a gate that fails.
    """
    resolve_device(config.device)
    description = describe_checkpoint(folder, with_digest=False)
    capabilities = capabilities_of(description.config, vla=config.vla)
    resolve_mode(config, capabilities)
    return capabilities


def check_same_folder(capabilities: Capabilities, *, config: RuntimeConfig) -> None:
    """As ``expected_capabilities``, for a folder that is loaded already, with other choices."""
    resolve_device(config.device)
    check_choices(capabilities.model_type, config.vla)
    resolve_mode(config, capabilities)

"""With which choices a policy is loaded, once it is known what kind it is and for which robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.policy_parameters import PolicySettings
from sparkrt_ros.runtime.checkpoint.config_file import read_config
from sparkrt_ros.runtime.checkpoint.features import PolicyConfig
from sparkrt_ros.runtime.checkpoint.files import CONFIG_FILE
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.vla_config import RtcConfig


def load_config(folder: Path, settings: PolicySettings, contract: RobotContract) -> RuntimeConfig:
    """What ``load_policy`` gets for this folder.

    A policy that can continue chunks is always made so that it may: whether it does is told with
    each inference, so that the mode can be switched while it serves.
    Raises CheckpointError for a configuration that cannot be read, and ConfigError for choices
    that this kind of policy does not have.
    """
    config = settings.to_load.config
    if not (folder / CONFIG_FILE).is_file():
        return config  # loading says what is wrong with the folder
    policy, _ = read_config(folder)
    from_contract = settings.image_sizes == 'contract'
    if not policy.reads_instruction:
        if from_contract:
            raise ConfigError(
                "parameter 'vla.image_sizes'",
                found=f"'contract' for a {policy.model_type} policy",
                expected="'checkpoint': only Pi0.5 and Pi0 scale pictures themselves",
                remedy='set crop and resize in the robot contract as in training',
            )
        return config
    vla = replace(config.vla, rtc=config.vla.rtc or RtcConfig())
    if from_contract:
        vla = replace(vla, image_sizes=_sizes(policy, contract))
    return config.with_changes(vla=vla)


def _sizes(policy: PolicyConfig, contract: RobotContract) -> dict[str, tuple[int, int]]:
    """Policy key -> (height, width) of every camera whose size the contract tells."""
    sizes = {}
    for camera in contract.cameras:
        if camera.key in policy.image_features and camera.output_size is not None:
            width, height = camera.output_size
            sizes[camera.key] = (height, width)
    return sizes

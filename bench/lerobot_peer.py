"""LeRobot's own ACT policy with random weights; imported only where LeRobot is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.act.processor_act import make_act_pre_post_processors


def lerobot_folder(folder: Path, *, small: bool, device: torch.device) -> Any:
    """Build LeRobot's policy with seeded random weights and save it whole; return all three."""
    height, width, joints = (96, 128, 6) if small else (480, 640, 14)
    visual = PolicyFeature(type=FeatureType.VISUAL, shape=(3, height, width))
    inputs = {f'observation.images.{name}': visual for name in ('front', 'wrist')}
    inputs['observation.state'] = PolicyFeature(type=FeatureType.STATE, shape=(joints,))
    outputs = {'action': PolicyFeature(type=FeatureType.ACTION, shape=(joints,))}
    sizes: dict[str, Any] = {'chunk_size': 100, 'n_action_steps': 100}
    if small:
        sizes = {'chunk_size': 20, 'n_action_steps': 20, 'dim_model': 64, 'n_heads': 4}
        sizes |= {'dim_feedforward': 128, 'n_encoder_layers': 2}
    torch.manual_seed(0)
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        pretrained_backbone_weights=None,
        use_vae=True,
        device=str(device),
        push_to_hub=False,
        **sizes,
    )
    policy = ACTPolicy(config).to(device).eval()
    pre, post = make_act_pre_post_processors(config, _statistics(config))
    policy.save_pretrained(folder)
    pre.save_pretrained(folder)
    post.save_pretrained(folder)
    return policy, pre, post


def _statistics(config: ACTConfig) -> dict[str, dict[str, torch.Tensor]]:
    """Plausible means and deviations of every feature."""
    statistics = {}
    for key, feature in {**config.input_features, **config.output_features}.items():
        image = feature.type is FeatureType.VISUAL
        shape = (3, 1, 1) if image else tuple(feature.shape)
        mean, std = (0.45, 0.25) if image else (0.0, 1.0)
        statistics[key] = {'mean': torch.full(shape, mean), 'std': torch.full(shape, std)}
    return statistics


def compiled_copy(policy: Any, device: torch.device) -> Any:
    """The same LeRobot policy with its network compiled; the weights are shared."""
    other = copy.copy(policy)
    other._modules = dict(policy._modules)
    mode = 'reduce-overhead' if device.type == 'cuda' else 'default'
    other.model = torch.compile(policy.model, mode=mode)
    return other

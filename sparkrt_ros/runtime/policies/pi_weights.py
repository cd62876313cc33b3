"""Weights of a Pi0 or Pi0.5 file into the network, one tensor at a time.

The network begins without memory and the file is mapped, so that loading needs room for one copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.checkpoint.pi_tensors import (
    EMBEDDING,
    EXPERT_PREFIX,
    LANGUAGE_PREFIX,
    PROJECTOR_PREFIX,
    UNREAD_WEIGHTS,
    VISION_PREFIX,
)
from sparkrt_ros.runtime.policies.pi0 import Pi0Network
from sparkrt_ros.runtime.policies.pi05 import Pi05Network
from sparkrt_ros.runtime.policies.pi_network import PiNetwork
from sparkrt_ros.runtime.policies.weights import check_value, is_ignored, refuse_keys

NETWORKS: Mapping[str, type[PiNetwork]] = {'pi0': Pi0Network, 'pi05': Pi05Network}
"""By the type of the policy."""

_PREFIXES = (
    (VISION_PREFIX, 'vision.'),
    (PROJECTOR_PREFIX, 'projector.'),
    (LANGUAGE_PREFIX, 'language.'),
    (EXPERT_PREFIX, 'expert.'),
)


def network_name(name: str) -> str:
    """What the network calls the weight that LeRobot saves as ``name``."""
    if name == EMBEDDING:
        return 'embed_tokens.weight'
    for theirs, ours in _PREFIXES:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def load_network(
    config: PiConfig,
    weights: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    exact_text_scale: bool = False,
    where: str = 'model.safetensors',
) -> PiNetwork:
    """Build the network of ``config`` on ``device`` with these weights, ready for inference.

    weights: by LeRobot's names, see ``pi_tensors.arrange_names``; of any floating-point type.
    dtype, exact_text_scale: see PiNetwork.
    Raises CheckpointError, naming them, for weights that are missing, unexpected, of another
    shape or not floating-point.
    """
    with torch.device('meta'):
        network = NETWORKS[config.model_type](
            config, dtype=dtype, exact_text_scale=exact_text_scale
        )
    own = dict(network.named_parameters())
    sources = {network_name(key): key for key in weights if not is_ignored(key, UNREAD_WEIGHTS)}
    refuse_keys(where, 'missing', own.keys() - sources.keys(), total=len(own))
    refuse_keys(where, 'unexpected', sources.keys() - own.keys(), total=len(own))
    filled = {}
    for name, empty in own.items():
        value = weights[sources[name]]
        check_value(f'{where}, {sources[name]}', value, shape=empty.shape)
        # First to the device, which casts faster. On a CPU this copies, out of the mapped file.
        moved = value.to(device, copy=True)
        filled[name] = moved.to(empty.dtype)
    network.load_state_dict(filled, assign=True)
    network.frequencies = network.frequencies.to(device)
    return network.eval().requires_grad_(requires_grad=False)


def recast(network: PiNetwork, *, dtype: torch.dtype) -> PiNetwork:
    """The same network with decoders in ``dtype``; whatever needs no cast is shared."""
    with torch.device('meta'):
        other = type(network)(network.config, dtype=dtype)
    other.text_scale = network.text_scale
    wanted = {name: value.dtype for name, value in other.named_parameters()}
    cast = {name: value.to(wanted[name]) for name, value in network.named_parameters()}
    other.load_state_dict(cast, assign=True)
    other.frequencies = network.frequencies
    return other.eval().requires_grad_(requires_grad=False)

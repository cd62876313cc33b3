"""The tensors of an ACT policy whose shapes follow from its configuration. Imports no torch.

Checked from the header of the weight file, before anything is allocated. That every tensor is
there and none is unexpected is checked where the model is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparkrt_ros.runtime.checkpoint.config import BASIC_BLOCK_BACKBONES, ActConfig
from sparkrt_ros.runtime.checkpoint.safetensors_file import TensorInfo
from sparkrt_ros.runtime.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]


def configured_shapes(config: ActConfig) -> Shapes:
    """Return name -> shape of the tensors that the configuration sizes, without ``model.``."""
    width, hidden = config.dim_model, config.dim_feedforward
    state, environment = config.robot_state_feature, config.env_state_feature
    actions = config.action_feature.shape[0]
    shapes: Shapes = {
        'encoder_latent_input_proj.weight': (width, config.latent_dim),
        'decoder_pos_embed.weight': (config.chunk_size, width),
        'action_head.weight': (actions, width),
        'action_head.bias': (actions,),
    }
    for number in range(config.n_encoder_layers):
        shapes[f'encoder.layers.{number}.linear1.weight'] = (hidden, width)
    for number in range(config.n_decoder_layers):
        shapes[f'decoder.layers.{number}.linear1.weight'] = (hidden, width)
    tokens = 1
    for name, spec in (('robot', state), ('env', environment)):
        if spec is not None:
            shapes[f'encoder_{name}_state_input_proj.weight'] = (width, spec.shape[0])
            tokens += 1
    shapes['encoder_1d_feature_pos_embed.weight'] = (tokens, width)
    if config.image_features:
        channels = 512 if config.vision_backbone in BASIC_BLOCK_BACKBONES else 2048
        shapes['encoder_img_feat_input_proj.weight'] = (width, channels, 1, 1)
    return shapes


def check_shapes(config: ActConfig, tensors: Mapping[str, TensorInfo], *, file: Path) -> None:
    """Raise ``CheckpointError`` naming the first tensor that does not fit ``config``.

    tensors: by name without ``model.``.
    """
    for name, expected in configured_shapes(config).items():
        info = tensors.get(name)
        if info is None:
            raise CheckpointError(
                f'{file}: model.{name}',
                found=f'no such tensor among {len(tensors)}',
                expected=f'shape {expected}',
                remedy='the weights do not belong to this config.json: copy both from one save',
            )
        if info.shape != expected:
            raise CheckpointError(
                f'{file}: model.{name}',
                found=f'shape {info.shape}',
                expected=f'shape {expected}, which config.json implies',
                remedy='the weights do not belong to this config.json: copy both from one save',
            )

"""Writes small but complete LeRobot ACT folders with random weights, for tests.

The tensor names and shapes are those LeRobot 0.6.1 saves (training-only VAE tensors included).
Needs numpy and safetensors only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sparkrt_ros.runtime.checkpoint.config import (
    ActConfig,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
    features_to_json,
)

Shapes = dict[str, tuple[int, ...]]
Stats = Mapping[str, Mapping[str, np.ndarray]]

RESNET_BLOCKS = {
    'resnet18': (2, 2, 2, 2),
    'resnet34': (3, 4, 6, 3),
    'resnet50': (3, 4, 6, 3),
}
STATISTICS_OF_MODE = {
    NormalizationMode.IDENTITY: (),
    NormalizationMode.MEAN_STD: ('mean', 'std'),
    NormalizationMode.MIN_MAX: ('min', 'max'),
    NormalizationMode.QUANTILES: ('q01', 'q99'),
    NormalizationMode.QUANTILE10: ('q10', 'q90'),
}


def feature(key: str, kind: str, *shape: int) -> FeatureSpec:
    return FeatureSpec(key=key, type=FeatureType(kind), shape=shape)


def features(*specs: FeatureSpec) -> dict[str, FeatureSpec]:
    return {spec.key: spec for spec in specs}


def tiny_config(**changes: Any) -> ActConfig:
    """Two 64x64 cameras, 5 joints, chunks of 8 rows of which 4 are used, width 32."""
    config = ActConfig(
        input_features=features(
            feature('observation.images.front', 'VISUAL', 3, 64, 64),
            feature('observation.images.wrist', 'VISUAL', 3, 64, 64),
            feature('observation.state', 'STATE', 5),
        ),
        output_features=features(feature('action', 'ACTION', 5)),
        chunk_size=8,
        n_action_steps=4,
        dim_model=32,
        n_heads=4,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
    )
    return dataclasses.replace(config, **changes)


def _norm(prefix: str, width: int) -> Shapes:
    names = ('weight', 'bias', 'running_mean', 'running_var')
    return {f'{prefix}.{name}': (width,) for name in names}


def _affine(prefix: str, outputs: int, *inputs: int) -> Shapes:
    return {f'{prefix}.weight': (outputs, *inputs), f'{prefix}.bias': (outputs,)}


def backbone_shapes(name: str) -> Shapes:
    """Tensor names and shapes of a resnet up to layer4, without the ``backbone.`` prefix."""
    bottleneck = name == 'resnet50'
    expansion = 4 if bottleneck else 1
    shapes: Shapes = {'conv1.weight': (64, 3, 7, 7), **_norm('bn1', 64)}
    inputs = 64
    for stage, count in enumerate(RESNET_BLOCKS[name]):
        width = 64 * 2**stage
        for block in range(count):
            at = f'layer{stage + 1}.{block}'
            kernels = [(width, inputs, 1), (width, width, 3), (width * 4, width, 1)]
            if not bottleneck:
                kernels = [(width, inputs, 3), (width, width, 3)]
            for number, (out, into, size) in enumerate(kernels, start=1):
                shapes[f'{at}.conv{number}.weight'] = (out, into, size, size)
                shapes |= _norm(f'{at}.bn{number}', out)
            if inputs != width * expansion:
                shapes[f'{at}.downsample.0.weight'] = (width * expansion, inputs, 1, 1)
                shapes |= _norm(f'{at}.downsample.1', width * expansion)
            inputs = width * expansion
    return shapes


def _attention(prefix: str, width: int) -> Shapes:
    return {
        f'{prefix}.in_proj_weight': (3 * width, width),
        f'{prefix}.in_proj_bias': (3 * width,),
        **_affine(f'{prefix}.out_proj', width, width),
    }


def _layer(prefix: str, config: ActConfig, *, decoder: bool) -> Shapes:
    width, hidden = config.dim_model, config.dim_feedforward
    shapes = _attention(f'{prefix}.self_attn', width)
    if decoder:
        shapes |= _attention(f'{prefix}.multihead_attn', width)
    shapes |= _affine(f'{prefix}.linear1', hidden, width)
    shapes |= _affine(f'{prefix}.linear2', width, hidden)
    for number in range(1, 4 if decoder else 3):
        shapes |= _affine(f'{prefix}.norm{number}', width)
    return shapes


def _vae_shapes(config: ActConfig) -> Shapes:
    width = config.dim_model
    shapes: Shapes = {'vae_encoder_cls_embed.weight': (1, width)}
    for index in range(config.n_vae_encoder_layers):
        shapes |= _layer(f'vae_encoder.layers.{index}', config, decoder=False)
    if config.pre_norm:
        shapes |= _affine('vae_encoder.norm', width)
    tokens = 1 + config.chunk_size
    if config.robot_state_feature is not None:
        size = config.robot_state_feature.shape[0]
        shapes |= _affine('vae_encoder_robot_state_input_proj', width, size)
        tokens += 1
    shapes |= _affine('vae_encoder_action_input_proj', width, config.action_feature.shape[0])
    shapes |= _affine('vae_encoder_latent_output_proj', 2 * config.latent_dim, width)
    shapes['vae_encoder_pos_enc'] = (1, tokens, width)
    return shapes


def act_shapes(config: ActConfig) -> Shapes:
    """Every tensor LeRobot saves for ``config``, without the ``model.`` prefix."""
    width = config.dim_model
    shapes = _vae_shapes(config) if config.use_vae else {}
    if config.image_features:
        backbone = backbone_shapes(config.vision_backbone)
        shapes |= {f'backbone.{key}': shape for key, shape in backbone.items()}
        channels = 2048 if config.vision_backbone == 'resnet50' else 512
        shapes |= _affine('encoder_img_feat_input_proj', width, channels, 1, 1)
    for index in range(config.n_encoder_layers):
        shapes |= _layer(f'encoder.layers.{index}', config, decoder=False)
    if config.pre_norm:
        shapes |= _affine('encoder.norm', width)
    for index in range(config.n_decoder_layers):
        shapes |= _layer(f'decoder.layers.{index}', config, decoder=True)
    shapes |= _affine('decoder.norm', width)
    vectors = {
        'encoder_robot_state_input_proj': config.robot_state_feature,
        'encoder_env_state_input_proj': config.env_state_feature,
    }
    present = {name: spec for name, spec in vectors.items() if spec is not None}
    for name, spec in present.items():
        shapes |= _affine(name, width, spec.shape[0])
    shapes |= _affine('encoder_latent_input_proj', width, config.latent_dim)
    shapes['encoder_1d_feature_pos_embed.weight'] = (1 + len(present), width)
    shapes['decoder_pos_embed.weight'] = (config.chunk_size, width)
    shapes |= _affine('action_head', config.action_feature.shape[0], width)
    return shapes


def random_weights(config: ActConfig, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a scale that keeps activations finite, named as LeRobot saves them."""
    rng = np.random.default_rng(seed)
    weights = {}
    for key, shape in sorted(act_shapes(config).items()):
        value = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) > 1:
            value /= np.float32(np.sqrt(np.prod(shape[1:])))
        else:
            value *= np.float32(0.05)
            is_norm_weight = 'norm' in key or '.bn' in key or 'downsample.1' in key
            if key.endswith('running_var') or (is_norm_weight and key.endswith('weight')):
                value += np.float32(1.0)
        weights[f'model.{key}'] = value
    return weights


def random_statistics(config: ActConfig, *, seed: int = 1) -> dict[str, dict[str, np.ndarray]]:
    """Every statistic LeRobot may store, for every feature; images as (3, 1, 1) in [0, 1]."""
    rng = np.random.default_rng(seed)
    statistics = {}
    for spec in (*config.input_features.values(), *config.output_features.values()):
        image = spec.type is FeatureType.VISUAL
        shape = (spec.shape[0], 1, 1) if image else spec.shape
        mean = rng.uniform(0.3, 0.6, shape) if image else rng.uniform(-1.0, 1.0, shape)
        std = rng.uniform(0.1, 0.3, shape)
        names = {'mean': 0.0, 'min': -3.0, 'max': 3.0, 'q01': -2.3, 'q99': 2.3}
        names |= {'q10': -1.3, 'q50': 0.0, 'q90': 1.3}
        values = {name: (mean + factor * std).astype(np.float32) for name, factor in names.items()}
        values['std'] = std.astype(np.float32)
        values['count'] = np.array([1000], dtype=np.int64)
        statistics[spec.key] = values
    return statistics


def pipelines(
    config: ActConfig, *, rename_map: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two processor files LeRobot writes for ACT, as dictionaries."""
    modes = {kind.value: mode.value for kind, mode in config.normalization_mapping.items()}
    every = {**config.input_features, **config.output_features}
    device = {
        'registry_name': 'device_processor',
        'config': {'device': 'cpu', 'float_dtype': None},
    }
    pre_state = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
    post_state = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
    normalizer = {'eps': 1e-8, 'features': features_to_json(every), 'norm_map': modes}
    unnormalizer = dict(normalizer, features=features_to_json(config.output_features))
    pre_steps = [
        {
            'registry_name': 'rename_observations_processor',
            'config': {'rename_map': dict(rename_map or {})},
        },
        {'registry_name': 'to_batch_processor', 'config': {}},
        device,
        {
            'registry_name': 'normalizer_processor',
            'config': normalizer,
            'state_file': pre_state,
        },
    ]
    post_steps = [
        {
            'registry_name': 'unnormalizer_processor',
            'config': unnormalizer,
            'state_file': post_state,
        },
        device,
    ]
    return (
        {'name': 'policy_preprocessor', 'steps': pre_steps},
        {'name': 'policy_postprocessor', 'steps': post_steps},
    )


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=4), encoding='utf-8')


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Let ``change`` alter the content of a JSON file."""
    data = json.loads(path.read_text(encoding='utf-8'))
    change(data)
    write_json(path, data)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file under a fresh inode: the old content may be hard-linked."""
    path.unlink(missing_ok=True)
    save_file(dict(tensors), path)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file under a fresh inode: its old content may be shared with other folders."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def flat_statistics(statistics: Stats) -> dict[str, np.ndarray]:
    return {
        f'{key}.{name}': value for key, one in statistics.items() for name, value in one.items()
    }


def write_act_folder(
    folder: Path,
    config: ActConfig,
    *,
    weights_file: Path,
    statistics: Stats | None = None,
    rename_map: Mapping[str, str] | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a whole policy folder; ``weights_file`` is hard-linked into it, never modified."""
    folder.mkdir(parents=True)
    ignored = {'device': 'cuda', 'use_amp': False, 'use_peft': False, 'push_to_hub': True}
    write_json(
        folder / 'config.json', {**config.to_json_dict(), **ignored, **(extra_config or {})}
    )
    os.link(weights_file, folder / 'model.safetensors')
    flat = flat_statistics(random_statistics(config) if statistics is None else statistics)
    names = ('policy_preprocessor.json', 'policy_postprocessor.json')
    for name, pipeline in zip(names, pipelines(config, rename_map=rename_map), strict=True):
        write_json(folder / name, pipeline)
        for step in pipeline['steps']:
            if 'state_file' in step:
                write_tensors(folder / step['state_file'], flat)
    return folder


class ActFolderFactory:
    """Makes policy folders below ``root``; weights are generated once per configuration.

    Call it as ``make_act_folder('name', config=tiny_config(...), ...)``; see ``write_act_folder``
    for the other arguments.
    """

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root
        self._cache = cache

    def __call__(
        self, name: str = 'policy', *, config: ActConfig | None = None, **options: Any
    ) -> Path:
        config = tiny_config() if config is None else config
        return write_act_folder(
            self._root / name, config, weights_file=self.weights_file(config), **options
        )

    def weights_file(self, config: ActConfig) -> Path:
        shapes = json.dumps(sorted(act_shapes(config).items())).encode()
        path = self._cache / f'{hashlib.sha256(shapes).hexdigest()}.safetensors'
        if not path.exists():
            save_file(random_weights(config), path)
        return path

"""Write a trained policy as a LeRobot ACT folder.

The layout, names and JSON fields are those that LeRobot 0.6.1's ``save_pretrained`` writes.
Convolutions and matrices are stored in half precision, everything else in single.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import ActConfig, features_to_json

NORMALIZER_STATE = 'policy_preprocessor_step_3_normalizer_processor.safetensors'
UNNORMALIZER_STATE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
_EPS = 1e-8

Stats = Mapping[str, Mapping[str, Tensor]]


def write_checkpoint(
    folder: Path, *, config: ActConfig, weights: Mapping[str, Tensor], stats: Stats
) -> None:
    """Write every file of the folder.

    weights: by ``ActModel`` name. stats: feature -> statistic -> tensor, (C, 1, 1) for images.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / 'config.json', config_json(config))
    tensors = {f'model.{name}': _stored(tensor) for name, tensor in weights.items()}
    save_file(tensors, folder / 'model.safetensors')
    pre, post = processors_json(config)
    _write_json(folder / 'policy_preprocessor.json', pre)
    _write_json(folder / 'policy_postprocessor.json', post)
    flat = {
        f'{feature}.{name}': value.detach().cpu().float().contiguous()
        for feature, values in stats.items()
        for name, value in values.items()
    }
    save_file(flat, folder / NORMALIZER_STATE)
    save_file(flat, folder / UNNORMALIZER_STATE)
    for path in folder.glob('*.safetensors'):
        path.chmod(0o644)


def config_json(config: ActConfig) -> dict[str, Any]:
    """``config.json`` with every field that LeRobot 0.6.1 knows for ACT."""
    hub = {
        'device': 'cpu',
        'use_amp': False,
        'use_peft': False,
        'push_to_hub': False,
        'repo_id': None,
        'private': None,
        'tags': None,
        'license': 'apache-2.0',
        'pretrained_path': None,
        'pretrained_revision': None,
    }
    fields = config.to_json_dict()
    first = ('type', 'n_obs_steps', 'input_features', 'output_features')
    head = {'type': config.model_type, **{name: fields[name] for name in first[1:]}}
    return {**head, **hub, **{name: fields[name] for name in fields if name not in head}}


def processors_json(config: ActConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The preprocessor's and the postprocessor's description."""
    modes = {kind.value: mode.value for kind, mode in config.normalization_mapping.items()}
    inputs, outputs = (
        features_to_json(f) for f in (config.input_features, config.output_features)
    )
    device = {
        'registry_name': 'device_processor',
        'config': {'device': 'cpu', 'float_dtype': None},
    }
    pre = [
        {'registry_name': 'rename_observations_processor', 'config': {'rename_map': {}}},
        {'registry_name': 'to_batch_processor', 'config': {}},
        device,
        {
            'registry_name': 'normalizer_processor',
            'config': {'eps': _EPS, 'features': {**inputs, **outputs}, 'norm_map': modes},
            'state_file': NORMALIZER_STATE,
        },
    ]
    post = [
        {
            'registry_name': 'unnormalizer_processor',
            'config': {'eps': _EPS, 'features': outputs, 'norm_map': modes},
            'state_file': UNNORMALIZER_STATE,
        },
        device,
    ]
    return (
        {'name': 'policy_preprocessor', 'steps': pre},
        {'name': 'policy_postprocessor', 'steps': post},
    )


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.to(torch.float16 if tensor.dim() > 1 else torch.float32)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4) + '\n', encoding='utf-8')

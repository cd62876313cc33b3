"""The older form of a policy: statistics among the weights, no processor files.

Tensors are named ``normalize_inputs.buffer_observation_state.mean``: the feature key with dots
turned into underscores. A key is recovered by comparing with the declared ones, never by turning
underscores back into dots. Policies of several datasets have
``normalize_inputs.DATASET.buffer_...``. The scaling is that of LeRobot 0.6.1. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparkrt_ros.runtime.checkpoint.features import FeatureSpec, PolicyConfig
from sparkrt_ros.runtime.checkpoint.features import NormalizationMode as Mode
from sparkrt_ros.runtime.checkpoint.pipeline_file import DEFAULT_EPS
from sparkrt_ros.runtime.checkpoint.safetensors_file import FloatArray
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling, StatisticsTable, resolve_scaling
from sparkrt_ros.runtime.checkpoint.steps import (
    DeviceStep,
    NormalizeStep,
    PipelineSpec,
    RenameStep,
    ToBatchStep,
    UnnormalizeStep,
)
from sparkrt_ros.runtime.errors import CheckpointError

INPUT_PREFIX = 'normalize_inputs'
OUTPUT_PREFIX = 'unnormalize_outputs'
_TARGET_PREFIX = 'normalize_targets'
_PREFIXES = (INPUT_PREFIX, OUTPUT_PREFIX, _TARGET_PREFIX)
_NAME = re.compile(
    r'(?P<prefix>[^.]+)\.(?:(?P<dataset>.+)\.)?buffer_(?P<feature>[^.]+)\.(?P<statistic>[^.]+)'
)


def is_statistic(name: str) -> bool:
    """Tell whether a tensor of the weight file is a statistic and no weight."""
    return name.split('.', 1)[0] in _PREFIXES


def embedded_pipelines(
    config: PolicyConfig,
    arrays: Mapping[str, FloatArray],
    *,
    file: Path,
    dataset: str | None = None,
) -> tuple[PipelineSpec, PipelineSpec]:
    """Return the pipelines LeRobot would write for the statistics in ``arrays``.

    arrays: the tensors for which ``is_statistic`` holds. Raises ``CheckpointError`` for
    statistics that are missing or inert, and where a dataset must be chosen.
    """
    inputs = _table(arrays, INPUT_PREFIX, config.input_features, file)
    outputs = _table(arrays, OUTPUT_PREFIX, config.output_features, file)
    normalize = NormalizeStep(
        eps=DEFAULT_EPS,
        features=config.input_features,
        scalings=_scalings(config, inputs.for_dataset(dataset), config.input_features),
    )
    action = {config.action_feature.key: config.action_feature}
    unnormalize = UnnormalizeStep(
        eps=DEFAULT_EPS,
        features=action,
        scalings=_scalings(config, outputs.for_dataset(dataset), action),
    )
    device = DeviceStep(saved_device='cpu')
    before = (RenameStep(rename_map={}), ToBatchStep(), device, normalize)
    return (
        PipelineSpec(name='policy_preprocessor', file=file, steps=before),
        PipelineSpec(name='policy_postprocessor', file=file, steps=(unnormalize, device)),
    )


def _scalings(
    config: PolicyConfig, table: StatisticsTable, features: Mapping[str, FeatureSpec]
) -> tuple[FeatureScaling, ...]:
    return tuple(
        resolve_scaling(table, spec, config.normalization_mapping.get(spec.type, Mode.IDENTITY))
        for spec in features.values()
    )


def _table(
    arrays: Mapping[str, FloatArray],
    prefix: str,
    features: Mapping[str, FeatureSpec],
    file: Path,
) -> StatisticsTable:
    keys = _keys_by_buffer(features, file)
    by_feature: dict[str, dict[str, FloatArray]] = {}
    datasets: dict[str, dict[str, dict[str, FloatArray]]] = {}
    for name, values in arrays.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f'{file}: {name}',
                found='a statistic of unknown form',
                expected=f'names such as {prefix}.buffer_observation_state.mean',
            )
        if match['prefix'] != prefix:
            continue
        key = keys.get(match['feature'], match['feature'])
        held = by_feature
        if match['dataset'] is not None:
            held = datasets.setdefault(match['dataset'], {})
        held.setdefault(key, {})[match['statistic']] = values
    return StatisticsTable(source=f'{file}: {prefix}', by_feature=by_feature, datasets=datasets)


def _keys_by_buffer(features: Iterable[str], file: Path) -> dict[str, str]:
    """Return buffer name -> declared key; two keys of one buffer name cannot be told apart."""
    keys: dict[str, str] = {}
    for key in features:
        buffer = key.replace('.', '_')
        if buffer in keys:
            raise CheckpointError(
                f'{file}: buffer_{buffer}',
                found=f'two features of that name: {keys[buffer]} and {key}',
                expected='one',
            )
        keys[buffer] = key
    return keys

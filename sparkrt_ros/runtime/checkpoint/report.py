"""What a policy needs and yields, as plain values for JSON and tables. Imports no torch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sparkrt_ros.runtime.checkpoint.consistency import scaled_names
from sparkrt_ros.runtime.checkpoint.features import FeatureSpec
from sparkrt_ros.runtime.checkpoint.formats import WEIGHT_FORMATS
from sparkrt_ros.runtime.checkpoint.load import CheckpointDescription
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling
from sparkrt_ros.runtime.checkpoint.steps import (
    DeviceStep,
    NormalizeStep,
    PipelineSpec,
    RenameStep,
    UnnormalizeStep,
)


def report(description: CheckpointDescription) -> dict[str, Any]:
    """Return the description as dictionaries, lists, strings and numbers."""
    config = description.config
    state, environment = config.robot_state_feature, config.env_state_feature
    return {
        'folder': str(description.folder),
        'model_type': config.model_type,
        'cameras': list(config.image_features),
        'state_size': state.shape[0] if state else 0,
        'environment_state_size': environment.shape[0] if environment else 0,
        'action_size': config.action_feature.shape[0],
        'chunk_size': config.chunk_size,
        'n_action_steps': config.n_action_steps,
        'temporal_ensemble_coeff': config.temporal_ensemble_coeff,
        'inputs': _inputs(description),
        'outputs': _outputs(description),
        'preprocessor': _steps(description.preprocessor),
        'postprocessor': _steps(description.postprocessor),
        'architecture': config.architecture,
        'weights': _weights(description),
        'warnings': list(description.warnings),
        'digest': description.digest,
    }


def _scalings(pipeline: PipelineSpec) -> dict[str, FeatureScaling]:
    return {
        scaling.key: scaling
        for step in pipeline.steps
        if isinstance(step, NormalizeStep | UnnormalizeStep)
        for scaling in step.scalings
    }


def _feature(spec: FeatureSpec, scaling: FeatureScaling | None) -> dict[str, Any]:
    statistics = scaling.statistics if scaling else {}
    return {
        'key': spec.key,
        'type': spec.type.value,
        'shape': list(spec.shape),
        'mode': scaling.mode.value if scaling else 'IDENTITY',
        'statistics': {
            name: [float(value) for value in values.reshape(-1)]
            for name, values in statistics.items()
        },
    }


def _inputs(description: CheckpointDescription) -> list[dict[str, Any]]:
    scalings = _scalings(description.preprocessor)
    names = scaled_names(description.config, description.preprocessor)
    return [
        {
            **_feature(spec, scalings.get(names[key])),
            'source_key': description.source_keys[key],
        }
        for key, spec in description.config.consumed_features.items()
    ]


def _outputs(description: CheckpointDescription) -> list[dict[str, Any]]:
    scalings = _scalings(description.postprocessor)
    spec = description.config.action_feature
    return [_feature(spec, scalings.get(spec.key))]


def _steps(pipeline: PipelineSpec) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for step in pipeline.steps:
        entry: dict[str, Any] = {'name': step.registry_name}
        if isinstance(step, RenameStep):
            entry['rename_map'] = dict(step.rename_map)
        elif isinstance(step, DeviceStep):
            entry['saved_device'] = step.saved_device
        elif isinstance(step, NormalizeStep | UnnormalizeStep):
            entry['eps'] = step.eps
        steps.append(entry)
    return {
        'file': pipeline.file.name,
        'state_files': [path.name for path in pipeline.state_files],
        'steps': steps,
    }


def _weights(description: CheckpointDescription) -> dict[str, Any]:
    types: Counter[str] = Counter()
    unread = 0
    unread_prefixes = WEIGHT_FORMATS[description.config.model_type].unread_prefixes
    for name, info in description.tensors.items():
        types[info.dtype] += info.count
        unread += info.count if name.startswith(unread_prefixes) else 0
    parameters = sum(types.values())
    return {
        'file': description.weights_file.name,
        'size_bytes': description.weights_file.stat().st_size,
        'tensors': len(description.tensors),
        'parameters': parameters,
        'inference_parameters': parameters - unread,
        'parameters_by_type': dict(types.most_common()),
    }

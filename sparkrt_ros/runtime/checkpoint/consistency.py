"""Do the processor steps and the configuration describe the same policy? Imports no torch.

A feature that the configuration declares normalised, and that no step normalises, would reach the
policy raw: that is an error here.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkrt_ros.runtime.checkpoint.features import (
    OBSERVATION_PREFIX,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
    PolicyConfig,
)
from sparkrt_ros.runtime.checkpoint.policy_steps import check_policy_steps
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling, constant_warning
from sparkrt_ros.runtime.checkpoint.steps import (
    NormalizeStep,
    PipelineSpec,
    RenameStep,
    Step,
    UnnormalizeStep,
)
from sparkrt_ros.runtime.errors import CheckpointError


def source_keys(config: PolicyConfig, preprocessor: PipelineSpec) -> dict[str, str]:
    """Return policy key -> key the robot side must provide, before any renaming.

    Raises ``CheckpointError`` for a policy key that the pipeline renames away, and for an incoming
    key that is no observation: LeRobot renames and scales only keys below ``observation.``.
    """
    names = {key: key for key in config.consumed_features}
    sources = _names_before(names, preprocessor, preprocessor.steps)
    for key, source in sources.items():
        if not source.startswith(OBSERVATION_PREFIX):
            raise CheckpointError(
                f'{preprocessor.file}: {key}',
                found=f'the incoming key {source}',
                expected=f'a key that starts with {OBSERVATION_PREFIX}',
            )
    return sources


def scaled_names(config: PolicyConfig, preprocessor: PipelineSpec) -> dict[str, str]:
    """Return policy key -> what the step that scales it calls it, before later renaming."""
    names = {key: key for key in config.input_features}
    for at, step in enumerate(preprocessor.steps):
        if isinstance(step, NormalizeStep):
            return _names_before(names, preprocessor, preprocessor.steps[at + 1 :])
    return names


def _names_before(
    names: Mapping[str, str], pipeline: PipelineSpec, steps: tuple[Step, ...]
) -> dict[str, str]:
    """Return what each policy key is called before ``steps`` have run."""
    current = dict(names)
    for step in reversed(steps):
        if not isinstance(step, RenameStep):
            continue
        sources = {new: old for old, new in step.rename_map.items()}
        for key, name in current.items():
            if name in step.rename_map and name not in sources:
                raise CheckpointError(
                    f'{pipeline.file}: {step.registry_name}',
                    found=f'{name} renamed to {step.rename_map[name]}',
                    expected=f'a key renamed to {name}, which the policy reads',
                )
            current[key] = sources.get(name, name)
    return current


def check_pipelines(
    config: PolicyConfig, preprocessor: PipelineSpec, postprocessor: PipelineSpec
) -> tuple[str, ...]:
    """Return warnings; raise ``CheckpointError`` where steps and configuration contradict."""
    source_keys(config, preprocessor)
    normalize = _only_step(preprocessor, NormalizeStep)
    unnormalize = _only_step(postprocessor, UnnormalizeStep)
    warnings = [
        *check_policy_steps(config, preprocessor, postprocessor),
        *_unread_features(config),
        *_unused_renames(config, preprocessor),
    ]
    if normalize is None:
        _require_identity(config, preprocessor, config.input_features)
    else:
        names = scaled_names(config, preprocessor)
        warnings += _check_scalings(config, preprocessor, normalize, config.input_features, names)
    actions = {config.action_feature.key: config.action_feature}
    if unnormalize is None:
        _require_identity(config, postprocessor, actions)
    else:
        names = {key: key for key in actions}
        warnings += _check_scalings(config, postprocessor, unnormalize, actions, names)
    return tuple(warnings)


def _only_step(
    pipeline: PipelineSpec, kind: type[NormalizeStep] | type[UnnormalizeStep]
) -> NormalizeStep | UnnormalizeStep | None:
    found = [step for step in pipeline.steps if isinstance(step, kind)]
    if len(found) > 1:
        raise CheckpointError(
            str(pipeline.file),
            found=f'{len(found)} steps {kind.registry_name}',
            expected='one: values would be scaled twice',
        )
    return found[0] if found else None


def _mode(config: PolicyConfig, kind: FeatureType) -> NormalizationMode:
    return config.normalization_mapping.get(kind, NormalizationMode.IDENTITY)


def _require_identity(
    config: PolicyConfig, pipeline: PipelineSpec, features: Mapping[str, FeatureSpec]
) -> None:
    for spec in features.values():
        mode = _mode(config, spec.type)
        if mode is not NormalizationMode.IDENTITY:
            raise CheckpointError(
                str(pipeline.file),
                found=f'steps {", ".join(pipeline.step_names) or "none"}',
                expected=f'a step that scales {spec.key}, whose mode is {mode.value}',
                remedy='save the policy again with its processors',
            )


def _unread_features(config: PolicyConfig) -> list[str]:
    return [
        f'config.json: the policy does not read {key} ({spec.type.value})'
        for key, spec in config.input_features.items()
        if key not in config.consumed_features
    ]


def _unused_renames(config: PolicyConfig, pipeline: PipelineSpec) -> list[str]:
    incoming = set(source_keys(config, pipeline).values())
    return [
        f'{pipeline.file.name}: {old} is renamed to {new}, which the policy does not read'
        for step in pipeline.steps
        if isinstance(step, RenameStep)
        for old, new in step.rename_map.items()
        if new not in config.input_features and old not in incoming
    ]


def _check_scalings(
    config: PolicyConfig,
    pipeline: PipelineSpec,
    step: NormalizeStep | UnnormalizeStep,
    features: Mapping[str, FeatureSpec],
    names: Mapping[str, str],
) -> list[str]:
    """Compare the scalings of ``step`` with the configuration; ``names`` are its keys there."""
    by_key = {scaling.key: scaling for scaling in step.scalings}
    inverse = isinstance(step, UnnormalizeStep)
    warnings = []
    for key, spec in features.items():
        scaling = by_key.get(names[key])
        mode = _mode(config, spec.type)
        _check_coverage(pipeline, step, spec, scaling, mode)
        if scaling is None:
            continue
        if scaling.mode is not mode:
            warnings.append(
                f'{pipeline.file.name}: {key} is scaled by {scaling.mode.value}, though the '
                f'configuration says {mode.value}: the file of steps decides'
            )
        constant = constant_warning(scaling, inverse=inverse)
        if constant:
            warnings.append(f'{pipeline.file.name}: {constant}')
    return warnings


def _check_coverage(
    pipeline: PipelineSpec,
    step: NormalizeStep | UnnormalizeStep,
    spec: FeatureSpec,
    scaling: FeatureScaling | None,
    mode: NormalizationMode,
) -> None:
    where = f'{pipeline.file}: {step.registry_name}'
    if scaling is None:
        if mode is NormalizationMode.IDENTITY:
            return
        raise CheckpointError(
            where,
            found=f'features {", ".join(item.key for item in step.scalings) or "none"}',
            expected=f'{spec.key}, whose mode is {mode.value}',
            remedy='save the policy again with its processors',
        )
    listed = step.features[scaling.key]
    if listed.type is not spec.type or listed.shape != spec.shape:
        raise CheckpointError(
            f'{where}: {scaling.key}',
            found=f'{listed.type.value} {listed.shape}',
            expected=f'{spec.type.value} {spec.shape} as in config.json',
        )

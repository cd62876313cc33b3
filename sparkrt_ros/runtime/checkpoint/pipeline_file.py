"""``policy_preprocessor.json`` and ``policy_postprocessor.json`` -> step specs.

Steps keep the order of the file; the names of state files come from the file. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkrt_ros.runtime.checkpoint.config_file import parse_features, parse_norm_map
from sparkrt_ros.runtime.checkpoint.features import FeatureSpec, FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.files import (
    POSTPROCESSOR_FILE,
    PREPROCESSOR_FILE,
    read_json,
    resolve_inside,
)
from sparkrt_ros.runtime.checkpoint.pipeline_entry import Entry
from sparkrt_ros.runtime.checkpoint.pipeline_policy import (
    parse_absolute_actions,
    parse_new_line,
    parse_relative_actions,
    parse_state_prompt,
    parse_tokenizer,
)
from sparkrt_ros.runtime.checkpoint.safetensors_file import read_arrays, read_header
from sparkrt_ros.runtime.checkpoint.stats import (
    FeatureScaling,
    StatisticsTable,
    resolve_scaling,
    split_state_keys,
)
from sparkrt_ros.runtime.checkpoint.steps import (
    AbsoluteActionsStep,
    DeviceStep,
    NewLineStep,
    NormalizeStep,
    PipelineSpec,
    RelativeActionsStep,
    RenameStep,
    StatePromptStep,
    Step,
    ToBatchStep,
    TokenizerStep,
    UnnormalizeStep,
)
from sparkrt_ros.runtime.errors import CheckpointError

DEFAULT_EPS = 1e-8


def read_preprocessor(folder: Path, *, dataset: str | None = None) -> PipelineSpec:
    """Read ``policy_preprocessor.json``; raises ``CheckpointError`` naming file and step."""
    return _read_pipeline(folder, PREPROCESSOR_FILE, _PREPROCESSOR_STEPS, dataset)


def read_postprocessor(folder: Path, *, dataset: str | None = None) -> PipelineSpec:
    """Read ``policy_postprocessor.json``; raises ``CheckpointError`` naming file and step."""
    return _read_pipeline(folder, POSTPROCESSOR_FILE, _POSTPROCESSOR_STEPS, dataset)


def _read_pipeline(
    folder: Path,
    file_name: str,
    parsers: Mapping[str, Callable[[Entry], Step]],
    dataset: str | None,
) -> PipelineSpec:
    path = folder / file_name
    data = read_json(path)
    listed = data.get('steps')
    if not isinstance(listed, list):
        raise CheckpointError(
            f'{path}: steps', found=repr(listed), expected='a list of processor steps'
        )
    unknown = sorted(set(data) - {'name', 'steps'})
    if unknown:
        raise CheckpointError(str(path), found=', '.join(unknown), expected='name and steps only')
    entries = [(_step_name(path, at, raw, parsers), raw) for at, raw in enumerate(listed)]
    steps, state_files = [], []
    for at, (name, raw) in enumerate(entries):
        entry = _read_entry(folder, f'{path}: step {at} {name}', raw, dataset)
        steps.append(parsers[name](entry))
        if entry.state_file is not None:
            state_files.append(entry.state_file)
    name = data.get('name', path.stem)
    return PipelineSpec(
        name=str(name), file=path, steps=tuple(steps), state_files=tuple(state_files)
    )


def _step_name(path: Path, at: int, raw: Any, parsers: Mapping[str, Any]) -> str:
    known = ', '.join(parsers)
    where = f'{path}: step {at}'
    if not isinstance(raw, dict):
        raise CheckpointError(where, found=repr(raw), expected='an object with registry_name')
    name = raw.get('registry_name')
    if name is None:
        found = f'class {raw["class"]!r}' if 'class' in raw else 'no registry_name'
        raise CheckpointError(
            where,
            found=found,
            expected=f'a registered step, one of: {known}',
            remedy='custom classes are not imported from a checkpoint; bake the step into the '
            'data or use a registered one',
        )
    if not isinstance(name, str) or name not in parsers:
        raise CheckpointError(where, found=repr(name), expected=f'one of: {known}')
    return name


def _read_entry(folder: Path, where: str, raw: dict[str, Any], dataset: str | None) -> Entry:
    unknown = sorted(set(raw) - {'registry_name', 'config', 'state_file', 'artifacts'})
    if unknown:
        raise CheckpointError(
            where,
            found=', '.join(unknown),
            expected='registry_name, config, state_file, artifacts',
        )
    config = raw.get('config', {})
    if not isinstance(config, dict):
        raise CheckpointError(f'{where}: config', found=repr(config), expected='an object')
    state_file = raw.get('state_file')
    if state_file is not None:
        state_file = resolve_inside(folder, state_file, where=f'{where}: state_file')
    return Entry(
        where=where,
        folder=folder,
        config=config,
        state_file=state_file,
        dataset=dataset,
        artifacts=_read_artifacts(folder, where, raw.get('artifacts')),
    )


def _read_artifacts(folder: Path, where: str, artifacts: Any) -> dict[str, Path]:
    """Return the artifacts by name; a path that leaves the folder is an error."""
    if not artifacts:
        return {}
    if not isinstance(artifacts, dict):
        raise CheckpointError(f'{where}: artifacts', found=repr(artifacts), expected='an object')
    return {
        name: resolve_inside(folder, value, where=f'{where}: artifacts.{name}')
        for name, value in artifacts.items()
    }


def _parse_rename(entry: Entry) -> RenameStep:
    entry.check('rename_map')
    mapping = entry.config.get('rename_map', {})
    where = f'{entry.where}: rename_map'
    if not isinstance(mapping, dict) or not all(isinstance(to, str) for to in mapping.values()):
        raise CheckpointError(where, found=repr(mapping), expected='new keys by old keys')
    targets = list(mapping.values())
    twice = sorted({to for to in targets if targets.count(to) > 1})
    if twice:
        raise CheckpointError(
            where, found=f'several keys renamed to {", ".join(twice)}', expected='one key for each'
        )
    return RenameStep(rename_map=dict(mapping))


def _parse_to_batch(entry: Entry) -> ToBatchStep:
    entry.check()
    return ToBatchStep()


def _parse_device(entry: Entry) -> DeviceStep:
    entry.check('device', 'float_dtype')
    saved = entry.config.get('device', 'cpu')
    if not isinstance(saved, str):
        raise CheckpointError(f'{entry.where}: device', found=repr(saved), expected='a string')
    float_dtype = entry.config.get('float_dtype')
    if float_dtype not in (None, 'float32', 'float'):
        raise CheckpointError(
            f'{entry.where}: float_dtype',
            found=repr(float_dtype),
            expected='null or float32: values are scaled in float32',
            remedy='choose a lower precision with the runtime options',
        )
    return DeviceStep(saved_device=saved)


@dataclass(frozen=True, kw_only=True)
class _Scalings:
    eps: float
    features: dict[str, FeatureSpec]
    modes: dict[FeatureType, NormalizationMode]
    only: frozenset[str] | None
    table: StatisticsTable

    def resolve(self, *, actions: bool) -> tuple[FeatureScaling, ...]:
        """Return the scalings of the actions, or of everything but actions.

        As in LeRobot a type without a mode is left as it is, and so is an observation that
        ``normalize_observation_keys`` leaves out.
        """
        scalings = []
        for spec in self.features.values():
            if (spec.type is FeatureType.ACTION) is not actions:
                continue
            mode = self.modes.get(spec.type, NormalizationMode.IDENTITY)
            if self.only is not None and not actions and spec.key not in self.only:
                mode = NormalizationMode.IDENTITY
            scalings.append(resolve_scaling(self.table, spec, mode))
        return tuple(scalings)


def _parse_normalize(entry: Entry) -> NormalizeStep:
    scalings = _read_scalings(entry)
    return NormalizeStep(
        eps=scalings.eps, features=scalings.features, scalings=scalings.resolve(actions=False)
    )


def _parse_unnormalize(entry: Entry) -> UnnormalizeStep:
    scalings = _read_scalings(entry)
    return UnnormalizeStep(
        eps=scalings.eps, features=scalings.features, scalings=scalings.resolve(actions=True)
    )


def _read_scalings(entry: Entry) -> _Scalings:
    entry.check('eps', 'features', 'norm_map', 'normalize_observation_keys', state=True)
    missing = [name for name in ('features', 'norm_map') if name not in entry.config]
    if missing:
        raise CheckpointError(
            f'{entry.where}: config',
            found=f'no {" and no ".join(missing)}',
            expected='features and norm_map',
        )
    features = parse_features(entry.config['features'], where=f'{entry.where}: features')
    return _Scalings(
        eps=_eps(entry),
        features=features,
        modes=parse_norm_map(entry.config['norm_map'], where=f'{entry.where}: norm_map'),
        only=_observation_keys(entry, features),
        table=_read_table(entry, features),
    )


def _eps(entry: Entry) -> float:
    value = entry.config.get('eps', DEFAULT_EPS)
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(
            f'{entry.where}: eps', found=repr(value), expected='a positive finite number'
        )
    return float(value)


def _observation_keys(entry: Entry, features: Mapping[str, FeatureSpec]) -> frozenset[str] | None:
    keys = entry.config.get('normalize_observation_keys')
    if keys is None:
        return None
    where = f'{entry.where}: normalize_observation_keys'
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(where, found=repr(keys), expected='a list of keys or null')
    unknown = sorted(set(keys) - set(features))
    if unknown:
        raise CheckpointError(
            where, found=', '.join(unknown), expected=f'keys among {", ".join(features)}'
        )
    return frozenset(keys)


def _read_table(entry: Entry, features: Mapping[str, FeatureSpec]) -> StatisticsTable:
    if entry.state_file is None:
        source = f'{entry.where} (no state_file)'
        return StatisticsTable(source=source, by_feature={}, datasets={})
    header = read_header(entry.state_file)
    source = f'{entry.state_file} ({entry.where.rpartition("/")[2]})'
    arrays = read_arrays(header, header.tensors)
    table = split_state_keys(arrays, features=features, source=source)
    return table.for_dataset(entry.dataset)


_PREPROCESSOR_STEPS: Mapping[str, Callable[[Entry], Step]] = {
    RenameStep.registry_name: _parse_rename,
    ToBatchStep.registry_name: _parse_to_batch,
    DeviceStep.registry_name: _parse_device,
    NormalizeStep.registry_name: _parse_normalize,
    NewLineStep.registry_name: parse_new_line,
    StatePromptStep.registry_name: parse_state_prompt,
    TokenizerStep.registry_name: parse_tokenizer,
    RelativeActionsStep.registry_name: parse_relative_actions,
}
_POSTPROCESSOR_STEPS: Mapping[str, Callable[[Entry], Step]] = {
    UnnormalizeStep.registry_name: _parse_unnormalize,
    ToBatchStep.registry_name: _parse_to_batch,
    DeviceStep.registry_name: _parse_device,
    AbsoluteActionsStep.registry_name: parse_absolute_actions,
}

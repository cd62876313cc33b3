"""Normalisation statistics: finding those of a feature, and refusing any that would do nothing.

LeRobot passes a feature through raw when the statistics hold no key of its name. Here that is an
error, as are statistics that cannot have come from data. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.checkpoint.config import FeatureSpec, FeatureType, NormalizationMode
from sparkrt_ros.runtime.errors import CheckpointError

FloatArray = npt.NDArray[np.float32]

REQUIRED_STATISTICS: Mapping[NormalizationMode, tuple[str, ...]] = {
    NormalizationMode.IDENTITY: (),
    NormalizationMode.MEAN_STD: ('mean', 'std'),
    NormalizationMode.MIN_MAX: ('min', 'max'),
    NormalizationMode.QUANTILES: ('q01', 'q99'),
    NormalizationMode.QUANTILE10: ('q10', 'q90'),
}
_RETRAIN = 'compute the statistics of the training dataset and save the policy again'


@dataclass(frozen=True, kw_only=True)
class FeatureScaling:
    """How one feature is scaled.

    statistics: those its mode needs, float32, (N,) for a vector of N, (C, 1, 1) for an image.
    """

    key: str
    type: FeatureType
    mode: NormalizationMode
    statistics: Mapping[str, FloatArray]

    @property
    def constant_dimensions(self) -> tuple[int, ...]:
        """Dimensions that never varied in the data: LeRobot divides them by ``eps``."""
        if self.mode is NormalizationMode.IDENTITY:
            return ()
        low, high = (self.statistics[name] for name in REQUIRED_STATISTICS[self.mode])
        constant = high == 0 if self.mode is NormalizationMode.MEAN_STD else high == low
        return tuple(int(index) for index in np.flatnonzero(constant))


@dataclass(frozen=True, kw_only=True)
class StatisticsTable:
    """The statistics of one file.

    by_feature: feature key -> statistic name -> values as stored.
    datasets: dataset name -> the same, of files that hold several datasets.
    source: what errors name, a file and step.
    """

    source: str
    by_feature: Mapping[str, Mapping[str, FloatArray]]
    datasets: Mapping[str, Mapping[str, Mapping[str, FloatArray]]]

    def for_dataset(self, dataset: str | None) -> StatisticsTable:
        """Return the table with the statistics of ``dataset`` in place, if one is chosen.

        Raises ``CheckpointError`` where the file holds no dataset of that name.
        """
        if dataset is None:
            return self
        if dataset not in self.datasets:
            known = ', '.join(sorted(self.datasets)) or 'none: the file holds one unnamed dataset'
            raise CheckpointError(
                f'{self.source}: dataset', found=repr(dataset), expected=f'one of: {known}'
            )
        merged = {**self.by_feature, **self.datasets[dataset]}
        return StatisticsTable(source=self.source, by_feature=merged, datasets={})


def split_state_keys(
    arrays: Mapping[str, FloatArray], *, features: Iterable[str], source: str
) -> StatisticsTable:
    """Sort the tensors of a state file, named ``FEATURE.STATISTIC``, by feature.

    A migrated file of several datasets has ``DATASET.buffer.FEATURE`` instead, where the feature
    has lost its underscores.
    """
    declared = {_canonical(key): key for key in features}
    by_feature: dict[str, dict[str, FloatArray]] = {}
    datasets: dict[str, dict[str, dict[str, FloatArray]]] = {}
    for flat, values in arrays.items():
        name, dot, statistic = flat.rpartition('.')
        if not dot or not name or not statistic:
            raise CheckpointError(
                source, found=f'tensor {flat!r}', expected='names such as observation.state.mean'
            )
        match = re.fullmatch(r'(.+?)\.buffer[._](.+)', name)
        key = declared.get(_canonical(match[2])) if match else None
        if match and key is not None:
            datasets.setdefault(match[1], {}).setdefault(key, {})[statistic] = values
        else:
            by_feature.setdefault(name, {})[statistic] = values
    return StatisticsTable(source=source, by_feature=by_feature, datasets=datasets)


def _canonical(key: str) -> str:
    return key.replace('_', '.')


def resolve_scaling(
    table: StatisticsTable, spec: FeatureSpec, mode: NormalizationMode
) -> FeatureScaling:
    """Return the checked scaling of one feature.

    Raises ``CheckpointError`` for statistics that are missing, of the wrong shape, non-finite
    (never filled) or impossible (negative deviation, maximum below minimum).
    """
    needed = REQUIRED_STATISTICS[mode]
    found = table.by_feature.get(spec.key)
    if needed and found is None:
        raise _missing_feature(table, spec, mode)
    values = {name: _statistic(table, spec, mode, name) for name in needed}
    scaling = FeatureScaling(key=spec.key, type=spec.type, mode=mode, statistics=values)
    if needed:
        _check_possible(table, scaling)
    return scaling


def _missing_feature(
    table: StatisticsTable, spec: FeatureSpec, mode: NormalizationMode
) -> CheckpointError:
    holders = sorted(name for name, held in table.datasets.items() if spec.key in held)
    similar = [key for key in table.by_feature if _canonical(key) == _canonical(spec.key)]
    found = f'statistics of {", ".join(table.by_feature) or "no feature"}'
    remedy = _RETRAIN
    if holders:
        found = f'statistics of several datasets: {", ".join(holders)}'
        remedy = 'choose the dataset whose robot you use with dataset=NAME'
    elif similar:
        remedy = f'rename {", ".join(similar)}: a migration changed its underscores'
    return CheckpointError(
        table.source,
        found=found,
        expected=f'statistics of {spec.key}, which is normalised by {mode.value}',
        remedy=remedy,
    )


def _statistic(
    table: StatisticsTable, spec: FeatureSpec, mode: NormalizationMode, name: str
) -> FloatArray:
    held = table.by_feature[spec.key]
    where = f'{table.source}: {spec.key}.{name}'
    if name not in held:
        raise CheckpointError(
            where,
            found=f'only {", ".join(sorted(held))}',
            expected=f'{" and ".join(REQUIRED_STATISTICS[mode])}, which {mode.value} needs',
            remedy=_RETRAIN,
        )
    values = _with_shape(held[name], spec, where)
    if not np.isfinite(values).all():
        raise CheckpointError(
            where,
            found=f'{int((~np.isfinite(values)).sum())} non-finite of {values.size} values',
            expected='finite statistics; these were never filled from a dataset',
            remedy=_RETRAIN,
        )
    return values


def _with_shape(values: FloatArray, spec: FeatureSpec, where: str) -> FloatArray:
    """Return ``values`` in the shape that broadcasts over the feature, as LeRobot does."""
    expected = spec.shape
    if spec.type is FeatureType.VISUAL:
        expected = (spec.shape[0], 1, 1)
    # A single value is also stored without dimensions; an image's also as (C,).
    flat_image = spec.type is FeatureType.VISUAL and values.shape == spec.shape[:1]
    scalar = values.shape == () and expected == (1,)
    if values.shape == expected or flat_image or scalar:
        return np.ascontiguousarray(values.reshape(expected))
    raise CheckpointError(
        where,
        found=f'shape {tuple(values.shape)}',
        expected=f'shape {expected} for the feature of shape {spec.shape}',
        remedy=_RETRAIN,
    )


def _check_possible(table: StatisticsTable, scaling: FeatureScaling) -> None:
    low_name, high_name = REQUIRED_STATISTICS[scaling.mode]
    low, high = scaling.statistics[low_name], scaling.statistics[high_name]
    limit = np.zeros_like(high) if scaling.mode is NormalizationMode.MEAN_STD else low
    bad = np.flatnonzero(high < limit)
    if bad.size:
        index = int(bad[0])
        rule = '>= 0' if scaling.mode is NormalizationMode.MEAN_STD else f'>= {low_name}'
        raise CheckpointError(
            f'{table.source}: {scaling.key}.{high_name}[{index}]',
            found=str(high.reshape(-1)[index]),
            expected=f'{rule} ({limit.reshape(-1)[index]})',
            remedy=_RETRAIN,
        )


def constant_warning(scaling: FeatureScaling, *, inverse: bool) -> str | None:
    """Warn of dimensions that never varied in the training data, or None.

    Normalising such a dimension divides by ``eps``; unnormalising it always yields one value.
    """
    constant = scaling.constant_dimensions
    if not constant:
        return None
    effect = 'the policy can only command that one value'
    if not inverse:
        effect = f'under {scaling.mode.value} any other value is scaled by about 1e8'
    numbers = ', '.join(map(str, constant))
    return f'{scaling.key}[{numbers}] never varied in the training data: {effect}'

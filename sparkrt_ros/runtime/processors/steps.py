"""Step specs -> functions on a batch. Each returns a new dictionary; none changes its input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import (
    ENVIRONMENT_STATE_KEY,
    OBSERVATION_PREFIX,
    STATE_KEY,
    FeatureSpec,
    NormalizationMode,
)
from sparkrt_ros.runtime.checkpoint.steps import (
    DeviceStep,
    NewLineStep,
    NormalizeStep,
    RelativeActionsStep,
    RenameStep,
    StatePromptStep,
    Step,
    ToBatchStep,
    TokenizerStep,
)
from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.processors.relative import ANCHOR_KEY
from sparkrt_ros.runtime.processors.scaling import FeatureScaler

Batch = dict[str, Tensor]
BatchFunction = Callable[[Batch], Batch]

_VECTOR_KEYS = (STATE_KEY, ENVIRONMENT_STATE_KEY)
_IMAGE_KEY = 'observation.image'


def build_step(step: Step, *, device: torch.device) -> BatchFunction:
    """Return the function of an observation step; ``device`` replaces any saved device."""
    if isinstance(step, RenameStep):
        return _renamer(dict(step.rename_map))
    if isinstance(step, ToBatchStep):
        return add_batch_dimension
    if isinstance(step, DeviceStep):
        return mover(device)
    if isinstance(step, NormalizeStep):
        return _normalizer(step, device)
    if isinstance(step, RelativeActionsStep):
        return _remember_state if step.enabled else dict
    if isinstance(step, NewLineStep | StatePromptStep | TokenizerStep):
        # Text is made on the host, see ``prompt.py``: nothing of it can be captured.
        return dict
    raise TypeError(f'{step.registry_name} is no observation step')


def _renamer(names: dict[str, str]) -> BatchFunction:
    def rename(batch: Batch) -> Batch:
        result: Batch = {}
        for key, value in batch.items():
            new = names.get(key, key) if key.startswith(OBSERVATION_PREFIX) else key
            if new in result:
                raise ObservationError(
                    new, found=f'two inputs of that name, one of them {key}', expected='one'
                )
            result[new] = value
        return result

    return rename


def add_batch_dimension(batch: Batch) -> Batch:
    """Turn a single observation into a batch of one: (N,) vectors and (C, H, W) images only."""
    result = dict(batch)
    for key, value in batch.items():
        is_image = key == _IMAGE_KEY or key.startswith(f'{_IMAGE_KEY}s.')
        single = 1 if key in _VECTOR_KEYS else 3 if is_image else None
        if single is not None and value.dim() == single:
            result[key] = value.unsqueeze(0)
    return result


def _remember_state(batch: Batch) -> Batch:
    return {**batch, ANCHOR_KEY: batch[STATE_KEY]} if STATE_KEY in batch else dict(batch)


def mover(device: torch.device) -> BatchFunction:
    """Return the function that moves every tensor to ``device``; others pass."""
    # A copy to the host that does not wait could be read before it is complete.
    non_blocking = device.type == 'cuda'

    def move(batch: Batch) -> Batch:
        return {
            key: value.to(device, non_blocking=non_blocking)
            if isinstance(value, Tensor)
            else value
            for key, value in batch.items()
        }

    return move


def _normalizer(step: NormalizeStep, device: torch.device) -> BatchFunction:
    scalers = [
        FeatureScaler(scaling, eps=step.eps, device=device)
        for scaling in step.scalings
        if scaling.mode is not NormalizationMode.IDENTITY
    ]

    def normalize(batch: Batch) -> Batch:
        result = dict(batch)
        for scaler in scalers:
            values = batch.get(scaler.key)
            if values is None:
                continue
            _check_scalable(step.features[scaler.key], scaler, values)
            result[scaler.key] = scaler.normalize(values)
        return result

    return normalize


def _check_scalable(spec: FeatureSpec, scaler: FeatureScaler, values: Tensor) -> None:
    if values.dtype != torch.float32:
        raise ObservationError(
            spec.key,
            found=str(values.dtype),
            expected='torch.float32; images scaled to [0, 1]',
        )
    if not scaler.fits(values):
        shape = ', '.join(map(str, spec.shape))
        raise ObservationError(
            spec.key, found=f'shape {tuple(values.shape)}', expected=f'shape (batch, {shape})'
        )

"""The pipelines around a policy, built from the steps its folder describes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import FeatureSpec, FeatureType
from sparkrt_ros.runtime.checkpoint.load import CheckpointDescription
from sparkrt_ros.runtime.checkpoint.steps import (
    PipelineSpec,
    RelativeActionsStep,
    UnnormalizeStep,
)
from sparkrt_ros.runtime.errors import ActionError, ObservationError
from sparkrt_ros.runtime.processors.relative import Anchor
from sparkrt_ros.runtime.processors.scaling import FeatureScaler
from sparkrt_ros.runtime.processors.steps import Batch, build_step, mover


class Preprocessor:
    """Turns one observation into what the policy reads, in the order of the processor file.

    Takes tensors by incoming key (``CheckpointDescription.source_keys``): (N,) or (B, N) float32
    vectors and (3, H, W) or (B, 3, H, W) float32 images in [0, 1]. Returns them by policy key
    with a batch dimension, on ``device``. Entries without the prefix ``observation.`` pass.
    Nothing waits for the device and the input is not changed, so a call on tensors of the device
    can be captured into a CUDA graph.

    features: what must be there afterwards; an input that is missing or has another size raises
    ``ObservationError``. Height and width of images are not compared: that is the contract's.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        *,
        features: Mapping[str, FeatureSpec],
        device: torch.device | str,
    ) -> None:
        self.device = torch.device(device)
        self._features = tuple(features.values())
        steps = [build_step(step, device=self.device) for step in pipeline.steps]
        self._steps = [*steps, mover(self.device)]

    def __call__(self, batch: Mapping[str, Tensor]) -> Batch:
        """Return the policy's inputs; raises ``ObservationError``."""
        result = dict(batch)
        for step in self._steps:
            result = step(result)
        for spec in self._features:
            self._check(spec, batch, result)
        return result

    def _check(self, spec: FeatureSpec, given: Mapping[str, Tensor], batch: Batch) -> None:
        values = batch.get(spec.key)
        if values is None:
            raise ObservationError(
                spec.key, found=f'only {", ".join(given) or "nothing"}', expected='this input'
            )
        image = spec.type is FeatureType.VISUAL
        size_axis = 1 if image else -1
        expected_size = spec.shape[0]
        rank = len(spec.shape) + 1
        if values.dim() != rank or values.shape[size_axis] != expected_size:
            shape = ', '.join(['batch', *map(str, spec.shape)])
            raise ObservationError(
                spec.key, found=f'shape {tuple(values.shape)}', expected=f'shape ({shape})'
            )


class Postprocessor:
    """Turns the policy's output into actions in the units of the dataset, and back.

    Takes (B, T, A) or (B, A) float32 and returns the same shape on ``device``. The caller brings
    actions to the host when it needs them: a saved move to the CPU is not done here, since it
    would wait for the device in the middle of what may be one captured graph.

    relative: how actions are relative to the state, where they are.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        *,
        action_size: int,
        device: torch.device | str,
        relative: RelativeActionsStep | None = None,
    ) -> None:
        self.device = torch.device(device)
        self._action_size = action_size
        self._scalers = [
            FeatureScaler(scaling, eps=step.eps, device=self.device)
            for step in pipeline.steps
            if isinstance(step, UnnormalizeStep)
            for scaling in step.scalings
        ]
        self._anchor = None
        if relative is not None and relative.enabled:
            self._anchor = Anchor(relative, action_size=action_size, device=self.device)

    def __call__(self, actions: Tensor, *, anchor: Tensor | None = None) -> Tensor:
        """Return actions in dataset units; raises ``ActionError`` for another shape or type.

        anchor: the raw state (B, S) of the observation the chunk was predicted from; every row
            of a chunk is relative to this one, however late it is played.
        """
        self._check(actions)
        actions = actions.to(self.device)
        for scaler in self._scalers:
            actions = scaler.unnormalize(actions)
        if self._anchor is None:
            return actions
        return self._anchor.to_absolute(actions, _given(anchor))

    def to_model_space(self, actions: Tensor, *, anchor: Tensor | None = None) -> Tensor:
        """Return actions in dataset units as the policy would put them; see ``__call__``.

        anchor: the raw state that they shall be relative to, now.
        """
        self._check(actions)
        actions = actions.to(self.device)
        if self._anchor is not None:
            actions = self._anchor.to_relative(actions, _given(anchor))
        for scaler in reversed(self._scalers):
            actions = scaler.normalize(actions)
        return actions

    def _check(self, actions: Tensor) -> None:
        if actions.dim() not in (2, 3) or actions.shape[-1] != self._action_size:
            raise ActionError(
                'policy output',
                found=f'shape {tuple(actions.shape)}',
                expected=f'(batch, {self._action_size}) or (batch, rows, {self._action_size})',
            )
        if actions.dtype != torch.float32:
            raise ActionError('policy output', found=str(actions.dtype), expected='torch.float32')


def _given(anchor: Tensor | None) -> Tensor:
    if anchor is None:
        raise ActionError(
            'policy output',
            found='relative actions without a state',
            expected='the state that the chunk was predicted from',
        )
    return anchor


def make_processors(
    checkpoint: CheckpointDescription,
    *,
    device: torch.device | str,
    missing_cameras: tuple[str, ...] = (),
) -> tuple[Preprocessor, Postprocessor]:
    """Return the pipelines of a policy on ``device``; missing cameras are not asked for."""
    config = checkpoint.config
    features = {
        key: spec for key, spec in config.consumed_features.items() if key not in missing_cameras
    }
    preprocessor = Preprocessor(checkpoint.preprocessor, features=features, device=device)
    relative = (
        step for step in checkpoint.preprocessor.steps if isinstance(step, RelativeActionsStep)
    )
    postprocessor = Postprocessor(
        checkpoint.postprocessor,
        action_size=config.action_feature.shape[0],
        device=device,
        relative=next(relative, None),
    )
    return preprocessor, postprocessor

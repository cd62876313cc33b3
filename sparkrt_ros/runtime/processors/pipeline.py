"""The pipelines around a policy, built from the steps its folder describes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import FeatureSpec, FeatureType
from sparkrt_ros.runtime.checkpoint.load import CheckpointDescription
from sparkrt_ros.runtime.checkpoint.steps import PipelineSpec, UnnormalizeStep
from sparkrt_ros.runtime.errors import ActionError, ObservationError
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
    """Turns the policy's output into actions in the units of the dataset.

    Takes (B, T, A) or (B, A) float32 and returns the same shape on ``device``. The caller brings
    actions to the host when it needs them: a saved move to the CPU is not done here, since it
    would wait for the device in the middle of what may be one captured graph.
    """

    def __init__(
        self, pipeline: PipelineSpec, *, action_size: int, device: torch.device | str
    ) -> None:
        self.device = torch.device(device)
        self._action_size = action_size
        self._scalers = [
            FeatureScaler(scaling, eps=step.eps, device=self.device)
            for step in pipeline.steps
            if isinstance(step, UnnormalizeStep)
            for scaling in step.scalings
        ]

    def __call__(self, actions: Tensor) -> Tensor:
        """Return actions in dataset units; raises ``ActionError`` for another shape or type."""
        if actions.dim() not in (2, 3) or actions.shape[-1] != self._action_size:
            raise ActionError(
                'policy output',
                found=f'shape {tuple(actions.shape)}',
                expected=f'(batch, {self._action_size}) or (batch, rows, {self._action_size})',
            )
        if actions.dtype != torch.float32:
            raise ActionError('policy output', found=str(actions.dtype), expected='torch.float32')
        actions = actions.to(self.device)
        for scaler in self._scalers:
            actions = scaler.unnormalize(actions)
        return actions


def make_processors(
    checkpoint: CheckpointDescription, *, device: torch.device | str
) -> tuple[Preprocessor, Postprocessor]:
    """Return the pipelines of a policy on ``device``."""
    config = checkpoint.config
    preprocessor = Preprocessor(
        checkpoint.preprocessor, features=config.consumed_features, device=device
    )
    postprocessor = Postprocessor(
        checkpoint.postprocessor, action_size=config.action_feature.shape[0], device=device
    )
    return preprocessor, postprocessor

"""ACT behind the contract of a session.

Shapes: ``B`` batch, ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import Region
from sparkrt_ros.runtime.checkpoint.config import (
    ENVIRONMENT_STATE_KEY,
    STATE_KEY,
    ActConfig,
    FeatureSpec,
)
from sparkrt_ros.runtime.errors import BackendError, ConfigError, ObservationError
from sparkrt_ros.runtime.kernels.choose import choose_forms
from sparkrt_ros.runtime.kernels.forms import Forms, PlainForms
from sparkrt_ros.runtime.kernels.int8_support import make_int8_forms
from sparkrt_ros.runtime.kernels.recording import Recorder, RecordingForms
from sparkrt_ros.runtime.policies.act import TRAINING_ONLY_PREFIXES, ActModel
from sparkrt_ros.runtime.policies.act_fused import FusedAct
from sparkrt_ros.runtime.policies.adapter import PolicyContext
from sparkrt_ros.runtime.policies.weights import load_weights, without_memory
from sparkrt_ros.runtime.precision.calibration import Calibration
from sparkrt_ros.runtime.precision.tiers import Tier
from sparkrt_ros.runtime.types import Capabilities

_FORWARD = 'forward'


class ActAdapter:
    """One capturable region, ``forward``: [state], [environment state], images -> (B, T, A).

    Raises CheckpointError when the weights do not cover the network exactly.
    """

    def __init__(
        self,
        config: ActConfig,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device,
        weights_file: str = 'model.safetensors',
    ) -> None:
        self._capabilities = act_capabilities(config)
        self._device = device
        self._vector_keys = tuple(
            key
            for key, feature in (
                (STATE_KEY, config.robot_state_feature),
                (ENVIRONMENT_STATE_KEY, config.env_state_feature),
            )
            if feature is not None
        )
        self._input_keys = self._vector_keys + self._capabilities.camera_keys
        with without_memory():
            model = ActModel(config)
        load_weights(model, weights, ignored_prefixes=TRAINING_ONLY_PREFIXES, where=weights_file)
        self._model: ActModel | None = model.eval().requires_grad_(requires_grad=False).to(device)
        self._network: Callable[..., Tensor] = self._model
        self._notes: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def notes(self) -> tuple[str, ...]:
        """See PolicyAdapter."""
        return self._notes

    def fused(self, tier: Tier, *, plain_operators: bool = False) -> ActAdapter:
        """See PolicyAdapter. The weights are copied: either adapter may outlive the other."""
        if tier.is_calibrated:
            raise BackendError(
                f'ACT in {tier.name}', found='no calibration', expected='calibrated(calibration)'
            )
        dtype: torch.dtype = getattr(torch, tier.dtype)
        note = ''
        forms: Forms = PlainForms(device=self._device, dtype=dtype)
        if not plain_operators:
            forms, note = choose_forms(device=self._device, dtype=dtype)
        return self._with_forms(forms, dtype, note=note)

    def recording(self, recorder: Recorder) -> ActAdapter:
        """See CalibratableAdapter."""
        return self._with_forms(RecordingForms(recorder, device=self._device), torch.float32)

    def calibrated(self, calibration: Calibration) -> ActAdapter:
        """See CalibratableAdapter."""
        forms = make_int8_forms(calibration, device=self._device)
        return self._with_forms(forms, torch.float32)

    def _with_forms(self, forms: Forms, dtype: torch.dtype, *, note: str = '') -> ActAdapter:
        if self._model is None:
            raise BackendError(
                'ACT', found='a fused policy', expected='the policy as written, to fuse it'
            )
        other = copy.copy(self)
        other._network = FusedAct(self._model, forms=forms, device=self._device, dtype=dtype)
        other._model = None
        other._notes = (note,) if note else ()
        return other

    def regions(self) -> tuple[Region, ...]:
        """See PolicyAdapter."""
        return (Region(name=_FORWARD, fn=self._forward, capturable=True),)

    def predict_chunk(
        self, context: PolicyContext, batch: Mapping[str, Tensor], *, noise: Tensor | None
    ) -> Tensor:
        """See PolicyAdapter; ACT is deterministic, so noise must be None."""
        if noise is not None:
            raise ConfigError(
                'noise',
                found=f'a tensor of shape {tuple(noise.shape)}',
                expected='None: an ACT policy draws no noise',
            )
        missing = [key for key in self._input_keys if key not in batch]
        if missing:
            raise ObservationError(
                'preprocessed observation',
                found=', '.join(batch) or 'nothing',
                expected=f'also {", ".join(missing)}',
                remedy='check the rename_map of policy_preprocessor.json',
            )
        chunk = context.regions[_FORWARD](*(batch[key] for key in self._input_keys))
        return chunk if isinstance(chunk, Tensor) else chunk[0]

    def _forward(self, *inputs: Tensor) -> Tensor:
        vectors = dict(zip(self._vector_keys, inputs, strict=False))
        return self._network(
            images=inputs[len(self._vector_keys) :],
            state=vectors.get(STATE_KEY),
            environment_state=vectors.get(ENVIRONMENT_STATE_KEY),
        )


def act_capabilities(config: ActConfig) -> Capabilities:
    """What an ACT policy with this configuration needs and yields."""
    shapes = {key: feature.shape for key, feature in config.image_features.items()}
    return Capabilities(
        model_type=config.model_type,
        image_shapes={key: (shape[0], shape[1], shape[2]) for key, shape in shapes.items()},
        state_size=_size(config.robot_state_feature),
        environment_state_size=_size(config.env_state_feature),
        action_size=_size(config.action_feature),
        chunk_size=config.chunk_size,
        n_action_steps=config.n_action_steps,
        supports_temporal_ensemble=True,
        temporal_ensemble_coeff=config.temporal_ensemble_coeff,
    )


def _size(feature: FeatureSpec | None) -> int:
    return 0 if feature is None else feature.shape[0]

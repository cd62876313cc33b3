"""A policy whose every output is known beforehand, for tests of what surrounds a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import Region
from sparkrt_ros.runtime.policies.adapter import PolicyContext
from sparkrt_ros.runtime.types import Capabilities, Observation

CHUNK_SIZE, ACTION_SIZE, STATE_SIZE = 5, 2, 3
STATE_KEY = 'observation.state'
CAMERA_KEY = 'observation.images.front'


def make_capabilities(**changes: object) -> Capabilities:
    values: dict[str, object] = {
        'model_type': 'ramp',
        'image_shapes': {CAMERA_KEY: (3, 4, 6)},
        'state_size': STATE_SIZE,
        'environment_state_size': 0,
        'action_size': ACTION_SIZE,
        'chunk_size': CHUNK_SIZE,
        'n_action_steps': 3,
        'supports_temporal_ensemble': True,
    }
    return Capabilities(**{**values, **changes})


class RampAdapter:
    """Row i of the chunk is ``state[0] + i`` in every column; counts its predictions.

    Like a recorded graph, it returns the same buffer every time, overwritten.
    """

    def __init__(self, **changes: object) -> None:
        self.capabilities = make_capabilities(**changes)
        self.predictions = 0
        self.last_noise: Tensor | None = None
        self.buffer = torch.zeros(1, CHUNK_SIZE, ACTION_SIZE)

    def regions(self) -> tuple[Region, ...]:
        return (Region(name='ramp', fn=self._ramp),)

    def predict_chunk(
        self, context: PolicyContext, batch: Mapping[str, Tensor], *, noise: Tensor | None
    ) -> Tensor:
        self.predictions += 1
        self.last_noise = noise
        context.memory['seen'] = True
        chunk = context.regions['ramp'](batch[STATE_KEY])
        assert isinstance(chunk, Tensor)
        return chunk

    def _ramp(self, state: Tensor) -> Tensor:
        self.buffer.copy_(torch.arange(CHUNK_SIZE).reshape(1, -1, 1) + state[:, :1, None])
        return self.buffer


class CountingPreprocessor:
    def __init__(self) -> None:
        self.calls = 0
        self.keys: set[str] = set()

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        self.calls += 1
        self.keys = set(batch)
        return batch


def double(actions: Tensor) -> Tensor:
    """A postprocessor that averaging commutes with in the reals, not to the last bit."""
    return actions * 2


def identity(actions: Tensor) -> Tensor:
    """A postprocessor that hands on the policy's own buffer."""
    return actions


def observe(start: float = 0.0) -> Observation:
    """An observation from which RampAdapter predicts start, start + 1, ..."""
    state = np.zeros(STATE_SIZE, np.float32)
    state[0] = start
    return Observation(images={'front': np.zeros((4, 6, 3), np.uint8)}, state=state)

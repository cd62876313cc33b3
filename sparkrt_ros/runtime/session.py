"""A policy in use: from observations to single actions, with the memory of an episode.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import ExecutionBackend, Region, RegionFunction
from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler
from sparkrt_ros.runtime.chunking.queue import ActionQueue
from sparkrt_ros.runtime.config import RuntimeConfig, SessionMode, resolve_mode
from sparkrt_ros.runtime.errors import ActionError
from sparkrt_ros.runtime.packing import Arrays, ObservationPacker
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter, PolicyContext, make_context
from sparkrt_ros.runtime.types import FloatArray, Observation

Preprocess = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
Postprocess = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Where one inference spent its time; each part ends with the device idle."""

    preprocess_s: float = 0.0
    model_s: float = 0.0
    postprocess_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.preprocess_s + self.model_s + self.postprocess_s


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """A chunk (1, T, A) in model space, and in policy units where that is computed with it."""

    normalized: Tensor
    actions: Tensor | None = None


class Session:
    """Runs one policy for one robot. Not thread-safe: one thread uses it for all of its life.

    preprocessor: packed observation by key -> network inputs by policy key.
    postprocessor: model-space actions (1, T, A) or (1, A) -> the same shape in policy units.
    mode: as the checkpoint says when None.
    source_keys: policy key -> key the preprocessor expects it under, where they differ.
    channels_last: whether the network prefers images in the memory order of a camera.
    """

    def __init__(
        self,
        adapter: PolicyAdapter,
        preprocessor: Preprocess,
        postprocessor: Postprocess,
        backend: ExecutionBackend,
        *,
        mode: SessionMode | None = None,
        source_keys: Mapping[str, str] | None = None,
        channels_last: bool = False,
    ) -> None:
        needs = adapter.capabilities
        self._mode = resolve_mode(RuntimeConfig(), needs) if mode is None else mode
        self._adapter = adapter
        self._preprocessor = preprocessor
        self._postprocessor = postprocessor
        self._backend = backend
        self._chunk_shape = (1, needs.chunk_size, needs.action_size)
        self._context = make_context(adapter.regions(), backend=backend)
        self._packer = ObservationPacker(
            needs, device=backend.device, source_keys=source_keys, channels_last=channels_last
        )
        self._whole = self._compile_whole()
        self._queue = ActionQueue(n_action_steps=self._mode.n_action_steps)
        self._ensembler = _make_ensembler(self._mode, chunk_size=needs.chunk_size)
        self._timing = Timing()

    @property
    def mode(self) -> SessionMode:
        return self._mode

    @property
    def device(self) -> torch.device:
        return self._backend.device

    @property
    def queue_depth(self) -> int:
        """Actions that ``select_action`` can return without inference."""
        return len(self._queue)

    @property
    def last_timing(self) -> Timing:
        """The times of the last inference; a step served from the queue makes none."""
        return self._timing

    def select_action(
        self, observation: Observation, *, noise: Tensor | None = None
    ) -> FloatArray:
        """Return the action (A,) float32 for this step, in policy units; the caller's to keep.

        In queue mode the observation is checked at every step, but only read by an inference
        when the queue is empty. Raises ObservationError, or ActionError for an output that is
        not finite; nothing of such an inference enters queue or ensemble.
        """
        arrays = self._packer.check(observation)
        if self._ensembler is not None:
            return self._ensemble(self._ensembler, arrays, noise)
        if not self._queue:
            self._queue.refill(self._chunk(arrays, noise))
        return self._queue.pop()

    def predict_chunk(
        self, observation: Observation, *, noise: Tensor | None = None
    ) -> FloatArray:
        """Return the chunk (T, A) float32 in policy units; touches neither queue nor ensemble.

        Raises as ``select_action``.
        """
        return self._chunk(self._packer.check(observation), noise)

    def reset(self) -> None:
        """Forget the episode: queue, ensemble and whatever the policy remembers."""
        self._queue.clear()
        self._context.reset()
        if self._ensembler is not None:
            self._ensembler.reset()

    def warm_up(self) -> None:
        """Run the policy on an example until nothing is left to prepare; keeps the episode."""
        example = self._packer.check(self._packer.example())
        self._backend.warm_up(lambda: self._chunk(example, None))

    def seal(self) -> None:
        """From now on, whatever would need new preparation is a BackendError, not a stall."""
        self._backend.seal()

    def report(self) -> dict[str, Any]:
        """What the backend made of the parts, in plain values."""
        return self._backend.report()

    def infer_normalized(self, observation: Observation) -> FloatArray:
        """Return the chunk (T, A) float32 in model space, for comparing forms with each other."""
        with torch.inference_mode():
            prediction = self._infer(self._packer.check(observation), None)
            rows: FloatArray = _to_host(prediction.normalized)[0]
        return rows

    def _chunk(self, arrays: Arrays, noise: Tensor | None) -> FloatArray:
        with torch.inference_mode():
            prediction = self._infer(arrays, noise)
            rows: FloatArray = self._finish(prediction.normalized, prediction.actions)[0]
        return rows

    def _ensemble(
        self, ensembler: TemporalEnsembler, arrays: Arrays, noise: Tensor | None
    ) -> FloatArray:
        """Average in model space and only then leave it, as LeRobot does."""
        with torch.inference_mode():
            rows = _to_host(self._infer(arrays, noise).normalized)[0]
            _check_finite(rows)
            mean = torch.from_numpy(ensembler.update(rows)).unsqueeze(0)
            action: FloatArray = self._finish(mean.to(self._backend.device))[0]
        return action

    def _infer(self, arrays: Arrays, noise: Tensor | None) -> _Prediction:
        """Inputs through preprocessing and network, and with a whole region back out again."""
        if self._whole is None or noise is not None:
            prediction = self._infer_in_parts(arrays, noise)
        else:
            prediction = self._infer_whole(self._whole, arrays)
        if tuple(prediction.normalized.shape) != self._chunk_shape:
            raise ActionError(
                'policy output',
                found=f'shape {tuple(prediction.normalized.shape)}',
                expected=f'shape {self._chunk_shape}',
            )
        return prediction

    def _infer_in_parts(self, arrays: Arrays, noise: Tensor | None) -> _Prediction:
        start = time.perf_counter()
        batch = self._preprocessor(self._packer.pack(arrays))
        self._backend.synchronize()
        ready = time.perf_counter()
        chunk = self._adapter.predict_chunk(self._context, batch, noise=noise)
        self._backend.synchronize()
        self._timing = Timing(preprocess_s=ready - start, model_s=time.perf_counter() - ready)
        return _Prediction(normalized=chunk)

    def _infer_whole(self, whole: RegionFunction, arrays: Arrays) -> _Prediction:
        start = time.perf_counter()
        staged = self._packer.stage(arrays)
        ready = time.perf_counter()
        normalized, actions = whole(*staged)
        self._timing = Timing(preprocess_s=ready - start, model_s=time.perf_counter() - ready)
        return _Prediction(normalized=normalized, actions=actions)

    def _compile_whole(self) -> RegionFunction | None:
        """All of a prediction as one region, where the backend wants that and every part can."""
        regions = self._adapter.regions()
        if not self._backend.whole_chunk or not all(region.capturable for region in regions):
            return None
        direct = PolicyContext(regions={region.name: region.fn for region in regions})

        def predict(*staged: Tensor) -> tuple[Tensor, ...]:
            batch = self._preprocessor(self._packer.unpack(*staged))
            chunk = self._adapter.predict_chunk(direct, batch, noise=None)
            return chunk, self._postprocessor(chunk)

        return self._backend.compile(
            Region(name='chunk', fn=predict, capturable=True, on_host=True)
        )

    def _finish(self, normalized: Tensor, actions: Tensor | None = None) -> FloatArray:
        """Model space to policy units, on the host, in memory of its own."""
        start = time.perf_counter()
        result = _to_host(self._postprocessor(normalized) if actions is None else actions)
        _check_finite(result)
        before = self._timing
        self._timing = Timing(
            preprocess_s=before.preprocess_s,
            model_s=before.model_s,
            postprocess_s=time.perf_counter() - start,
        )
        return result


def _make_ensembler(mode: SessionMode, *, chunk_size: int) -> TemporalEnsembler | None:
    coefficient = mode.temporal_ensemble_coeff
    if coefficient is None:
        return None
    # LeRobot's own expression: another exponential may differ in the last bit.
    weights = torch.exp(-coefficient * torch.arange(chunk_size)).numpy()
    return TemporalEnsembler(coefficient=coefficient, chunk_size=chunk_size, weights=weights)


def _to_host(tensor: Tensor) -> FloatArray:
    # np.array copies: on a CPU the tensor may be a buffer that the next inference overwrites.
    return np.array(tensor.to('cpu', torch.float32).numpy())


def _check_finite(actions: FloatArray) -> None:
    if np.isfinite(actions).all():
        return
    columns = sorted({int(column) for column in np.argwhere(~np.isfinite(actions))[:, -1]})
    raise ActionError(
        'policy output',
        found=f'non-finite values in columns {", ".join(map(str, columns))}',
        expected='finite actions',
        remedy='check the observation for values far outside the training data',
    )

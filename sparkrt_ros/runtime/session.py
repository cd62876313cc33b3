"""A policy in use: from observations to single actions, with the memory of an episode.

Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import ExecutionBackend, Region, RegionFunction
from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler
from sparkrt_ros.runtime.chunking.queue import ActionQueue
from sparkrt_ros.runtime.config import RuntimeConfig, SessionMode, resolve_mode
from sparkrt_ros.runtime.errors import ActionError
from sparkrt_ros.runtime.host_inputs import (
    NOISE_KEY,
    Continuation,
    Extras,
    HostInputs,
    join_rows,
)
from sparkrt_ros.runtime.outputs import check_finite, to_host
from sparkrt_ros.runtime.packing import Arrays, ObservationPacker
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter, PolicyContext, make_context
from sparkrt_ros.runtime.processors.relative import ANCHOR_KEY
from sparkrt_ros.runtime.stage_times import StageTimes
from sparkrt_ros.runtime.types import FloatArray, Observation

Preprocess = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
Postprocess = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Where one inference spent its time; each part ends with the device idle.

    stages_s: region of the model -> its share of model_s, in order; empty where the model runs as
        one recording, or is one region.
    """

    preprocess_s: float = 0.0
    model_s: float = 0.0
    postprocess_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        return self.preprocess_s + self.model_s + self.postprocess_s


@dataclass(frozen=True, kw_only=True)
class _Request:
    """One checked observation, and what else its prediction reads."""

    arrays: Arrays
    extras: Extras


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """A chunk (1, T, A) in model space, and in policy units where that is computed with it."""

    normalized: Tensor
    actions: Tensor | None = None


class Session:
    """Runs one policy for one robot. Not thread-safe: one thread uses it for all of its life.

    preprocessor: packed observation by key -> network inputs by policy key.
    postprocessor: model-space actions (1, T, A) or (1, A) -> the same shape in policy units;
        called with ``anchor=`` the raw state where preprocessing left one.
    mode: as the checkpoint says when None.
    source_keys: policy key -> key the preprocessor expects it under, where they differ.
    channels_last: whether the network prefers images in the memory order of a camera.
    inputs: what brings noise and instructions in; needed by policies that read instructions.
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
        inputs: HostInputs | None = None,
    ) -> None:
        needs = adapter.capabilities
        self._mode = resolve_mode(RuntimeConfig(), needs) if mode is None else mode
        self._adapter = adapter
        self._preprocessor = preprocessor
        self._postprocessor = postprocessor
        self._backend = backend
        self._chunk_shape = (1, needs.chunk_size, needs.action_size)
        self._stages = StageTimes(synchronize=backend.synchronize)
        self._context = self._stages.watch(make_context(adapter.regions(), backend=backend))
        self._packer = ObservationPacker(
            needs, device=backend.device, source_keys=source_keys, channels_last=channels_last
        )
        self._inputs = HostInputs(needs, device=backend.device) if inputs is None else inputs
        self._whole = self._compile_whole()
        self._queue = ActionQueue(n_action_steps=self._mode.n_action_steps)
        self._rest: FloatArray | None = None
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
        request = self._read(observation, noise=noise)
        if self._ensembler is not None:
            return self._ensemble(self._ensembler, request)
        if not self._queue:
            chunk = self._chunk(self._going_on(request))
            self._queue.refill(chunk)
            self._rest = chunk[self._mode.n_action_steps :]
        return self._queue.pop()

    def predict_chunk(
        self,
        observation: Observation,
        *,
        noise: Tensor | FloatArray | None = None,
        continuation: Continuation | None = None,
    ) -> FloatArray:
        """Return the chunk (T, A) float32 in policy units; touches neither queue nor ensemble.

        continuation: the chunk to go on from, for a policy whose configuration allows that.
        Raises as ``select_action``, and ConfigError for a continuation where it is not allowed.
        """
        return self._chunk(self._read(observation, noise=noise, continuation=continuation))

    def predict_batch(
        self, observations: Sequence[Observation], *, noise: Tensor | None = None
    ) -> FloatArray:
        """Return the chunks (B, T, A) float32 of several observations in one pass; for evaluation.

        noise: (B, ...) of an iterative policy. In parts, never as one region; every number of
        observations is a shape of its own, so once sealed only those seen before are served.
        """
        with torch.inference_mode():
            packed = self._pack_all(observations, noise)
            batch, anchor = self._prepare(packed)
            chunks = self._adapter.predict_chunk(self._context, batch, noise=batch.get(NOISE_KEY))
            actions: FloatArray = self._finish(chunks, self._in_units(chunks, anchor))
        return actions

    def guide(self, cfg_beta: float) -> None:
        """Change how much classifier-free guidance counts. Raises ConfigError without it."""
        self._inputs.guide(cfg_beta)

    def reset(self) -> None:
        """Forget the episode: queue, ensemble and whatever the policy remembers."""
        self._queue.clear()
        self._rest = None
        self._context.reset()
        if self._ensembler is not None:
            self._ensembler.reset()

    def warm_up(self) -> None:
        """Run the policy on an example until nothing is left to prepare; keeps the episode."""
        for length in self._inputs.lengths:
            example = self._read(self._packer.example(), length=length)
            self._backend.warm_up(partial(self._chunk, example))

    def seal(self) -> None:
        """From now on, whatever would need new preparation is a BackendError, not a stall."""
        self._backend.seal()

    def report(self) -> dict[str, Any]:
        """What the backend made of the parts, in plain values."""
        return self._backend.report()

    def predict_both(
        self,
        observation: Observation,
        *,
        noise: Tensor | None = None,
        continuation: Continuation | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Return one chunk in model space and in policy units, each (T, A) float32.

        The second is what ``predict_chunk`` returns, computed in the same way: a recording of
        the whole prediction yields both. Raises as ``predict_chunk``.
        """
        request = self._read(observation, noise=noise, continuation=continuation)
        with torch.inference_mode():
            prediction = self._infer(request)
            normalized = to_host(prediction.normalized)
            actions = self._finish(prediction.normalized, prediction.actions)
        return normalized[0], actions[0]

    def infer_normalized(self, observation: Observation) -> FloatArray:
        """Return the chunk (T, A) float32 in model space, for comparing forms with each other.

        An iterative policy starts from the same noise every time.
        """
        request = self._read(observation, noise=self._inputs.seeded_noise(0))
        with torch.inference_mode():
            prediction = self._infer(request)
            rows: FloatArray = to_host(prediction.normalized)[0]
        return rows

    def network_images(self, observation: Observation) -> list[Tensor]:
        """The images (1, C, H, W) float32 as preprocessing hands them to the network."""
        request = self._read(observation)
        with torch.inference_mode():
            batch = self._preprocessor(self._packer.pack(request.arrays))
            return [batch[key] for key in self._adapter.capabilities.camera_keys]

    def _read(
        self,
        observation: Observation,
        *,
        noise: Tensor | FloatArray | None = None,
        continuation: Continuation | None = None,
        length: int | None = None,
    ) -> _Request:
        arrays = self._packer.check(observation)
        state = arrays.get(STATE_KEY)
        extras = Extras(
            task=observation.task,
            state=None if state is None else state.astype(np.float32, copy=False),
            noise=None if noise is None else torch.as_tensor(noise),
            continuation=continuation,
            length=length,
        )
        return _Request(arrays=arrays, extras=extras)

    def _going_on(self, request: _Request) -> _Request:
        """In mode rtc, from the rows of the last chunk that were not played."""
        rest = self._rest
        if self._mode.name != 'rtc' or rest is None or not len(rest):
            return request
        continuation = Continuation(actions=rest, delay=0)
        return replace(request, extras=replace(request.extras, continuation=continuation))

    def _chunk(self, request: _Request) -> FloatArray:
        with torch.inference_mode():
            prediction = self._infer(request)
            rows: FloatArray = self._finish(prediction.normalized, prediction.actions)[0]
        return rows

    def _ensemble(self, ensembler: TemporalEnsembler, request: _Request) -> FloatArray:
        """Average in model space and only then leave it, as LeRobot does."""
        with torch.inference_mode():
            rows = to_host(self._infer(request).normalized)[0]
            check_finite(rows)
            mean = torch.from_numpy(ensembler.update(rows)).unsqueeze(0)
            action: FloatArray = self._finish(mean.to(self._backend.device))[0]
        return action

    def _infer(self, request: _Request) -> _Prediction:
        """Inputs through preprocessing and network, and with a whole region back out again."""
        apart = request.extras.noise is not None and NOISE_KEY not in self._inputs.keys
        if self._whole is None or apart:
            prediction = self._infer_in_parts(request)
        else:
            prediction = self._infer_whole(self._whole, request)
        if tuple(prediction.normalized.shape) != self._chunk_shape:
            raise ActionError(
                'policy output',
                found=f'shape {tuple(prediction.normalized.shape)}',
                expected=f'shape {self._chunk_shape}',
            )
        return prediction

    def _infer_in_parts(self, request: _Request) -> _Prediction:
        start = time.perf_counter()
        packed = {**self._packer.pack(request.arrays), **self._inputs.pack(request.extras)}
        batch, anchor = self._prepare(packed)
        self._backend.synchronize()
        ready = time.perf_counter()
        noise = batch.get(NOISE_KEY, request.extras.noise)
        chunk = self._adapter.predict_chunk(self._context, batch, noise=noise)
        self._backend.synchronize()
        model_s = time.perf_counter() - ready
        self._timing = Timing(
            preprocess_s=ready - start, model_s=model_s, stages_s=self._stages.take()
        )
        actions = None if anchor is None else self._in_units(chunk, anchor)
        return _Prediction(normalized=chunk, actions=actions)

    def _infer_whole(self, whole: RegionFunction, request: _Request) -> _Prediction:
        start = time.perf_counter()
        staged = (*self._packer.stage(request.arrays), *self._inputs.stage(request.extras))
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
        extra = len(self._inputs.keys)

        def predict(*staged: Tensor) -> tuple[Tensor, ...]:
            own = len(staged) - extra
            packed = self._packer.unpack(*staged[:own])
            batch, anchor = self._prepare({**packed, **self._inputs.unpack(*staged[own:])})
            chunk = self._adapter.predict_chunk(direct, batch, noise=batch.get(NOISE_KEY))
            return chunk, self._in_units(chunk, anchor)

        return self._backend.compile(
            Region(name='chunk', fn=predict, capturable=True, on_host=True)
        )

    def _prepare(self, packed: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """Preprocess; return the inputs of the network, and what relative actions start from."""
        batch = dict(self._preprocessor(packed))
        anchor = batch.get(ANCHOR_KEY)
        return self._inputs.finish(batch, anchor=anchor), anchor

    def _in_units(self, chunk: Tensor, anchor: Tensor | None) -> Tensor:
        if anchor is None:
            return self._postprocessor(chunk)
        return self._postprocessor(chunk, anchor=anchor)

    def _pack_all(
        self, observations: Sequence[Observation], noise: Tensor | None
    ) -> dict[str, Tensor]:
        """Pack observations one by one and put them together along the batch."""
        requests = [
            self._read(observation, noise=None if noise is None else noise[place])
            for place, observation in enumerate(observations)
        ]
        length = self._inputs.common_length([request.extras for request in requests])
        packed = []
        for request in requests:
            extras = self._inputs.pack(replace(request.extras, length=length))
            packed.append({**self._packer.pack(request.arrays), **extras})
        return {key: join_rows(key, [one[key] for one in packed]) for key in packed[0]}

    def _finish(self, normalized: Tensor, actions: Tensor | None = None) -> FloatArray:
        """Model space to policy units, on the host, in memory of its own."""
        start = time.perf_counter()
        result = to_host(self._postprocessor(normalized) if actions is None else actions)
        check_finite(result)
        self._timing = replace(self._timing, postprocess_s=time.perf_counter() - start)
        return result


def _make_ensembler(mode: SessionMode, *, chunk_size: int) -> TemporalEnsembler | None:
    coefficient = mode.temporal_ensemble_coeff
    if coefficient is None:
        return None
    # LeRobot's own expression: another exponential may differ in the last bit.
    weights = torch.exp(-coefficient * torch.arange(chunk_size)).numpy()
    return TemporalEnsembler(coefficient=coefficient, chunk_size=chunk_size, weights=weights)

"""Regions recorded into CUDA graphs: one launch per call instead of hundreds.

A recording is made once per input signature, on a stream of its own, and replayed by the thread
that made it. Host inputs and outputs of a region are part of the recording: it reads pinned
memory, computes, and writes pinned memory.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import (
    BaseBackend,
    Outputs,
    Region,
    Specialise,
)
from sparkrt_ros.runtime.backends.turns import CAPTURES
from sparkrt_ros.runtime.device import fp32_products
from sparkrt_ros.runtime.errors import BackendError

_log = logging.getLogger(__name__)

CAPTURE_ATTEMPTS = 3


@dataclass(kw_only=True)
class RegionReport:
    """What became of one region.

    reason: why it is not captured; empty while it is. failed: whether it was tried.
    """

    form: str
    reason: str = ''
    failed: bool = False
    recordings: int = 0
    replays: int = 0
    eager_calls: int = 0


class CudaGraphBackend(BaseBackend):
    """Captures every capturable region; a region that cannot be captured runs eagerly.

    Raises BackendError where there is no CUDA device.
    """

    name = 'cudagraph'
    warm_up_rounds = 2
    whole_chunk = True

    def __init__(
        self, *, device: torch.device, allow_tf32: bool = False, warm_up_runs: int = 3
    ) -> None:
        super().__init__(device=device, allow_tf32=allow_tf32)
        self.warm_up_runs = warm_up_runs
        if device.type != 'cuda':
            raise BackendError(
                'backend cudagraph',
                found=f'device {device}',
                expected='a CUDA device',
                remedy="choose backend 'fused' or 'eager'",
            )
        CAPTURES.install()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.reports: dict[str, RegionReport] = {}

    def _prepare(self, region: Region) -> Specialise:
        return self.prepare(region)

    def prepare(self, region: Region) -> Specialise:
        """Return what makes a captured form of a region for one kind of inputs."""
        report = RegionReport(form=self.name)
        self.reports[region.name] = report
        if not region.capturable:
            report.form, report.reason = 'eager', 'the region is not capturable'
        return lambda: _Captured(region, backend=self, report=report)

    def run_eagerly(self, region: Region, inputs: tuple[Tensor, ...]) -> Outputs:
        """Run a region as written, moving its inputs and outputs if they are the host's."""
        with self.arithmetic():
            if not region.on_host:
                return region.fn(*inputs)
            outputs = region.fn(*(value.to(self.device, non_blocking=True) for value in inputs))
            if isinstance(outputs, Tensor):
                return outputs.cpu()
            return tuple(value.cpu() for value in outputs)

    def arithmetic(self) -> AbstractContextManager[None]:
        """The arithmetic of this backend's tier, while it lasts."""
        return fp32_products(allow_tf32=self._allow_tf32)

    def report(self) -> dict[str, Any]:
        """See BaseBackend: one entry per region."""
        return {name: asdict(report) for name, report in self.reports.items()}


class _Captured:
    """A region for one kind of inputs: recorded at the first call, replayed at all."""

    def __init__(self, region: Region, *, backend: CudaGraphBackend, report: RegionReport) -> None:
        self._region, self._backend, self._report = region, backend, report
        self._recording: _Recording | None = None

    def __call__(self, *inputs: Tensor) -> Outputs:
        recording = self._recording
        if recording is None:
            recording = self._recording = self._record(inputs)
            if recording is None:
                self._report.eager_calls += 1
                return self._backend.run_eagerly(self._region, inputs)
        self._report.replays += 1
        return recording.replay(inputs)

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording | None:
        """Record, or say once why not; all of the region stays eager from then on."""
        if self._report.reason:
            return None
        problem = ''
        for _ in range(CAPTURE_ATTEMPTS):
            try:
                recording = _Recording(self._region, inputs, backend=self._backend)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                problem = str(error).splitlines()[0]
                continue
            self._report.recordings += 1
            return recording
        self._report.form, self._report.reason = 'eager', f'capture failed: {problem}'
        self._report.failed = True
        _log.warning('region %s runs eagerly: %s', self._region.name, self._report.reason)
        return None


class _Recording:
    """One captured graph with the memory it reads and writes."""

    def __init__(
        self, region: Region, inputs: tuple[Tensor, ...], *, backend: CudaGraphBackend
    ) -> None:
        self._region, self._stream = region, backend.stream
        self._sources = tuple(_source(value, on_host=region.on_host) for value in inputs)
        self._held: list[tuple[Tensor, int] | None] = [None] * len(inputs)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream), backend.arithmetic():
            self._fill(inputs)
            self._results = self._warm_up(backend.warm_up_runs)
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with CAPTURES.alone(), _no_collection(), _own_workspaces(), self._capturing():
                outputs = self._compute()
                if region.on_host:
                    for result, output in zip(self._results, outputs, strict=True):
                        result.copy_(output, non_blocking=True)
                else:
                    self._results = outputs

    def _capturing(self) -> torch.cuda.graph:
        # Thread-local: allocations and copies of other threads neither fail nor break this. Their
        # waiting for the whole device would; CAPTURES has that take turns with captures.
        return torch.cuda.graph(
            self._graph, stream=self._stream, capture_error_mode='thread_local'
        )

    def _warm_up(self, runs: int) -> tuple[Tensor, ...]:
        """Run until nothing is left to initialise; return memory for results on the host.

        It is made here because pinned memory may not be allocated during a capture.
        """
        for _ in range(runs):
            outputs = self._compute()
        if not self._region.on_host:
            return ()
        return tuple(
            torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in outputs
        )

    def _compute(self) -> tuple[Tensor, ...]:
        device = self._stream.device
        outputs = self._region.fn(*(s.to(device, non_blocking=True) for s in self._sources))
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def replay(self, inputs: tuple[Tensor, ...]) -> Outputs:
        """Bring the inputs in, launch the graph once, and hand its results out.

        On the caller's stream, like any operator; but work for the host has a stream of its own,
        so that nobody else's work is waited for.
        """
        if self._region.on_host:
            self._replay_for_host(inputs)
        else:
            self._fill(inputs)
            self._graph.replay()
        return self._results[0] if len(self._results) == 1 else self._results

    def _replay_for_host(self, inputs: tuple[Tensor, ...]) -> None:
        with torch.cuda.stream(self._stream):
            self._fill(inputs)
            self._graph.replay()
            self._done.record()
        self._done.synchronize()

    def _fill(self, inputs: tuple[Tensor, ...]) -> None:
        """Bring new values into the memory the graph reads; what it already holds is skipped."""
        first_invariant = self._region.invariant_from
        for index, (source, value) in enumerate(zip(self._sources, inputs, strict=True)):
            if value is source:
                continue
            invariant = first_invariant is not None and index >= first_invariant
            if invariant and self._holds(index, value):
                continue
            source.copy_(value, non_blocking=True)

    def _holds(self, index: int, value: Tensor) -> bool:
        """Whether this very tensor, unchanged since, was copied last; notes that it now is."""
        if value.is_inference():
            # Such a tensor counts no versions, so a change in place could not be seen.
            return False
        held = self._held[index]
        self._held[index] = (value, value._version)
        return held is not None and held[0] is value and held[1] == value._version


def _source(value: Tensor, *, on_host: bool) -> Tensor:
    """Memory a graph may read at every replay: the caller's own where it stays pinned."""
    if on_host:
        return value if value.is_pinned() else value.clone().pin_memory()
    return value.clone(memory_format=torch.preserve_format)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Have cuBLAS allocate its workspaces in the memory of the graph that is captured meanwhile.

    It keeps one for every stream it has seen, and whoever else captures in this process may free
    them all (torch.compile does): a graph that had recorded their addresses would then write into
    memory of others.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        # What the graph holds stays its own; others are not to use it.
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing device memory in the middle of a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

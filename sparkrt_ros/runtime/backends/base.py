"""The contract between a policy and whatever executes it.

A policy hands over ``Region`` objects: pure functions from tensors to tensors. A backend turns
each into a callable that computes the same, and may for that record it, compile it or replay it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkrt_ros.runtime.errors import BackendError

Outputs = Tensor | tuple[Tensor, ...]
RegionFunction = Callable[..., Outputs]
# What a region becomes for inputs of one kind.
Specialise = Callable[[], RegionFunction]
TensorSignature = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


@dataclass(frozen=True, kw_only=True)
class Region:
    """One piece of a policy that a backend may execute in its own way.

    fn: takes tensors by position, returns a tensor or a tuple of tensors; reads nothing else
        that changes, writes nothing, and has the same number of inputs at every call.
    capturable: whether a recording of ``fn`` can be replayed: no control flow that depends on
        values, no waiting for the device, every input on the device.
    invariant_from: inputs from this index on stay the same objects, with the same values, over
        the calls that make up one prediction (the prefix of an iterative policy). None: no such
        inputs.
    on_host: inputs are given, and outputs wanted, in host memory, although ``fn`` computes on the
        device: the backend moves them.
    """

    name: str
    fn: RegionFunction
    capturable: bool = False
    invariant_from: int | None = None
    on_host: bool = False


class ExecutionBackend(Protocol):
    """Turns regions into callables and says when they are final.

    The outputs of a compiled region may live in buffers that the next call of the same region
    overwrites; whoever lets data out copies it first. A recording is replayed by the thread that
    made it, so one thread uses a backend for all of its life.
    """

    @property
    def name(self) -> str:
        """The name under which the registry makes it."""

    @property
    def device(self) -> torch.device:
        """Where the regions run."""

    @property
    def whole_chunk(self) -> bool:
        """Whether to hand it a whole prediction, from pixels to actions, as one region."""

    @property
    def sealed(self) -> bool:
        """Whether ``seal`` was called."""

    def compile(self, region: Region) -> RegionFunction:
        """Return a callable that computes ``region.fn``.

        Raises BackendError when sealed, or when this backend cannot serve the region.
        """

    def warm_up(self, run: Callable[[], object]) -> None:
        """Call ``run`` until every region it reaches has its final form, and wait for it."""

    def seal(self) -> None:
        """From now on an input of unseen shape, strides, dtype or device is a BackendError."""

    def synchronize(self) -> None:
        """Wait until everything submitted so far is done."""

    def report(self) -> dict[str, Any]:
        """What became of the regions, in plain values; empty when there is nothing to tell."""


class BaseBackend(ABC):
    """What all backends share: known input signatures, sealing, waiting.

    A subclass gives ``name``, ``warm_up_rounds`` and ``_prepare``.
    """

    name: str
    warm_up_rounds: int = 1
    whole_chunk: bool = False

    def __init__(self, *, device: torch.device, allow_tf32: bool = False) -> None:
        self._device = device
        self._allow_tf32 = allow_tf32
        self._sealed = False

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def sealed(self) -> bool:
        return self._sealed

    def compile(self, region: Region) -> RegionFunction:
        """See ExecutionBackend."""
        if self._sealed:
            raise BackendError(
                f'backend {self.name}, region {region.name}',
                found='a request to compile after sealing',
                expected='all regions compiled before seal()',
                remedy='build a new session',
            )
        return _Guarded(region, specialise=self._prepare(region), backend=self)

    def warm_up(self, run: Callable[[], object]) -> None:
        """See ExecutionBackend."""
        for _ in range(self.warm_up_rounds):
            run()
        self.synchronize()

    def seal(self) -> None:
        """See ExecutionBackend."""
        self._sealed = True

    def synchronize(self) -> None:
        """See ExecutionBackend."""
        if self._device.type == 'cuda':
            torch.cuda.synchronize(self._device)

    def report(self) -> dict[str, Any]:
        """See ExecutionBackend."""
        return {}

    @abstractmethod
    def _prepare(self, region: Region) -> Specialise:
        """Return what makes the callable of a region, anew for every kind of inputs."""


class _Guarded:
    """A compiled region with a callable for each kind of inputs it has served."""

    def __init__(self, region: Region, *, specialise: Specialise, backend: BaseBackend) -> None:
        self._region = region
        self._specialise = specialise
        self._backend = backend
        self._known: dict[tuple[TensorSignature, ...], RegionFunction] = {}
        # The same callables by shapes and strides as they come, which is quicker to look up.
        self._quick: dict[tuple[object, ...], RegionFunction] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        quick = tuple([(x.shape, x.stride(), x.dtype, x.device) for x in inputs])
        run = self._quick.get(quick)
        if run is None:
            run = self._quick[quick] = self._find(inputs)
        return run(*inputs)

    def _find(self, inputs: tuple[Tensor, ...]) -> RegionFunction:
        found = tuple(signature(tensor) for tensor in inputs)
        run = self._known.get(found)
        if run is not None:
            return run
        if self._backend.sealed:
            known = '; '.join(_describe(item) for item in self._known) or 'none'
            raise BackendError(
                f'backend {self._backend.name}, region {self._region.name}',
                found=f'inputs {_describe(found)} after sealing',
                expected=f'inputs seen before sealing: {known}',
                remedy='warm up with these inputs before sealing',
            )
        run = self._known[found] = self._specialise()
        return run


def signature(tensor: Tensor) -> TensorSignature:
    """What a recording depends on: shape, strides, dtype and device of an input.

    The stride of a dimension of size 1 says nothing, so it counts as 0.
    """
    shape = tuple(tensor.shape)
    strides = tuple(
        0 if size == 1 else step for size, step in zip(shape, tensor.stride(), strict=True)
    )
    return shape, strides, tensor.dtype, tensor.device


def _describe(signatures: tuple[TensorSignature, ...]) -> str:
    parts = (
        f'{shape} strides {strides} {str(dtype).removeprefix("torch.")} on {device}'
        for shape, strides, dtype, device in signatures
    )
    return f'[{", ".join(parts)}]'

"""Regions compiled by inductor, and on a GPU captured on top."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from sparkrt_ros.runtime.backends.base import BaseBackend, Region, Specialise
from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend


def compiled(region: Region, *, mode: str) -> Region:
    """The region with its function compiled as one graph for fixed shapes."""
    fn = torch.compile(region.fn, mode=mode, fullgraph=True, dynamic=False)
    return replace(region, fn=fn)


class TorchCompileBackend(BaseBackend):
    """Inductor; on a GPU what it compiles is captured like any other region."""

    name = 'torchcompile'
    warm_up_rounds = 2

    def __init__(
        self,
        *,
        device: torch.device,
        allow_tf32: bool = False,
        mode: str = 'default',
        warm_up_runs: int = 3,
    ) -> None:
        super().__init__(device=device, allow_tf32=allow_tf32)
        self._mode = mode
        self._capture: CudaGraphBackend | None = None
        if device.type == 'cuda':
            self._capture = CudaGraphBackend(
                device=device, allow_tf32=allow_tf32, warm_up_runs=warm_up_runs
            )
        self.whole_chunk = self._capture is not None

    def _prepare(self, region: Region) -> Specialise:
        fast = compiled(region, mode=self._mode)
        return (lambda: fast.fn) if self._capture is None else self._capture.prepare(fast)

    def report(self) -> dict[str, Any]:
        """See BaseBackend."""
        return {} if self._capture is None else self._capture.report()

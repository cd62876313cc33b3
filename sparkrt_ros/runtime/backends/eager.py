"""The reference backend: regions run as written."""

from __future__ import annotations

from torch import Tensor

from sparkrt_ros.runtime.backends.base import BaseBackend, Outputs, Region, RegionFunction
from sparkrt_ros.runtime.device import full_fp32


class EagerBackend(BaseBackend):
    """Runs each region as the plain function it is, in full fp32.

    On CUDA, convolutions may otherwise round their inputs to TF32 (10 bits of mantissa), which is
    far outside what a reference may differ by.
    """

    name = 'eager'

    def _prepare(self, region: Region) -> RegionFunction:
        if self.device.type != 'cuda':
            return region.fn

        def run(*inputs: Tensor) -> Outputs:
            with full_fp32():
                return region.fn(*inputs)

        return run

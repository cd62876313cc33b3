"""Regions run one operator after the other: as written, or in their fused form."""

from __future__ import annotations

from torch import Tensor

from sparkrt_ros.runtime.backends.base import BaseBackend, Outputs, Region, Specialise
from sparkrt_ros.runtime.device import fp32_products


class EagerBackend(BaseBackend):
    """Runs each region as the plain function it is, in full fp32 unless TF32 was asked for.

    On CUDA, convolutions may otherwise round their inputs to TF32 (10 bits of mantissa), which is
    far outside what a reference may differ by.
    """

    name = 'eager'

    def _prepare(self, region: Region) -> Specialise:
        if self.device.type != 'cuda':
            return lambda: region.fn

        def run(*inputs: Tensor) -> Outputs:
            with fp32_products(allow_tf32=self._allow_tf32):
                return region.fn(*inputs)

        return lambda: run


class FusedBackend(EagerBackend):
    """The fused form of a policy, run operator by operator; the fast way on a CPU."""

    name = 'fused'

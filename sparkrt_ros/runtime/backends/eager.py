"""The reference backend: regions run as written."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import BaseBackend, Outputs, Region, RegionFunction


class EagerBackend(BaseBackend):
    """Runs each region as the plain function it is, in full fp32.

    On CUDA, convolutions and products would otherwise be free to round their inputs to TF32
    (10 bits of mantissa), which moves an action by about 1e-3; the switches are set around each
    call and put back after it.
    """

    name = 'eager'

    def _prepare(self, region: Region) -> RegionFunction:
        if self.device.type != 'cuda':
            return region.fn

        def run(*inputs: Tensor) -> Outputs:
            with full_fp32():
                return region.fn(*inputs)

        return run


class full_fp32:  # noqa: N801 (used as a function)
    """Context in which CUDA matrix products and convolutions keep all of fp32."""

"""Forms on NVIDIA GPUs with Triton: what cuDNN and PyTorch do slowly or in several launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.kernels.cudnn import CudnnForms
from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, Wires
from sparkrt_ros.runtime.kernels.triton_kernels import add_norm, gather_pixels, max_pool_3x3

# cuDNN reads whole groups of channels: three of them it would copy into four first.
_PIXEL_CHANNELS = 4


class TritonForms(CudnnForms):
    """As ``CudnnForms``, with own kernels for pictures, pooling, and additions before norms."""

    name = 'triton'

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms. A convolution of pictures takes them as ``pixels`` returns them."""
        missing = _PIXEL_CHANNELS - weights.weight.shape[1]
        if missing > 0:
            weights = replace(weights, weight=F.pad(weights.weight, (0, 0, 0, 0, 0, missing)))
        return super().conv(weights, wires=wires)

    def pixels(self, images: Sequence[Tensor]) -> Tensor:
        """See Forms; with a fourth channel of zeros."""
        laid_out = [image.contiguous(memory_format=torch.channels_last) for image in images]
        return gather_pixels(laid_out, channels=_PIXEL_CHANNELS, dtype=self.dtype)

    def pool(self, x: Tensor) -> Tensor:
        """See Forms."""
        return max_pool_3x3(x)

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """See Forms."""
        return add_norm(x, y, norm.weight, norm.bias, norm.eps)

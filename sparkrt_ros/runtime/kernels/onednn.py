"""Forms on CPUs: oneDNN with weights packed once, and additions and ReLU inside the operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, LinearForm, PlainForms
from sparkrt_ros.runtime.malloc import keep_freed_memory

_ops: Any = torch.ops.mkldnn


class OneDnnForms(PlainForms):
    """Packs every weight into the layout that the processor's instructions want.

    Making one also has the process keep its freed memory; see ``malloc.keep_freed_memory``.
    """

    name = 'onednn'

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device=device, dtype=dtype)
        keep_freed_memory()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Forms. In narrow types products in oneDNN beat the kernel that PyTorch fuses."""
        if self.dtype == torch.float32:
            return super().attend(q, k, v)
        weights = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).softmax(dim=-1)
        return torch.bmm(weights, v)

    def conv(self, weights: ConvWeights) -> ConvForm:
        """See Forms."""
        return OneDnnConv(weights, dtype=self.dtype)

    def linear(
        self, weight: Tensor, bias: Tensor | None, *, activation: str | None = None
    ) -> LinearForm:
        """See Forms."""
        return OneDnnLinear(weight.to(self.dtype), self.cast(bias), activation)


class OneDnnConv:
    """See ConvForm."""

    def __init__(self, weights: ConvWeights, *, dtype: torch.dtype) -> None:
        stride = list(weights.stride)
        self._skip = 1
        if weights.weight.shape[2:] == (1, 1) and stride == [2, 2]:
            # oneDNN has no good way to skip pixels: taking every second one first is faster.
            self._skip, stride = 2, [1, 1]
        self.geometry = (list(weights.padding), stride, list(weights.dilation), 1)
        self.bias = weights.bias.to(dtype)
        self.weight = _ops._reorder_convolution_weight(
            weights.weight.to(dtype).contiguous(memory_format=torch.channels_last), *self.geometry
        )

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, self.bias, 'relu')

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        result: Tensor = _ops._convolution_pointwise_.binary(
            shortcut, x, self.weight, self.bias, *self.geometry, 'add', 1.0, 'relu', [], None
        )
        return result

    def plain(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, None, 'none')

    def _pointwise(self, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        if self._skip > 1:
            x = x[:, :, :: self._skip, :: self._skip].contiguous(memory_format=torch.channels_last)
        result: Tensor = _ops._convolution_pointwise(
            x, self.weight, bias, *self.geometry, activation, [], ''
        )
        return result


class OneDnnLinear:
    """See LinearForm."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None) -> None:
        self.bias, self.activation = bias, activation
        self.weight = _ops._reorder_linear_weight(weight.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """See LinearForm."""
        if self.activation == 'relu':
            result: Tensor = _ops._linear_pointwise(x, self.weight, self.bias, 'relu', [], '')
            return result
        y: Tensor = _ops._linear_pointwise(x, self.weight, self.bias, 'none', [], '')
        return F.gelu(y) if self.activation == 'gelu' else y

"""Forms on NVIDIA GPUs: convolutions that add and rectify in cuDNN, products that rectify."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkrt_ros.runtime.kernels.forms import (
    ConvForm,
    ConvWeights,
    LinearForm,
    PlainConv,
    PlainForms,
    Wires,
)


class CudnnForms(PlainForms):
    """Half the launches of ``PlainForms``: bias, shortcut and ReLU ride along."""

    name = 'cudnn'

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms."""
        return CudnnConv(weights, device=self.device, dtype=self.dtype)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
    ) -> LinearForm:
        """See Forms."""
        if activation is None or bias is None:
            return super().linear(weight, bias, activation=activation)
        return CublasActivation(
            weight.to(self.device, self.dtype), bias.to(self.device, self.dtype), activation
        )

    def head(self, weight: Tensor, bias: Tensor) -> LinearForm:
        """See Forms."""
        if self.dtype == torch.float32:
            return super().head(weight, bias)
        return WideningLinear(weight.to(self.device, self.dtype), bias.to(self.device).float())


class CudnnConv(PlainConv):
    """See ConvForm."""

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return torch.cudnn_convolution_relu(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, 1
        )

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        return torch.cudnn_convolution_add_relu(
            x, self.weight, shortcut, 1.0, self.bias, self.stride, self.padding, self.dilation, 1
        )


class CublasActivation:
    """A linear layer whose activation is part of the product; GELU exactly, in a kernel after."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: str) -> None:
        self.weight_t, self.bias, self.activation = weight.t(), bias, activation

    def __call__(self, x: Tensor) -> Tensor:
        """See LinearForm."""
        if self.activation == 'relu':
            return torch._addmm_activation(self.bias, x, self.weight_t, use_gelu=False)
        # cuBLAS offers only the tanh approximation of GELU, which is another function.
        return F.gelu(torch.addmm(self.bias, x, self.weight_t))


class WideningLinear:
    """A product of narrow operands whose fp32 sum is kept: (M, I) -> (M, O) float32.

    A product in fp32 of so few columns would take longer than a whole layer before it.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight_t, self.bias = weight.t(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """See LinearForm."""
        return torch.mm(x, self.weight_t, out_dtype=torch.float32).add_(self.bias)

"""The layers a fused network is made of, and the form of them that works everywhere.

A form holds weights that are ready to use (folded, cast, laid out, packed) and computes one layer
together with what follows it. Shapes: ``B`` batch, ``C`` channels, ``H, W`` pixels, ``M`` rows,
``I`` input and ``O`` output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.policies.resnet import FrozenBatchNorm2d


@dataclass(frozen=True, kw_only=True)
class ConvWeights:
    """A convolution with the normalisation after it folded in.

    weight: (O, I, kh, kw); bias: (O,); both float32. ``conv(x) * scale + shift`` equals one
    convolution with ``weight * scale`` and bias ``shift``.
    """

    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def fold(cls, conv: nn.Conv2d, norm: FrozenBatchNorm2d) -> ConvWeights:
        assert not isinstance(conv.padding, str)
        weight = conv.weight.detach().double() * norm.scale.double().reshape(-1, 1, 1, 1)
        return cls(
            weight=weight.float(),
            bias=norm.shift.detach().reshape(-1).float(),
            stride=tuple(conv.stride),
            padding=tuple(conv.padding),
            dilation=tuple(conv.dilation),
        )


@dataclass(frozen=True, kw_only=True)
class Wires:
    """Names of the tensors at the ends of a layer, for forms that treat each by its own range.

    reads: the input. adds: the shortcut of a convolution. writes: the result, where nothing but
    other forms read it, under this name; without it anything may, so it is floating-point.
    """

    reads: str
    writes: str | None = None
    adds: str | None = None


class ConvForm(Protocol):
    """One convolution; inputs and outputs are (B, C, H, W) in channels-last memory."""

    def relu(self, x: Tensor) -> Tensor:
        """``max(conv(x) + bias, 0)``."""

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """``max(conv(x) + bias + shortcut, 0)``; the shortcut may be overwritten."""

    def plain(self, x: Tensor) -> Tensor:
        """``conv(x)``, without the bias."""


class LinearForm(Protocol):
    """One linear layer on rows: (M, I) -> (M, O)."""

    def __call__(self, x: Tensor) -> Tensor:
        """``activation(x W + bias)``."""


class Forms(Protocol):
    """Makes the forms of one device and dtype."""

    name: str

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """Prepare a convolution."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
    ) -> LinearForm:
        """Prepare a linear layer: weight (O, I), bias (O,), activation relu, gelu or None."""

    def head(self, weight: Tensor, bias: Tensor) -> LinearForm:
        """Prepare the last layer, whose result is float32 whatever the dtype of its input."""

    def pixels(self, images: Sequence[Tensor]) -> Tensor:
        """Images (1, 3, H, W) of equal size as the first convolution wants them: (n, C, H, W).

        In channels-last memory and the dtype of the forms; C is 3, or more with zeros added.
        """

    def pool(self, x: Tensor) -> Tensor:
        """Maximum over 3x3 pixels, stride 2, padding 1; (B, C, H, W) in channels-last memory.

        Of values from 0 on, as a ReLU leaves them.
        """

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """``norm(x + y)`` over the last dimension."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``softmax(q k^T / sqrt(d)) v`` per head: (N, Q, d), (N, K, d) twice -> (N, Q, d)."""


class PlainForms:
    """Separate PyTorch operators; right on every device, and what the others are checked by."""

    name = 'plain'

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms."""
        return PlainConv(weights, device=self.device, dtype=self.dtype)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
    ) -> LinearForm:
        """See Forms."""
        return PlainLinear(self.cast(weight), self.cast(bias), activation=activation)

    def head(self, weight: Tensor, bias: Tensor) -> LinearForm:
        """See Forms."""
        wide = (value.to(self.device, torch.float32) for value in (weight, bias))
        return PlainLinear(*wide, activation=None)

    def cast(self, value: Tensor | None) -> Tensor | None:
        """A parameter on the device, in the dtype of these forms; None stays None."""
        return None if value is None else value.to(self.device, self.dtype)

    def pixels(self, images: Sequence[Tensor]) -> Tensor:
        """See Forms. Cast first: fewer bytes to move, and the memory order is then certain."""
        cast = [image.to(self.dtype, memory_format=torch.channels_last) for image in images]
        return cast[0] if len(cast) == 1 else torch.cat(cast)

    def pool(self, x: Tensor) -> Tensor:
        """See Forms."""
        return F.max_pool2d(x, 3, stride=2, padding=1)

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Tensor:
        """See Forms."""
        return F.layer_norm(x + y, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Forms."""
        mixed = F.scaled_dot_product_attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        return mixed.squeeze(0)


class PlainConv:
    """See ConvForm."""

    def __init__(self, weights: ConvWeights, *, device: torch.device, dtype: torch.dtype) -> None:
        self.stride, self.padding = list(weights.stride), list(weights.padding)
        self.dilation = list(weights.dilation)
        self.weight = weights.weight.to(device, dtype, memory_format=torch.channels_last)
        self.bias = weights.bias.to(device, dtype)

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._conv(x, self.bias).relu_()

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        return self._conv(x, self.bias).add_(shortcut).relu_()

    def plain(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._conv(x, None)

    def _conv(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, self.weight, bias, self.stride, self.padding, self.dilation)


class PlainLinear:
    """See LinearForm."""

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, *, activation: str | None
    ) -> None:
        assert weight is not None
        self.weight, self.bias, self.activation = weight, bias, activation

    def __call__(self, x: Tensor) -> Tensor:
        """See LinearForm."""
        y = F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        if self.activation == 'relu':
            return y.relu_()
        return F.gelu(y) if self.activation == 'gelu' else y

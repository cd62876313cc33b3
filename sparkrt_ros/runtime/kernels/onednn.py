"""Forms on CPUs: oneDNN with weights packed once, and additions and ReLU inside the operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkrt_ros.runtime.kernels.forms import (
    ConvForm,
    ConvWeights,
    LinearForm,
    PlainForms,
    Wires,
)
from sparkrt_ros.runtime.malloc import keep_freed_memory

_ops: Any = torch.ops.mkldnn
# Values of 16 bits in the widest register.
_REGISTER = 32
_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.uint8: torch.uint8,
}


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
        return attend_narrow(q, k, v, dtype=self.dtype)

    def pool(self, x: Tensor) -> Tensor:
        """See Forms. From 0 on, numbers are in the order of the integers with the same bits."""
        if x.dtype == torch.float32:
            return super().pool(x)
        pixels = x.permute(0, 2, 3, 1).view(_INTEGERS[x.dtype])
        found = _maximum_of_three(_maximum_of_three(pixels, dim=1), dim=2)
        return found.view(x.dtype).permute(0, 3, 1, 2)

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms."""
        return OneDnnConv(weights, dtype=self.dtype)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
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
        self._weight: Tensor | None = weights.weight.to(dtype)
        self._packed: dict[tuple[int, ...], Tensor] = {}

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, self.bias, 'relu')

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        weight = self._pack(x)
        result: Tensor = _ops._convolution_pointwise_.binary(
            shortcut, x, weight, self.bias, *self.geometry, 'add', 1.0, 'relu', [], None
        )
        return result

    def plain(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, None, 'none')

    def _pointwise(self, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        if self._skip > 1:
            x = x[:, :, :: self._skip, :: self._skip].contiguous(memory_format=torch.channels_last)
        result: Tensor = _ops._convolution_pointwise(
            x, self._pack(x), bias, *self.geometry, activation, [], ''
        )
        return result

    def _pack(self, x: Tensor) -> Tensor:
        """The weights in the order that suits this size of input.

        The library chooses the order by the size; packed for another, they would be brought into
        that order anew at every call, which may take longer than the convolution itself.
        """
        shape = tuple(x.shape)
        if shape not in self._packed:
            weight = self._weight
            if weight is None:
                weight = next(iter(self._packed.values())).to_dense()
            self._packed[shape] = _ops._reorder_convolution_weight(
                weight.contiguous(memory_format=torch.channels_last), *self.geometry, list(shape)
            )
            # Not kept twice: it can be had back from any of the packed ones.
            self._weight = None
        return self._packed[shape]


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


def attend_narrow(q: Tensor, k: Tensor, v: Tensor, *, dtype: torch.dtype) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` in ``dtype``, 16 bits wide; shapes as ``Forms.attend``.

    Rows of scores that fill whole registers are a fifth faster, so keys are added that weigh 0.
    """
    keys = k.shape[1]
    count = -(-keys // _REGISTER) * _REGISTER
    scaled = (q * q.shape[-1] ** -0.5).to(dtype)
    scores = torch.bmm(scaled, _with_rows(k, count, dtype).transpose(1, 2))
    scores[:, :, keys:] = float('-inf')
    return torch.bmm(scores.softmax(dim=-1), _with_rows(v, count, dtype))


def _with_rows(x: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """(N, K, d) as (N, count, d), with rows of zeros at the end."""
    out = x.new_zeros((x.shape[0], count, x.shape[2]), dtype=dtype)
    out[:, : x.shape[1]] = x
    return out


def _maximum_of_three(x: Tensor, *, dim: int) -> Tensor:
    """Maxima of elements ``2 i - 1``, ``2 i``, ``2 i + 1`` along ``dim``, those that there are.

    Once down and once across it is a pooling over 3x3 with a stride of 2.
    """
    before = (slice(None),) * dim
    even, odd = x[(*before, slice(0, None, 2))], x[(*before, slice(1, None, 2))]
    pairs = odd.shape[dim]
    out = torch.empty_like(even)
    torch.maximum(even.narrow(dim, 0, pairs), odd, out=out.narrow(dim, 0, pairs))
    if even.shape[dim] > pairs:
        out.narrow(dim, pairs, 1).copy_(even.narrow(dim, pairs, 1))
    later = out.shape[dim] - 1
    after = out.narrow(dim, 1, later)
    torch.maximum(after, odd.narrow(dim, 0, later), out=after)
    return out

"""Forms on CPUs with int8 instructions: weights of 8 bits, and activations of 8 bits on wires.

A value travels as an unsigned byte ``q`` that means ``low + q * step`` (``Levels``); weights are
signed bytes with a step per output channel ``o`` (arXiv:1712.05877, arXiv:2004.09602). With the
steps of the input multiplied into the weights before these are rounded to ``r``,

    sum_k x_k w_ok + bias_o =
        step_o * sum_k q_k r_ok + (bias_o + step_o * sum_k r_ok low_k / step_k)

so where a range begins is a matter of the bias, and the operators know of no zero points. The
same holds for the shortcut and the result. What no wire names stays fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, LinearForm, Wires
from sparkrt_ros.runtime.kernels.onednn import OneDnnForms, attend_narrow
from sparkrt_ros.runtime.kernels.to_bytes import PicturesToBytes, RowsToBytes
from sparkrt_ros.runtime.precision.calibration import Calibration, Levels

_ops: Any = torch.ops.onednn
_LARGEST = 127


class Int8Forms(OneDnnForms):
    """Layers on wires compute in int8 by the ranges of ``calibration``, the rest in fp32.

    attention_dtype: of the two products inside attention.
    """

    name = 'int8'

    def __init__(
        self, calibration: Calibration, *, device: torch.device, attention_dtype: torch.dtype
    ) -> None:
        super().__init__(device=device, dtype=torch.float32)
        self._calibration = calibration
        self.attention_dtype = attention_dtype

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms."""
        if wires is None:
            return super().conv(weights)
        return Int8Conv(weights, wires, self._calibration)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
    ) -> LinearForm:
        """See Forms."""
        if wires is None:
            return super().linear(weight, bias, activation=activation)
        reads = self._calibration.levels(wires.reads)
        writes = None if wires.writes is None else self._calibration.levels(wires.writes)
        return Int8Linear(weight, reads, bias=bias, activation=activation, writes=writes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Forms."""
        dtype = self.attention_dtype
        if dtype == torch.float32:
            return super().attend(q, k, v)
        return attend_narrow(q, k, v, dtype=dtype).float()


class Int8Conv:
    """See ConvForm; reads bytes, or floats that it turns into bytes first, and writes bytes.

    Its operations write three kinds of results: from 0 on, the same with a shortcut, and signed.
    """

    def __init__(self, weights: ConvWeights, wires: Wires, calibration: Calibration) -> None:
        assert wires.writes is not None
        reads, writes = calibration.levels(wires.reads), calibration.levels(wires.writes)
        self._rounded = _RoundedWeights.of(weights.weight, reads)
        self._bias = weights.bias + self._rounded.offset
        self._signed_bias = self._rounded.offset - float(writes.low[0])
        self._writes_step = float(writes.step[0])
        if wires.adds is not None:
            adds = calibration.levels(wires.adds)
            self._sum_bias = self._bias + float(adds.low[0])
            self._adds_step = float(adds.step[0])
        self._padding, self._stride = list(weights.padding), list(weights.stride)
        self._dilation = list(weights.dilation)
        self._to_bytes = PicturesToBytes(reads)
        if reads.low.any():
            # The operator pads with bytes of 0, which here would not mean 0.
            self._to_bytes = PicturesToBytes(reads, padding=weights.padding)
            self._padding = [0, 0]
        self._packed: dict[tuple[int, ...], Tensor] = {}
        # Named once: finding the right overload at each call takes as long as a small layer.
        self._compute = _ops.qconv2d_pointwise.default
        self._compute_sum = _ops.qconv2d_pointwise.binary

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, self._bias, 'relu')

    def plain(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        return self._pointwise(x, self._signed_bias, 'none')

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        result: Tensor = self._compute_sum(
            *self._operands(x),
            shortcut,
            self._sum_bias,
            *self._geometry(),
            self._writes_step,
            0,
            torch.uint8,
            self._adds_step,
            0,
            'sum',
            1.0,
            'relu',
            [],
            '',
        )
        return result

    def _pointwise(self, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        result: Tensor = self._compute(
            *self._operands(x),
            bias,
            *self._geometry(),
            self._writes_step,
            0,
            torch.uint8,
            activation,
            [],
            '',
        )
        return result

    def _operands(self, x: Tensor) -> tuple[Any, ...]:
        """Bytes and weights, each with its step and zero point."""
        x = self._to_bytes(x)
        return (x, 1.0, 0, self._pack(x), self._rounded.steps, self._rounded.zeros)

    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        return self._stride, self._padding, self._dilation, 1

    def _pack(self, x: Tensor) -> Tensor:
        """The weights in the order that suits this size of input; the library chooses by it."""
        shape = tuple(x.shape)
        if shape not in self._packed:
            rounded = self._rounded
            self._packed[shape] = _ops.qconv_prepack(
                rounded.values, rounded.steps, 1.0, 0, *self._geometry(), list(shape)
            )
        return self._packed[shape]


class Int8Linear:
    """See LinearForm; reads bytes, or floats that it turns into bytes first.

    After a ReLU it writes bytes where it knows the levels that others read; otherwise float32.
    """

    def __init__(
        self,
        weight: Tensor,
        reads: Levels,
        *,
        bias: Tensor | None = None,
        activation: str | None = None,
        writes: Levels | None = None,
    ) -> None:
        rounded = _RoundedWeights.of(weight, reads)
        self._to_bytes = RowsToBytes(reads)
        self._weights = _ops.qlinear_prepack(rounded.values, None), rounded.steps, rounded.zeros
        self._bias = rounded.offset if bias is None else bias + rounded.offset
        self._activation = activation
        self._compute = _ops.qlinear_pointwise.default
        self._result: tuple[float, int, torch.dtype] = (1.0, 0, torch.float32)
        if activation == 'relu' and writes is not None:
            self._result = (float(writes.step[0]), 0, torch.uint8)

    def __call__(self, x: Tensor) -> Tensor:
        """See LinearForm."""
        after = 'relu' if self._activation == 'relu' else 'none'
        y: Tensor = self._compute(
            self._to_bytes(x), 1.0, 0, *self._weights, self._bias, *self._result, after, [], ''
        )
        return F.gelu(y) if self._activation == 'gelu' else y


@dataclass(frozen=True, kw_only=True)
class _RoundedWeights:
    """Weights with the steps of their input multiplied in, as int8.

    values: (O, I, ...). steps: (O,) float32, what one unit of a value means. offset: (O,) float32,
    what the lows of the input add up to. zeros: (O,) int32.
    """

    values: Tensor
    steps: Tensor
    offset: Tensor
    zeros: Tensor

    @classmethod
    def of(cls, weight: Tensor, reads: Levels) -> _RoundedWeights:
        taps = weight.detach().double().cpu().reshape(*weight.shape[:2], -1)
        channels = np.ones(weight.shape[1])
        step, low = (torch.from_numpy(value * channels) for value in (reads.step, reads.low))
        taps = taps * step.reshape(1, -1, 1)
        steps = (taps.abs().amax(dim=(1, 2)) / _LARGEST).float()
        steps[steps == 0] = 1.0
        taps = (taps / steps.reshape(-1, 1, 1)).round_().clamp_(-_LARGEST, _LARGEST)
        offset = steps * (taps.sum(dim=2) @ (low / step))
        return cls(
            values=taps.to(torch.int8).reshape(weight.shape).contiguous(),
            steps=steps,
            offset=offset.float(),
            zeros=torch.zeros(len(steps), dtype=torch.int32),
        )

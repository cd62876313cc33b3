"""Whether int8 can be computed here, found out before anything depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.cpu import BF16, INT8, cpu_flags
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.kernels.forms import ConvWeights, Forms, PlainForms, Wires
from sparkrt_ros.runtime.kernels.int8 import Int8Forms
from sparkrt_ros.runtime.precision.calibration import Calibration, Range

_OPERATORS = ('qconv2d_pointwise', 'qconv_prepack', 'qlinear_pointwise', 'qlinear_prepack')
_TOLERANCE = 0.05
_WHERE = 'precision int8'


def make_int8_forms(calibration: Calibration, *, device: torch.device) -> Int8Forms:
    """Int8 forms for this processor; attention in bf16 where it has instructions for that.

    Raises BackendError where they cannot serve, with the reason.
    """
    flags = cpu_flags()
    _refuse_without_instructions(device, flags)
    missing = [name for name in _OPERATORS if not hasattr(torch.ops.onednn, name)]
    if missing:
        raise BackendError(
            _WHERE,
            found=f'torch {torch.__version__} without {", ".join(missing)}',
            expected='a torch whose oneDNN operators include those of int8',
            remedy='use torch 2.11 or newer, or precision bf16',
        )
    _refuse_wrong_results(device)
    dtype = torch.bfloat16 if flags & BF16 else torch.float32
    return Int8Forms(calibration, device=device, attention_dtype=dtype)


def _refuse_without_instructions(device: torch.device, flags: Iterable[str]) -> None:
    if device.type != 'cpu':
        raise BackendError(
            _WHERE,
            found=f'device {device}',
            expected='a CPU',
            remedy='use precision fp16 or bf16 on a GPU',
        )
    if INT8.isdisjoint(flags):
        raise BackendError(
            _WHERE,
            found='a processor without int8 instructions',
            expected=f'one of {", ".join(sorted(INT8))} among its flags',
            remedy='use precision bf16 or fp32: without them, sums of 8-bit products overflow',
        )


def _refuse_wrong_results(device: torch.device) -> None:
    forms = Int8Forms(_TRIAL, device=device, attention_dtype=torch.float32)
    plain = PlainForms(device=device, dtype=torch.float32)
    for what, run in (('convolution', _try_convolution), ('linear', _try_linear)):
        try:
            found = run(forms)
        except RuntimeError as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BackendError(
                _WHERE, found=f'{what} fails: {reason}', expected='a result'
            ) from error
        wanted = run(plain)
        if not float((found - wanted).abs().max()) <= _TOLERANCE * float(wanted.abs().max()):
            raise BackendError(
                _WHERE,
                found=f'{what} differs from the plain operators',
                expected=f'agreement to {_TOLERANCE:.0%}',
            )


def _range(low: float, high: float) -> Range:
    return Range(low=np.array([low]), high=np.array([high]))


_TRIAL = Calibration(
    ranges={
        'pixels': _range(-1, 1),
        'first': _range(0, 6),
        'shortcut': _range(-6, 6),
        'second': _range(0, 400),
        'rows': _range(-1, 1),
    },
    coverage=1,
    source='trial',
    observations=0,
)


def _try_convolution(forms: Forms) -> Tensor:
    """All three kinds of results. Inputs and weights near their ends: a sum may not saturate."""
    draw = _draws()
    first = forms.conv(_weights(draw, 16, 4), wires=Wires(reads='pixels', writes='first'))
    side = forms.conv(_weights(draw, 16, 4), wires=Wires(reads='pixels', writes='shortcut'))
    last = forms.conv(
        _weights(draw, 16, 16), wires=Wires(reads='first', adds='shortcut', writes='second')
    )
    x = draw(1, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    found = last.add_relu(first.relu(x), side.plain(x))
    if found.dtype == torch.uint8:
        return found.float() * float(_TRIAL.levels('second').step[0])
    return found


def _try_linear(forms: Forms) -> Tensor:
    draw = _draws()
    linear = forms.linear(draw(32, 64), draw(32), wires=Wires(reads='rows'))
    return linear(draw(9, 64))


def _weights(draw: Callable[..., Tensor], outputs: int, inputs: int) -> ConvWeights:
    return ConvWeights(
        weight=draw(outputs, inputs, 3, 3) * 0.15,
        bias=draw(outputs) * 0.15,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
    )


def _draws() -> Callable[..., Tensor]:
    """Draws the same values between 0.8 and 1 for every form."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: 0.8 + 0.2 * torch.rand(shape, generator=generator)

"""Picks the forms of a device, after trying them there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparkrt_ros.runtime.kernels.forms import ConvWeights, Forms, PlainForms

_TOLERANCE = 0.05


def choose_forms(*, device: torch.device, dtype: torch.dtype) -> tuple[Forms, str]:
    """Return the best forms that compute the right thing here, and why better ones were refused.

    The reason is empty when the best known forms serve. Deciding by trying covers what no version
    number tells: a library built without an operator, a GPU without a kernel for the dtype.
    """
    plain = PlainForms(device=device, dtype=dtype)
    reasons = []
    for name, make in _candidates(device):
        try:
            candidate = make(device=device, dtype=dtype)
        except (ImportError, RuntimeError) as error:
            reasons.append(f'{name}: {_first_line(error)}')
            continue
        reason = _objection(candidate, plain)
        if not reason:
            return candidate, '; '.join(reasons)
        reasons.append(f'{name}: {reason}')
    return plain, '; '.join(reasons) or f'no better forms are known for {device.type}'


def _candidates(device: torch.device) -> list[tuple[str, Callable[..., Forms]]]:
    """The best first."""
    if device.type == 'cuda':
        return [('triton', _triton), ('cudnn', _cudnn)]
    if device.type == 'cpu' and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return [('onednn', _onednn)]
    return []


# Imported when tried: each needs what not every machine has.


def _triton(**options: Any) -> Forms:
    from sparkrt_ros.runtime.kernels.triton_forms import TritonForms

    return TritonForms(**options)


def _cudnn(**options: Any) -> Forms:
    from sparkrt_ros.runtime.kernels.cudnn import CudnnForms

    return CudnnForms(**options)


def _onednn(**options: Any) -> Forms:
    from sparkrt_ros.runtime.kernels.onednn import OneDnnForms

    return OneDnnForms(**options)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _objection(candidate: Forms, plain: PlainForms) -> str:
    """Why the candidate cannot serve; empty when it agrees with the plain forms."""
    for what, run in _TRIALS:
        try:
            found, wanted = run(candidate, plain), run(plain, plain)
        except Exception as error:  # a library or a compiler may raise whatever it likes
            return f'{what} fails: {_first_line(error)}'
        scale = float(wanted.abs().max())
        if not float((found - wanted).abs().max()) <= _TOLERANCE * scale:
            return f'{what} differs from the plain operators'
    return ''


def _try_convolution(forms: Forms, plain: PlainForms) -> Tensor:
    random = _random(plain)
    weights = ConvWeights(
        weight=random(64, 64, 3, 3).cpu().float() * 0.05,
        bias=random(64).cpu().float(),
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
    )
    conv = forms.conv(weights)
    x = random(1, 64, 8, 8).contiguous(memory_format=torch.channels_last)
    shortcut = random(1, 64, 8, 8).contiguous(memory_format=torch.channels_last)
    return conv.add_relu(conv.relu(x) + conv.plain(x), shortcut).float()


def _try_linear(forms: Forms, plain: PlainForms) -> Tensor:
    random = _random(plain)
    narrow = forms.linear(random(64, 64).float() * 0.1, random(64).float())
    widen = forms.linear(random(64, 64).float() * 0.1, random(64).float(), activation='relu')
    norm = nn.LayerNorm(64).to(plain.device, plain.dtype).requires_grad_(requires_grad=False)
    x = random(9, 64)
    return forms.add_norm(x, narrow(widen(x)), norm).float()


def _try_head(forms: Forms, plain: PlainForms) -> Tensor:
    random = _random(plain)
    head = forms.head(random(6, 64).float() * 0.1, random(6).float())
    return head(random(9, 64))


def _try_pictures(forms: Forms, plain: PlainForms) -> Tensor:
    random = _random(plain)
    weights = ConvWeights(
        weight=random(64, 3, 7, 7).cpu().float() * 0.05,
        bias=random(64).cpu().float(),
        stride=(2, 2),
        padding=(3, 3),
        dilation=(1, 1),
    )
    images = [random(1, 3, 33, 38).float() for _ in range(2)]
    return forms.pool(forms.conv(weights).relu(forms.pixels(images))).float()


_TRIALS = (
    ('convolution', _try_convolution),
    ('pictures', _try_pictures),
    ('linear', _try_linear),
    ('head', _try_head),
)


def _random(plain: PlainForms) -> Callable[..., Tensor]:
    """Draws the same values at every use, on the device and in the dtype of the forms."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(plain.device, plain.dtype)

    return draw

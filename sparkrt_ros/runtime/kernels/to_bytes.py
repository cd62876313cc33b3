"""From floats to the nearest of 256 levels, on CPUs.

Every step is an operator that PyTorch vectorises: among the conversions, that to int8 is, unlike
that to uint8. So levels are counted from -128, and the highest bit is turned over at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkrt_ros.runtime.precision.calibration import TOP, Levels, Values

_SIGN = 128


class RowsToBytes:
    """Floats (M, C) as bytes, those beyond the ends as the ends; bytes pass as they are."""

    def __init__(self, levels: Levels) -> None:
        assert levels.step.size == 1
        self._factor = float(1 / levels.step[0])
        self._shift = torch.tensor(float(-levels.low[0] / levels.step[0] - _SIGN))

    def __call__(self, x: Tensor) -> Tensor:
        """Return uint8 of the same shape."""
        if x.dtype == torch.uint8:
            return x
        return _turn(_round(torch.add(self._shift, x, alpha=self._factor)))


class PicturesToBytes:
    """Floats (B, C, H, W) in channels-last memory as bytes; bytes pass as they are.

    padding: rows above and below, and columns left and right, to add, of the bytes nearest to 0.
    """

    def __init__(self, levels: Levels, *, padding: Sequence[int] = (0, 0)) -> None:
        zero = -levels.low / levels.step
        self._factor, self._shift = _tensor(1 / levels.step), _tensor(zero - _SIGN)
        self._zero = _tensor(zero.clip(0, TOP).round()).to(torch.uint8)
        self._padding = tuple(padding)
        self._rows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._frames: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Return uint8, in channels-last memory, padded."""
        if x.dtype == torch.uint8:
            return x
        batch, channels, height, width = x.shape
        shift, factor = self._of_rows(width, channels)
        rows = x.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
        signed = _round(torch.addcmul(shift, rows, factor)).view(batch, height, width, channels)
        down, across = self._padding
        out = self._frame(batch, height + 2 * down, width + 2 * across, channels).clone()
        inside = out[:, down : down + height, across : across + width]
        torch.bitwise_xor(signed.view(torch.uint8), _SIGN, out=inside)
        return out.permute(0, 3, 1, 2)

    def _of_rows(self, width: int, channels: int) -> tuple[Tensor, Tensor]:
        """Shift and factor of a whole row: a pixel's few channels leave little to vectorise."""
        size = (width, channels)
        if size not in self._rows:
            shift, factor = (v.expand(size).flatten() for v in (self._shift, self._factor))
            self._rows[size] = (shift.contiguous(), factor.contiguous())
        return self._rows[size]

    def _frame(self, *size: int) -> Tensor:
        """(B, H, W, C) of the bytes nearest to 0."""
        if size not in self._frames:
            self._frames[size] = self._zero.expand(size).contiguous()
        return self._frames[size]


def _round(levels: Tensor) -> Tensor:
    """Levels counted from -128, in place, to int8."""
    return levels.clamp_(-_SIGN, TOP - _SIGN).round_().to(torch.int8)


def _turn(signed: Tensor) -> Tensor:
    """Count from 0 instead of -128, in place."""
    return signed.view(torch.uint8).bitwise_xor_(_SIGN)


def _tensor(values: Values) -> Tensor:
    return torch.from_numpy(values).float()

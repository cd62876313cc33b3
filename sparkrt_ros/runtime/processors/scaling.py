"""Scaling one feature into the range a policy was trained on, and back.

The formulas, their order of operations and their float32 arithmetic are those of LeRobot 0.6.1
(unchanged since 0.4.0), so results are equal to the last bit. Nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import NormalizationMode
from sparkrt_ros.runtime.checkpoint.stats import REQUIRED_STATISTICS, FeatureScaling

# (values, offset, divisor or deviation) -> values
_Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def _standardize(values: Tensor, mean: Tensor, divisor: Tensor) -> Tensor:
    return (values - mean) / divisor


def _unstandardize(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return values * std + mean


def _to_unit_range(values: Tensor, low: Tensor, width: Tensor) -> Tensor:
    return 2 * (values - low) / width - 1


def _from_minimum_maximum(values: Tensor, low: Tensor, width: Tensor) -> Tensor:
    return (values + 1) / 2 * width + low


def _from_quantiles(values: Tensor, low: Tensor, width: Tensor) -> Tensor:
    return (values + 1.0) * width / 2.0 + low


_FORMULAS: Mapping[NormalizationMode, tuple[_Formula, _Formula]] = {
    NormalizationMode.MEAN_STD: (_standardize, _unstandardize),
    NormalizationMode.MIN_MAX: (_to_unit_range, _from_minimum_maximum),
    NormalizationMode.QUANTILES: (_to_unit_range, _from_quantiles),
    NormalizationMode.QUANTILE10: (_to_unit_range, _from_quantiles),
}


def _is_camera_order(values: Tensor) -> bool:
    """Whether these are pictures on a CPU whose channels lie next to each other in memory."""
    dense = values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last)
    return dense and values.device.type == 'cpu' and not values.is_contiguous()


class FeatureScaler:
    """Scales one feature; its statistics live on ``device`` from construction on.

    ``normalize`` and ``unnormalize`` take and return float32 of any leading dimensions, (..., N)
    for a vector and (..., C, H, W) for an image. No call copies between host and device, so both
    can be captured into a CUDA graph. ``unnormalize`` is not an exact inverse under MEAN_STD:
    only the forward direction adds ``eps`` to the deviation.
    """

    def __init__(self, scaling: FeatureScaling, *, eps: float, device: torch.device) -> None:
        self.key = scaling.key
        self.mode = scaling.mode
        self.device = device
        if self.mode is NormalizationMode.IDENTITY:
            return
        first, second = (
            torch.from_numpy(scaling.statistics[name].copy())
            for name in REQUIRED_STATISTICS[self.mode]
        )
        forward, inverse = _FORMULAS[self.mode]
        if self.mode is NormalizationMode.MEAN_STD:
            forward_scale, inverse_scale = second + eps, second
        else:
            width = second - first
            forward_scale = torch.where(width == 0, torch.tensor(eps, dtype=width.dtype), width)
            inverse_scale = forward_scale
        self._forward, self._inverse = forward, inverse
        self._offset = first.to(device)
        self._forward_scale = forward_scale.to(device)
        self._inverse_scale = inverse_scale.to(device)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def fits(self, values: Tensor) -> bool:
        """Tell whether ``values`` have the size of the feature, so that nothing is broadcast."""
        if self.mode is NormalizationMode.IDENTITY:
            return True
        size, rank = self._offset.shape[0], self._offset.dim()
        return values.dim() >= rank and values.shape[-rank] == size

    def normalize(self, values: Tensor) -> Tensor:
        """Return ``values`` in the policy's range, on ``device``."""
        if self.mode is NormalizationMode.IDENTITY:
            return values
        values = values.to(self.device)
        if _is_camera_order(values):
            return self._normalize_rows(values)
        return self._forward(values, self._offset, self._forward_scale)

    def _normalize_rows(self, values: Tensor) -> Tensor:
        """The same for pictures on a CPU, a row of pixels at once.

        Repeating offset and scale for all pixels of a row spares the CPU from taking up a few
        channels at a time.
        """
        batch, channels, height, width = values.shape
        if width not in self._rows:
            offset, scale = self._offset.flatten(), self._forward_scale.flatten()
            self._rows[width] = (offset.repeat(width), scale.repeat(width))
        rows = values.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
        scaled = self._forward(rows, *self._rows[width])
        return scaled.view(batch, height, width, channels).permute(0, 3, 1, 2)

    def unnormalize(self, values: Tensor) -> Tensor:
        """Return ``values`` in the units of the dataset, on ``device``."""
        if self.mode is NormalizationMode.IDENTITY:
            return values
        return self._inverse(values.to(self.device), self._offset, self._inverse_scale)

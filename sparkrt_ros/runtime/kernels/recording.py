"""Forms that note the range of what every layer reads, on their way to a calibration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, LinearForm, Wires
from sparkrt_ros.runtime.kernels.onednn import OneDnnForms
from sparkrt_ros.runtime.precision.calibration import Range

# Enough for a quantile of 0.9999, and quickly sorted.
_SAMPLES = 1 << 17


class Recorder:
    """The ranges of named tensors.

    coverages: shares of the values of a tensor to leave uncut; see ``ranges``.
    """

    def __init__(self, coverages: Iterable[float] = (1.0,)) -> None:
        self._full: dict[str, Range] = {}
        self._final: dict[str, Range] = {}
        self._sizes: dict[float, dict[str, float]] = {value: {} for value in coverages}

    def note(self, name: str, x: Tensor) -> None:
        """Note a tensor: (M, C), or (B, C, H, W) in channels-last memory."""
        values = _pixels(x).reshape(-1, 1)
        _join(self._full, name, values)
        sample = values[:: max(1, values.numel() // _SAMPLES), 0].abs()
        for coverage, sizes in self._sizes.items():
            if coverage < 1:
                rank = max(1, round(coverage * sample.numel()))
                size = float(sample.kthvalue(rank).values)
                sizes[name] = max(size, sizes.get(name, 0.0))

    def note_ends(self, name: str, x: Tensor) -> None:
        """Note values (B, C, H, W) that include the ends of what each channel can be at all."""
        _join(self._final, name, _pixels(x), is_final=True)

    def ranges(self, coverage: float) -> dict[str, Range]:
        """Ranges by name, over all that was noted.

        They are cut where, in the widest tensor of that name, no more than ``1 - coverage`` of
        the values are larger; 1 cuts nothing.
        """
        sizes = self._sizes[coverage]
        cut = {name: found.cut(sizes.get(name, np.inf)) for name, found in self._full.items()}
        return {**cut, **self._final}


def _pixels(x: Tensor) -> Tensor:
    """(M, C)."""
    return x if x.dim() == 2 else x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _join(known: dict[str, Range], name: str, rows: Tensor, *, is_final: bool = False) -> None:
    low, high = (value.double().cpu().numpy() for value in torch.aminmax(rows, dim=0))
    found = Range(low=low, high=high, is_final=is_final)
    known[name] = known.get(name, found).join(found)


class RecordingForms(OneDnnForms):
    """As ``OneDnnForms`` in fp32; notes in a recorder what wired layers read."""

    name = 'recording'

    def __init__(self, recorder: Recorder, *, device: torch.device) -> None:
        super().__init__(device=device, dtype=torch.float32)
        self._recorder = recorder

    def conv(self, weights: ConvWeights, *, wires: Wires | None = None) -> ConvForm:
        """See Forms."""
        conv = super().conv(weights, wires=wires)
        return conv if wires is None else _RecordingConv(conv, wires, self._recorder)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: str | None = None,
        wires: Wires | None = None,
    ) -> LinearForm:
        """See Forms."""
        linear = super().linear(weight, bias, activation=activation, wires=wires)
        if wires is None:
            return linear
        name = wires.reads

        def run(x: Tensor) -> Tensor:
            self._recorder.note(name, x)
            return linear(x)

        return run


class _RecordingConv:
    """See ConvForm."""

    def __init__(self, conv: ConvForm, wires: Wires, recorder: Recorder) -> None:
        self._conv, self._wires, self._recorder = conv, wires, recorder

    def relu(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        self._recorder.note(self._wires.reads, x)
        return self._conv.relu(x)

    def add_relu(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """See ConvForm."""
        self._recorder.note(self._wires.reads, x)
        if self._wires.adds is not None:
            self._recorder.note(self._wires.adds, shortcut)
        return self._conv.add_relu(x, shortcut)

    def plain(self, x: Tensor) -> Tensor:
        """See ConvForm."""
        self._recorder.note(self._wires.reads, x)
        return self._conv.plain(x)

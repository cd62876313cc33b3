"""Weight names and weights.

Names: LeRobot's ``model.`` and a compiled module's ``_orig_mod`` are taken off, statistics are
set apart. torch is imported only to read tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkrt_ros.runtime.checkpoint.embedded_stats import is_statistic
from sparkrt_ros.runtime.checkpoint.safetensors_file import SafetensorsHeader, TensorInfo
from sparkrt_ros.runtime.errors import CheckpointError

if TYPE_CHECKING:
    import torch

WEIGHT_TYPES = ('F64', 'F32', 'F16', 'BF16', 'I64', 'I32', 'I16', 'I8', 'U8', 'BOOL')
_PREFIX = 'model.'
_COMPILED = '_orig_mod'


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """Runtime name -> name in the file, of weights and of statistics."""

    weights: Mapping[str, str]
    statistics: Mapping[str, str]

    def weight_infos(self, header: SafetensorsHeader) -> dict[str, TensorInfo]:
        return {name: header.tensors[stored] for name, stored in self.weights.items()}


def sort_names(header: SafetensorsHeader) -> WeightNames:
    """Sort the tensors of a weight file; raises ``CheckpointError`` if two get one name."""
    weights: dict[str, str] = {}
    statistics: dict[str, str] = {}
    for stored in header.tensors:
        name = '.'.join(part for part in stored.split('.') if part != _COMPILED)
        held = statistics if is_statistic(name) else weights
        name = name.removeprefix(_PREFIX)
        if name in held:
            raise CheckpointError(
                f'{header.path}: {name}',
                found=f'two tensors of that name: {held[name]} and {stored}',
                expected='one',
            )
        held[name] = stored
    return WeightNames(weights=weights, statistics=statistics)


def load_weights(header: SafetensorsHeader, names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return the named tensors on the CPU, floating ones as float32, in memory of their own.

    names: runtime name -> name in the file. Raises ``CheckpointError`` for a type that cannot
    hold weights here. That values are finite is checked where the model takes them.
    """
    # Here, so that describing a policy does not wait for torch.
    import torch
    from safetensors import safe_open

    _check_types(header, names)
    weights = {}
    with safe_open(header.path, framework='pt', device='cpu') as stored_tensors:
        for name, stored in names.items():
            tensor = stored_tensors.get_tensor(stored)
            # A copy: the file may be replaced while the policy runs, and it is memory-mapped.
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            weights[name] = tensor.to(dtype, copy=True)
    return weights


class StoredWeights(Mapping[str, 'torch.Tensor']):
    """The named tensors of a file, each read when it is asked for, in the type it is stored in.

    For policies of which two copies would not fit. A tensor is a view of the file: whoever keeps
    it copies it. Raises ``CheckpointError`` as ``load_weights``.
    """

    def __init__(self, header: SafetensorsHeader, names: Mapping[str, str]) -> None:
        from safetensors import safe_open

        _check_types(header, names)
        self._names = dict(names)
        self._file = safe_open(header.path, framework='pt', device='cpu')

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(self._names[name])  # type: ignore[no-untyped-call]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _check_types(header: SafetensorsHeader, names: Mapping[str, str]) -> None:
    for stored in names.values():
        kind = header.tensors[stored].dtype
        if kind not in WEIGHT_TYPES:
            raise CheckpointError(
                f'{header.path}: {stored}',
                found=f'type {kind}',
                expected=f'one of {", ".join(WEIGHT_TYPES)}',
                remedy='save the weights as float32, float16 or bfloat16',
            )

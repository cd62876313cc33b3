"""Loading weights into a network with nothing left over on either side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.overrides import TorchFunctionMode

from sparkrt_ros.runtime.errors import CheckpointError

_SHOWN = 5
_FILLS = ('normal_', 'uniform_', 'kaiming_uniform_', 'xavier_uniform_')


@contextmanager
def without_memory() -> Iterator[None]:
    """Networks built in here have no memory yet, until ``load_weights`` gives them their own.

    Random initial values would take longer than loading the real ones.
    """
    with torch.device('meta'), _Unfilled():
        yield


class _Unfilled(TorchFunctionMode):
    """Leaves out initial values: on the meta device they are nothing, but one of the functions
    would import the whole of torch's compiler.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _FILLS:
            return args[0] if args else kwargs['tensor']
        return func(*args, **(kwargs or {}))


def load_weights(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    ignored_prefixes: tuple[str, ...] = (),
    where: str = 'model.safetensors',
) -> None:
    """Put ``weights`` into ``module``; every key must find its counterpart.

    Floating-point weights of any width are taken; the module keeps its own dtype. A module on the
    meta device, which has no memory, takes the tensors themselves. A prefix that ends in a dot
    matches a whole module, any other prefix a single name.
    Raises CheckpointError, naming the keys, when a weight is missing, unexpected, of another
    shape, or not floating-point; the module is then unchanged.
    """
    used = {key: value for key, value in weights.items() if not is_ignored(key, ignored_prefixes)}
    own = module.state_dict()
    refuse_keys(where, 'missing', own.keys() - used.keys(), total=len(own))
    refuse_keys(where, 'unexpected', used.keys() - own.keys(), total=len(own))
    for key, value in used.items():
        check_value(f'{where}, {key}', value, shape=own[key].shape)
    empty = any(value.is_meta for value in own.values())
    if empty:
        used = {key: value.to(own[key].dtype) for key, value in used.items()}
    module.load_state_dict(used, assign=empty)


def is_ignored(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(
        key.startswith(prefix) if prefix.endswith('.') else key == prefix for prefix in prefixes
    )


def refuse_keys(where: str, what: str, keys: Iterable[str], *, total: int) -> None:
    names = sorted(keys)
    if not names:
        return
    shown = ', '.join(names[:_SHOWN]) + (', ...' if len(names) > _SHOWN else '')
    raise CheckpointError(
        where,
        found=f'{len(names)} {what} weights: {shown}',
        expected=f'exactly the {total} weights of the configured network',
        remedy='check that config.json and the weights come from the same training run',
    )


def check_value(where: str, value: Tensor, *, shape: Size) -> None:
    if value.shape != shape:
        raise CheckpointError(
            where,
            found=f'shape {tuple(value.shape)}',
            expected=f'shape {tuple(shape)}',
            remedy='check that config.json and the weights come from the same training run',
        )
    if not value.is_floating_point():
        raise CheckpointError(
            where, found=f'dtype {value.dtype}', expected='a floating-point dtype'
        )

"""Where a policy runs: finding the device a name means, and keeping its arithmetic in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparkrt_ros.runtime.config import check_device_name
from sparkrt_ros.runtime.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """Return the device that ``name`` means on this machine; CUDA devices with their index.

    ``auto`` is the first CUDA device where there is one, else the CPU. Nothing else ever falls
    back: a device that is not there is a ConfigError that names those that are. So is a process
    that was forked after CUDA had started in its parent, where no CUDA device can be used.
    """
    check_device_name(name)
    if name != 'cpu':
        _refuse_fork(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == 'cpu' or (name == 'auto' and count == 0):
        return torch.device('cpu')
    index = int(name.partition(':')[2] or 0)
    if index >= count:
        raise ConfigError(
            'device',
            found=repr(name),
            expected=f'one of {", ".join(_available(count))}',
            remedy=_remedy(count),
        )
    return torch.device('cuda', index)


def device_title(device: torch.device) -> str:
    """The hardware name of a CUDA device, ``cpu`` otherwise."""
    return torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu'


@contextmanager
def fp32_products(*, allow_tf32: bool) -> Iterator[None]:
    """Say for CUDA convolutions and products of fp32 whether TF32 is allowed, while it lasts.

    The switches belong to the process: other torch threads see them meanwhile. They are put back
    on leaving.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32, matmul.allow_tf32 = allow_tf32, allow_tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


def _refuse_fork(name: str) -> None:
    """Asked before anything else of torch: there, it finds no devices and does not say why."""
    if not torch.cuda._is_in_bad_fork():
        return
    raise ConfigError(
        'device',
        found=f'{name!r} in a process forked after CUDA had started',
        expected='a process that starts CUDA itself',
        remedy="start it with multiprocessing's method 'spawn', or choose device 'cpu'",
    )


def _available(count: int) -> list[str]:
    names = [f'cuda:{index} ({torch.cuda.get_device_name(index)})' for index in range(count)]
    return ['cpu', *names]


def _remedy(count: int) -> str:
    if count:
        return 'choose one of them'
    if torch.version.cuda is None:
        return "choose 'cpu', or install a torch built for CUDA (this one is not)"
    return "choose 'cpu', or make a GPU and its driver visible"

"""Out of device memory, told with the numbers that help: what is needed, what is free."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from sparkrt_ros.runtime.checkpoint.safetensors_file import TensorInfo
from sparkrt_ros.runtime.errors import BackendError

_FLOAT32_BYTES = 4


def float32_bytes(tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of all tensors of a file together, once they are float32."""
    return sum(_FLOAT32_BYTES * info.count for info in tensors.values())


def memory_now(device: torch.device, *, weights_bytes: int) -> dict[str, int]:
    """See ``Policy.memory_bytes``."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    sizes = {'weights': weights_bytes, 'process': pages * os.sysconf('SC_PAGESIZE')}
    if device.type == 'cuda':
        sizes['device'] = torch.cuda.memory_reserved(device)
        sizes['device peak'] = torch.cuda.max_memory_reserved(device)
    return sizes


@contextmanager
def memory_explained(doing: str, *, device: torch.device, needed_bytes: int) -> Iterator[None]:
    """Turn running out of device memory into a BackendError that names needed and free bytes.

    needed_bytes: of the weights; what is computed with them comes on top.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raise BackendError(
            f'{device}, {doing}',
            found=f'{_free_text(device)} ({str(error).splitlines()[0]})',
            expected=f'more than {_megabytes(needed_bytes)} for the weights, plus room to compute',
            remedy='end other programs that use this device, or choose another device',
        ) from error


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Also where not even the context fits, which torch reports as an ordinary CUDA error."""
    text = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError) or (
        'CUDA error' in text and 'out of memory' in text
    )


def _free_text(device: torch.device) -> str:
    try:
        free_bytes, total_bytes = _free_and_total(device)
    except (RuntimeError, AssertionError, AttributeError, OSError, ValueError):
        return 'too little memory, of which CUDA says nothing'
    return f'{_megabytes(free_bytes)} free of {_megabytes(total_bytes)}'


def _free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of device memory; asks the driver's management library where CUDA cannot start."""
    try:
        return torch.cuda.mem_get_info(device)
    except RuntimeError:
        library = ctypes.CDLL('libnvidia-ml.so.1')
        handle, info = ctypes.c_void_p(), _Memory()
        index = torch.cuda._get_nvml_device_index(device)
        for code in (
            library.nvmlInit_v2(),
            library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)),
            library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)),
        ):
            if code:
                raise
        return int(info.free), int(info.total)


class _Memory(ctypes.Structure):
    """nvmlMemory_t of the NVIDIA management library."""

    _fields_ = (
        ('total', ctypes.c_ulonglong),
        ('free', ctypes.c_ulonglong),
        ('used', ctypes.c_ulonglong),
    )


def _megabytes(count: int) -> str:
    return f'{count / 1e6:.1f} MB ({count} bytes)'

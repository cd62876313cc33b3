"""What loading a policy needs first, done ahead of it."""

from __future__ import annotations

from contextlib import suppress

import torch

from sparkrt_ros.runtime import policy as _policy  # noqa: F401
from sparkrt_ros.runtime.device import resolve_device
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.kernels.choose import choose_forms
from sparkrt_ros.runtime.precision.tiers import TIERS


def start_device(device_name: str, precision: str) -> None:
    """Start the device and load its kernels for a precision, which takes seconds.

    What is wrong with the device is told by whoever loads a policy.
    """
    with suppress(ConfigError, RuntimeError):
        device = resolve_device(device_name)
        if device.type == 'cuda':
            choose_forms(device=device, dtype=getattr(torch, TIERS[precision].dtype))
            torch.cuda.synchronize(device)

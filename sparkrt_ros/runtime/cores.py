"""The CPU cores of this process. Imports no torch."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spared_cores(cores: int) -> int:
    """The cores an inference may fill beside ROS: all but one."""
    return max(cores - 1, 1)

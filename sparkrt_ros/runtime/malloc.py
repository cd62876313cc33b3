"""How the process treats memory it has freed. Imports no torch."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
# What glibc itself arrives at in a process that frees large blocks: its thresholds grow with the
# blocks, up to these.
_GROWN_MMAP_THRESHOLD = 32 << 20
_DEFAULT_MMAP_MAX = 65536
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have malloc keep freed memory for the next allocation; return whether it will.

    glibc otherwise gives large blocks back to the system at once, and every prediction pays for
    having all pages of its intermediate results mapped and cleared anew. The price is that the
    process stays as large as it has once been. Only glibc is told; elsewhere nothing happens.
    """
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _LARGEST_INT})


def return_freed_memory() -> bool:
    """Have malloc treat freed memory as it does of itself, for comparisons; whether it will."""
    return _set(
        {
            _M_MMAP_MAX: _DEFAULT_MMAP_MAX,
            _M_MMAP_THRESHOLD: _GROWN_MMAP_THRESHOLD,
            _M_TRIM_THRESHOLD: 2 * _GROWN_MMAP_THRESHOLD,
        }
    )


def give_back_now() -> bool:
    """Have malloc return what is free to the system, once; whether it could.

    The pages that are needed again are mapped and cleared anew: some milliseconds for whoever
    computes next.
    """
    if not sys.platform.startswith('linux'):
        return False
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))


def _set(options: dict[int, int]) -> bool:
    if not sys.platform.startswith('linux'):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(bool(set_option(option, value)) for option, value in options.items())

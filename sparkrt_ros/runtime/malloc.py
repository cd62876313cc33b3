"""How the process treats memory it has freed. Imports no torch."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h of glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have malloc keep freed memory for the next allocation; return whether it will.

    glibc otherwise gives large blocks back to the system at once, and every prediction pays for
    having all pages of its intermediate results mapped and cleared anew. The price is that the
    process stays as large as it has once been. Only glibc is told; elsewhere nothing happens.
    """
    if not sys.platform.startswith('linux'):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_M_MMAP_MAX, 0)) and bool(set_option(_M_TRIM_THRESHOLD, _LARGEST_INT))

"""The package's own C++ library, which does without the interpreter what must not wait for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_prefix

_PACKAGE, _LIBRARY = 'sparkrt', 'libsparkrt_native.so'

# Name without ``sparkrt_``, type of the result, types of the arguments.
Signature = tuple[str, Any, tuple[Any, ...]]


def load(signatures: Iterable[Signature], *, at_once: bool = False) -> Any:
    """The library, with these functions declared.

    at_once: they keep the interpreter, for what takes less time than to let go of it.
    """
    path = str(Path(get_package_prefix(_PACKAGE), 'lib', _LIBRARY))
    library = (ctypes.PyDLL if at_once else ctypes.CDLL)(path)
    for name, result, arguments in signatures:
        function = getattr(library, f'sparkrt_{name}')
        function.restype, function.argtypes = result, arguments
    return library


@cache
def rcl() -> Any:
    """The librcl that rclpy has loaded."""
    return ctypes.CDLL(str(Path(get_package_prefix('rcl'), 'lib', 'librcl.so')))

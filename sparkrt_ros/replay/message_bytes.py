"""The content of a ROS message as bytes, to tell whether two are the same.

CDR cannot serve for that: what lies between aligned values is not defined.
"""

from __future__ import annotations

import array
import struct
from typing import Any

import numpy as np


def message_bytes(message: Any) -> bytes:
    """All fields in order: numbers in binary, texts in UTF-8, each list with its length."""
    return b''.join(_parts(message))


def _parts(value: Any) -> list[bytes]:
    if isinstance(value, bool):
        return [b'1' if value else b'0']
    if isinstance(value, int):
        return [value.to_bytes(16, 'little', signed=True)]
    if isinstance(value, float):
        return [struct.pack('<d', value)]
    if isinstance(value, (str, bytes)):
        text = value.encode() if isinstance(value, str) else value
        return [struct.pack('<q', len(text)), text]
    if isinstance(value, (array.array, np.ndarray)):
        return [struct.pack('<q', len(value)), value.tobytes()]
    if isinstance(value, (list, tuple)):
        return [struct.pack('<q', len(value)), *(part for item in value for part in _parts(item))]
    names = value.get_fields_and_field_types()
    return [part for name in names for part in _parts(getattr(value, name))]

"""Notices a camera whose stamps go on while its picture does not. ROS-free."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# A picture that changed nearly always shows it in one of so many bytes; a prime, so that a row of
# pixels does not hit the same columns again and again.
_STRIDE = 1021


class PictureWatch:
    """How long the pictures of one camera have been the same, bit for bit. One thread.

    Sensors have noise: two pictures of a real camera that are equal were one picture.
    """

    def __init__(self) -> None:
        self._message: Any = None
        self._since_ns = 0
        self._stamp_ns = 0

    def unchanged_s(self, message: Any, *, stamp_ns: int) -> float:
        """Take the newest picture; the time for which nothing in it has changed, 0 if it did."""
        if message is not self._message:
            again = self._message is not None and _same(self._message.data, message.data)
            if not again or stamp_ns < self._stamp_ns:
                self._since_ns = stamp_ns
            self._message = message
            self._stamp_ns = stamp_ns
        return (self._stamp_ns - self._since_ns) / 1e9


def _same(first: Any, second: Any) -> bool:
    before, after = _bytes(first), _bytes(second)
    if not np.array_equal(before[::_STRIDE], after[::_STRIDE]):
        return False
    return np.array_equal(before, after)


def _bytes(data: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)

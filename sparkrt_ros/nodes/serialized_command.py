"""A command message as bytes in which only the values and the stamp change.

To serialize a message, rclpy turns every field of it into C first, strings and lists included. The
messages of one output differ in nothing but their values and stamp, so they are serialized once:
with values that occur nowhere else, which tells where they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message, serialize_message

from sparkrt_ros.convert.time import NS_PER_S
from sparkrt_ros.nodes.guard_limits import Float64Array
from sparkrt_ros.runtime.errors import ActionError

# Of a message that is serialized; what is aligned in it is aligned counting from behind it.
_HEADER_BYTES = 4
_VALUE_BYTES = 8
# A time that has both parts of a stamp unlike anything else.
_MARK_NS = 1_511_507_945 * NS_PER_S + 726_495_105

# From (A,) values and a time [ns] to a message.
Fill = Callable[[Float64Array, int], Any]


class SerializedCommand:
    """The message that ``fill`` makes of a command of ``size`` values.

    content: (N,) uint8, the serialized message; the same array for good.
    Raises ActionError where messages of other values differ in more than these and their stamp.
    """

    def __init__(self, fill: Fill, *, size: int) -> None:
        # Unlike each other, and unlike anything that a message holds.
        marks = np.pi / np.arange(3, size + 3)
        found = serialize_message(fill(marks, _MARK_NS))
        # So placed that the values are aligned.
        self.content = np.empty(_HEADER_BYTES + len(found), dtype=np.uint8)[_HEADER_BYTES:]
        self.content[:] = np.frombuffer(found, dtype=np.uint8)
        self._bytes = self.content.data
        self._stamp_at = found.find(_stamp(_MARK_NS))
        places = [(found.find(mark.tobytes()), column) for column, mark in enumerate(marks)]
        self._runs = [self._run(run) for run in _runs(sorted(p for p in places if p[0] >= 0))]
        for values, stamp_ns in ((marks[::-1], 0), (-marks, _MARK_NS + 1)):
            self._check(fill(values, stamp_ns), values, stamp_ns)

    def write(self, command: Float64Array, *, stamp_ns: int) -> None:
        """Put (A,) values and, where the message has one, the stamp into ``content``."""
        for values, columns in self._runs:
            np.take(command, columns, out=values)
        if self._stamp_at >= 0:
            struct.pack_into('=iI', self._bytes, self._stamp_at, *divmod(stamp_ns, NS_PER_S))

    def _run(self, places: list[tuple[int, int]]) -> tuple[Float64Array, npt.NDArray[np.intp]]:
        """A view of values that lie side by side, and their columns in the command."""
        begin = places[0][0]
        values = self.content[begin : begin + _VALUE_BYTES * len(places)].view(np.float64)
        return values, np.array([column for _, column in places], dtype=np.intp)

    def _check(self, message: Any, values: Float64Array, stamp_ns: int) -> None:
        self.write(values, stamp_ns=stamp_ns)
        # Not byte by byte: what lies between fields may be anything.
        if deserialize_message(self.content.tobytes(), type(message)) != message:
            raise ActionError(
                type(message).__name__,
                found='a serialized form that changes with its values elsewhere too',
                expected='one form for all values',
                remedy='report the middleware and the output of the robot contract',
            )


def _stamp(time_ns: int) -> bytes:
    return struct.pack('=iI', *divmod(time_ns, NS_PER_S))


def _runs(places: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Split (offset, column) where the next value does not follow at once."""
    cuts = [i + 1 for i, (a, b) in enumerate(pairwise(places)) if b[0] - a[0] != _VALUE_BYTES]
    ends = [0, *cuts, len(places)]
    return [places[begin:end] for begin, end in pairwise(ends) if end > begin]

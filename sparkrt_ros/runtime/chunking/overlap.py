"""Overlap functions: what becomes of a time that both the old course and a new chunk cover.

Where both have a value, it is ``share * old + (1 - share) * new``; where only the new chunk has
one, that; what the old course had beyond the end of the new chunk is dropped. The result is the
old course for the next chunk. These are the functions of LeRobot's asynchronous client, written
for times instead of steps.

Chunk ``k`` places before the newest thus weighs ``(1 - share) * share**k``, and the last one in
the row, which was alone when it came, ``share**k``: the weights are not negative and sum up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

OVERLAP_SHARES: Mapping[str, float] = MappingProxyType(
    {'weighted_average': 0.3, 'latest_only': 0.0, 'average': 0.5, 'conservative': 0.7}
)
"""Name -> share of the old course."""

Float64Array = npt.NDArray[np.float64]


class OverlapWeights:
    """Weights of up to ``capacity`` chunks, oldest first; nothing is allocated when asked."""

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self.share = 0.0

    @property
    def share(self) -> float:
        """Of the old course, 0 up to below 1."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = share
        age = np.arange(self._capacity - 1, -1, -1)
        self._first = np.power(share, age)
        self._weights = (1.0 - share) * self._first

    def fill(self, covered: npt.NDArray[np.bool_], *, out: Float64Array) -> None:
        """Weights of the chunks that are covered, 0 for the others; both (n,), oldest first.

        The covered ones stand together at the end, and there is at least one.
        """
        begin = self._capacity - covered.size
        first = int(covered.argmax())
        np.copyto(out, self._weights[begin:])
        out[:first] = 0.0
        out[first] = self._first[begin + first]

"""Chunks in preallocated arrays, oldest first, and the two ways to sample them without allocating."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.types import ActionChunk

MAX_CHUNKS = 256
# Stamps are whole nanoseconds, dt is not: a time this near to a row is that row.
SNAP_NS = 2.0

Float64Array = npt.NDArray[np.float64]


class ChunkStore:
    """At most one chunk per row of the longest chunk (and MAX_CHUNKS) for ``size`` joints.

    One chunk a step is the densest that temporal ensembling needs: older ones have run out.
    Arrays grow in :meth:`append` only, when a chunk is longer than every one before.
    """

    def __init__(self, *, size: int) -> None:
        self.count = 0
        self._size = size
        self._coeff = 0.0
        self._scratch = np.zeros(size)
        self._rows = np.zeros((0, 0, size))
        self._reserve(rows=1)

    def set_coefficient(self, coeff: float) -> None:
        """Weights ``exp(-coeff * i)``, i = 0 the oldest chunk that covers the time."""
        self._coeff = coeff
        self._weights = np.exp(-coeff * np.arange(self._capacity))

    def clear(self) -> None:
        self.count = 0

    def append(self, chunk: ActionChunk, *, origin_ns: int, now_ns: int) -> None:
        """Copy a chunk in as the newest, row 0 due at ``origin_ns``; forget what ran out."""
        if chunk.rows > self._rows.shape[1]:
            self._reserve(rows=chunk.rows)
        self._keep(np.flatnonzero(self._ends_ns[: self.count] > now_ns))
        if self.count == self._capacity:
            self._keep(np.arange(1, self.count))
        index = self.count
        slot = int(np.setdiff1d(np.arange(self._capacity), self._slots[:index])[0])
        dt_ns = chunk.dt_s * 1e9
        self._rows[slot, : chunk.rows] = chunk.actions
        self._slots[index] = slot
        self._origins_ns[index] = origin_ns
        self._dt_ns[index] = dt_ns
        self._last_rows[index] = chunk.rows - 1
        self._ends_ns[index] = origin_ns + round(chunk.rows * dt_ns)
        self.count = index + 1

    def newest_end_ns(self) -> int:
        """When the newest chunk runs out; 0 without chunks."""
        return int(self._ends_ns[self.count - 1]) if self.count else 0

    def last_end_ns(self) -> int:
        """When every chunk has run out; 0 without chunks."""
        return int(self._ends_ns[: self.count].max()) if self.count else 0

    def newest_dt_ns(self) -> float:
        return float(self._dt_ns[self.count - 1])

    def sample_newest(self, now_ns: int, *, out: Float64Array) -> bool:
        """Action of the newest chunk at ``now_ns`` into ``out``; False when it does not cover it."""
        if self.count == 0:
            return False
        index = self.count - 1
        dt_ns = float(self._dt_ns[index])
        position = (now_ns - int(self._origins_ns[index])) / dt_ns
        if abs(position - round(position)) * dt_ns <= SNAP_NS:
            position = float(round(position))
        row = int(position)
        last_row = int(self._last_rows[index])
        if position < 0.0 or row > last_row:
            return False
        rows = self._rows[self._slots[index]]
        out[:] = rows[row]
        fraction = position - row
        if fraction > 0.0 and row < last_row:
            np.subtract(rows[row + 1], rows[row], out=self._scratch)
            np.multiply(self._scratch, fraction, out=self._scratch)
            np.add(out, self._scratch, out=out)
        return True

    def sample_mean(self, now_ns: int, *, out: Float64Array) -> bool:
        """Weighted mean of all chunks that cover ``now_ns`` into ``out``; False without one."""
        count = self.count
        if count == 0:
            return False
        self._locate(now_ns, count)
        covered = self._covered[:count]
        if not covered.any():
            return False
        values = self._interpolate(count)
        weights = self._work_weights[:count]
        age = self._upper[:count]
        np.cumsum(covered, out=age)
        np.subtract(age, 1, out=age)
        np.take(self._weights, age, out=weights, mode='clip')
        np.multiply(weights, covered, out=weights)
        np.dot(weights, values, out=out)
        np.divide(out, weights.sum(), out=out)
        return True

    def _locate(self, now_ns: int, count: int) -> None:
        """Row, fraction and coverage of ``now_ns`` in each chunk."""
        position, near = self._position[:count], self._near[:count]
        fraction, covered = self._fraction[:count], self._covered[:count]
        np.subtract(now_ns, self._origins_ns[:count], out=self._lower[:count])
        np.divide(self._lower[:count], self._dt_ns[:count], out=position)
        np.rint(position, out=near)
        np.subtract(position, near, out=fraction)
        np.abs(fraction, out=fraction)
        np.multiply(fraction, self._dt_ns[:count], out=fraction)
        np.less_equal(fraction, SNAP_NS, out=covered)
        np.copyto(position, near, where=covered)
        np.floor(position, out=near)
        np.subtract(position, near, out=fraction)
        np.copyto(self._lower[:count], near, casting='unsafe')
        np.less_equal(self._lower[:count], self._last_rows[:count], out=covered)
        np.greater_equal(position, 0.0, out=self._started[:count])
        np.logical_and(covered, self._started[:count], out=covered)

    def _interpolate(self, count: int) -> Float64Array:
        """Value of each chunk, (count, A); of no meaning where it does not cover the time."""
        lower, upper = self._lower[:count], self._upper[:count]
        low, high = self._low[:count], self._high[:count]
        np.clip(lower, 0, self._last_rows[:count], out=lower)
        np.add(lower, 1, out=upper)
        np.minimum(upper, self._last_rows[:count], out=upper)
        base = self._base[:count]
        np.multiply(self._slots[:count], self._rows.shape[1], out=base)
        np.add(lower, base, out=lower)
        np.add(upper, base, out=upper)
        np.take(self._flat, lower, axis=0, out=low, mode='clip')
        np.take(self._flat, upper, axis=0, out=high, mode='clip')
        np.subtract(high, low, out=high)
        np.multiply(high, self._fraction_column[:count], out=high)
        np.add(low, high, out=low)
        return low

    def _keep(self, kept: npt.NDArray[Any]) -> None:
        """Keep the chunks at these indices, in the same order."""
        for field in (self._slots, self._origins_ns, self._dt_ns, self._last_rows, self._ends_ns):
            field[: kept.size] = field[kept]
        self.count = int(kept.size)

    def _reserve(self, *, rows: int) -> None:
        """Allocate for chunks of ``rows`` rows and carry over what is held."""
        capacity = min(rows + 1, MAX_CHUNKS)
        stored = np.zeros((capacity, rows, self._size))
        integers = np.zeros((7, capacity), dtype=np.int64)
        floats = np.zeros((5, capacity))
        if self.count:
            held = slice(0, self.count)
            stored[held, : self._rows.shape[1]] = self._rows[self._slots[held]]
            integers[0, held] = np.arange(self.count)
            integers[1, held] = self._origins_ns[held]
            integers[2, held] = self._last_rows[held]
            integers[3, held] = self._ends_ns[held]
            floats[0, held] = self._dt_ns[held]
        self._capacity = capacity
        self._rows = stored
        self._flat = stored.reshape(capacity * rows, self._size)
        self._slots, self._origins_ns, self._last_rows, self._ends_ns = integers[:4]
        self._lower, self._upper, self._base = integers[4:]
        self._dt_ns, self._position, self._near, self._fraction, self._work_weights = floats
        self._fraction_column = self._fraction[:, np.newaxis]
        self._covered = np.zeros(capacity, dtype=np.bool_)
        self._started = np.zeros(capacity, dtype=np.bool_)
        self._low = np.zeros((capacity, self._size))
        self._high = np.zeros((capacity, self._size))
        self.set_coefficient(self._coeff)

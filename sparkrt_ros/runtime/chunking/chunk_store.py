"""Chunks in preallocated arrays, oldest first, and the two ways to sample them.

Sampling allocates no array; that rules out ufuncs over mixed types too, which cast in buffers.
"""

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
    """At most MAX_CHUNKS chunks for ``size`` joints; the oldest makes way for one more.

    Arrays grow in :meth:`append` only, when a chunk is longer than every one before. Memory that
    no chunk has used yet costs nothing: the system provides it at the first write.
    """

    def __init__(self, *, size: int) -> None:
        self.count = 0
        self._size = size
        self._coeff = 0.0
        self._scratch = np.zeros(size)
        self._allocate(rows=1)

    def set_coefficient(self, coeff: float) -> None:
        """Weights ``exp(-coeff * i)``, i = 0 the oldest chunk that covers the time."""
        self._coeff = coeff
        self._weights = np.exp(-coeff * np.arange(MAX_CHUNKS))

    def clear(self) -> None:
        self.count = 0

    def shift(self, delay_ns: int) -> None:
        """Let everything be due ``delay_ns`` later."""
        self._origins_ns[: self.count] += delay_ns
        self._ends_ns[: self.count] += delay_ns

    def append(self, chunk: ActionChunk, *, origin_ns: int, now_ns: int) -> None:
        """Copy a chunk in as the newest, row 0 due at ``origin_ns``; forget what ran out."""
        if chunk.rows > self._rows.shape[1]:
            self._reserve(rows=chunk.rows)
        self._keep(np.flatnonzero(self._ends_ns[: self.count] > now_ns))
        if self.count == MAX_CHUNKS:
            self._keep(np.arange(1, self.count))
        index = self.count
        used = set(self._slots[:index].tolist())
        slot = next(free for free in range(MAX_CHUNKS) if free not in used)
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
        """Action of the newest chunk at ``now_ns`` into ``out``; False where it has none."""
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
        self._gather(count)
        weights, upper_weights = self._work_weights[:count], self._upper_weights[:count]
        self._weigh(covered, out=weights)
        total = weights.sum()
        np.multiply(weights, self._fraction[:count], out=upper_weights)
        np.subtract(weights, upper_weights, out=weights)
        np.dot(weights, self._low[:count], out=out)
        np.dot(upper_weights, self._high[:count], out=self._scratch)
        np.add(out, self._scratch, out=out)
        np.divide(out, total, out=out)
        return True

    def _weigh(self, covered: npt.NDArray[np.bool_], *, out: Float64Array) -> None:
        """Weights of the chunks: by age among those that cover the time, 0 for the others."""
        seen, age = self._lower[: covered.size], self._upper[: covered.size]
        np.copyto(seen, covered)
        np.cumsum(seen, out=age)
        np.subtract(age, 1, out=age)
        np.take(self._weights, age, out=out, mode='clip')
        np.logical_not(covered, out=covered)
        np.copyto(out, 0.0, where=covered)

    def _locate(self, now_ns: int, count: int) -> None:
        """Row, fraction and coverage of ``now_ns`` in each chunk."""
        position, near = self._position[:count], self._near[:count]
        fraction, covered = self._fraction[:count], self._covered[:count]
        np.subtract(now_ns, self._origins_ns[:count], out=self._lower[:count])
        np.copyto(position, self._lower[:count])
        np.divide(position, self._dt_ns[:count], out=position)
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

    def _gather(self, count: int) -> None:
        """Both rows around the time in each chunk; of no meaning where it does not cover it."""
        lower, upper, base = self._lower[:count], self._upper[:count], self._base[:count]
        np.maximum(lower, 0, out=lower)
        np.minimum(lower, self._last_rows[:count], out=lower)
        np.add(lower, 1, out=upper)
        np.minimum(upper, self._last_rows[:count], out=upper)
        np.multiply(self._slots[:count], self._rows.shape[1], out=base)
        np.add(lower, base, out=lower)
        np.add(upper, base, out=upper)
        np.take(self._flat, lower, axis=0, out=self._low[:count], mode='clip')
        np.take(self._flat, upper, axis=0, out=self._high[:count], mode='clip')

    def _keep(self, kept: npt.NDArray[Any]) -> None:
        """Keep the chunks at these indices, in the same order."""
        for field in self._fields():
            field[: kept.size] = field[kept]
        self.count = int(kept.size)

    def _reserve(self, *, rows: int) -> None:
        """Make room for chunks of ``rows`` rows and carry over what is held."""
        held = slice(0, self.count)
        old_rows, slots = self._rows[self._slots[held]], np.arange(self.count)
        kept = [field[held] for field in self._fields()]
        self._allocate(rows=rows)
        self._rows[held, : old_rows.shape[1]] = old_rows
        for field, values in zip(self._fields(), kept, strict=True):
            field[held] = values
        self._slots[held] = slots

    def _fields(self) -> tuple[npt.NDArray[Any], ...]:
        """What is stored for each chunk, index 0 the oldest."""
        return self._slots, self._origins_ns, self._dt_ns, self._last_rows, self._ends_ns

    def _allocate(self, *, rows: int) -> None:
        capacity = MAX_CHUNKS
        self._rows = np.zeros((capacity, rows, self._size))
        self._flat = self._rows.reshape(capacity * rows, self._size)
        integers = np.zeros((7, capacity), dtype=np.int64)
        self._slots, self._origins_ns, self._last_rows, self._ends_ns = integers[:4]
        self._lower, self._upper, self._base = integers[4:]
        floats = np.zeros((6, capacity))
        self._dt_ns, self._position, self._near, self._fraction = floats[:4]
        self._work_weights, self._upper_weights = floats[4:]
        self._covered = np.zeros(capacity, dtype=np.bool_)
        self._started = np.zeros(capacity, dtype=np.bool_)
        self._low = np.zeros((capacity, self._size))
        self._high = np.zeros((capacity, self._size))
        self.set_coefficient(self._coeff)

"""Chunks in preallocated arrays, oldest first, and the ways to sample them.

Sampling allocates no array; that rules out ufuncs over mixed types too, which cast in buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.chunking.interpolation import steepest, tangents
from sparkrt_ros.runtime.chunking.overlap import OverlapWeights
from sparkrt_ros.runtime.types import ActionChunk

MAX_CHUNKS = 256
# Stamps are whole nanoseconds, dt is not: a time this near to a row is that row.
SNAP_NS = 2.0
FOREVER_NS = 2**62

Float64Array = npt.NDArray[np.float64]


class ChunkStore:
    """At most MAX_CHUNKS chunks for ``size`` joints; the oldest makes way for one more.

    cubic: whether the course between rows is a cubic (see ``interpolation``), else a line.
    overlap: the weights of :meth:`sample_overlap`.

    Arrays grow in :meth:`append` only, when a chunk is longer than every one before. Memory that
    no chunk has used yet costs nothing: the system provides it at the first write.
    """

    def __init__(self, *, size: int) -> None:
        self.count = 0
        self.cubic = False
        self.overlap = OverlapWeights(capacity=MAX_CHUNKS)
        self._size = size
        self._coeff = 0.0
        self._step, self._bend, self._curve = np.zeros((3, size))
        self._allocate(rows=1)

    def set_coefficient(self, coeff: float) -> None:
        """Weights ``exp(-coeff * i)``, i = 0 the oldest chunk that covers the time."""
        self._coeff = coeff
        self._weights = np.exp(-coeff * np.arange(MAX_CHUNKS))

    def clear(self) -> None:
        self.count = 0

    def shift(self, delay_ns: int) -> None:
        """Let everything be due ``delay_ns`` later."""
        for times_ns in (self._origins_ns, self._ends_ns, self._course_ends_ns):
            times_ns[: self.count] += delay_ns

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
        rows = self._rows[slot, : chunk.rows]
        rows[:] = chunk.actions
        self._tangents[slot, : chunk.rows] = tangents(rows)
        for cubic in (False, True):
            self._steepest[int(cubic), slot] = steepest(rows, cubic=cubic) / chunk.dt_s
        self._slots[index] = slot
        self._origins_ns[index] = origin_ns
        self._dt_ns[index] = dt_ns
        self._last_rows[index] = chunk.rows - 1
        end_ns = origin_ns + round(chunk.rows * dt_ns)
        self._ends_ns[index] = self._course_ends_ns[index] = end_ns
        np.minimum(self._course_ends_ns[:index], end_ns, out=self._course_ends_ns[:index])
        self.count = index + 1

    def newest_end_ns(self) -> int:
        """When the newest chunk runs out; 0 without chunks."""
        return int(self._ends_ns[self.count - 1]) if self.count else 0

    def last_end_ns(self) -> int:
        """When every chunk has run out; 0 without chunks."""
        return int(self._ends_ns[: self.count].max()) if self.count else 0

    def next_end_ns(self, now_ns: int, *, course: bool) -> int:
        """When the next chunk runs out after ``now_ns``; FOREVER_NS where none does.

        course: or leaves the course of the overlap function.
        """
        ends_ns = (self._course_ends_ns if course else self._ends_ns)[: self.count]
        later_ns = ends_ns[ends_ns > now_ns]
        return int(later_ns.min()) if later_ns.size else FOREVER_NS

    def newest_dt_ns(self) -> float:
        return float(self._dt_ns[self.count - 1])

    def newest_row(self, now_ns: int) -> float:
        """Which row of the newest chunk is due, fractions included; there must be one."""
        index = self.count - 1
        dt_ns = float(self._dt_ns[index])
        position = (now_ns - int(self._origins_ns[index])) / dt_ns
        if abs(position - round(position)) * dt_ns <= SNAP_NS:
            position = float(round(position))
        return position

    def steepest(self) -> Float64Array:
        """The fastest that any held chunk moves anywhere between its rows: (A,) per second."""
        held = self._steepest[int(self.cubic), self._slots[: self.count]]
        fastest: Float64Array = held.max(axis=0, initial=0.0)
        return fastest

    def sample_newest(self, now_ns: int, *, out: Float64Array) -> bool:
        """Action of the newest chunk at ``now_ns`` into ``out``; False where it has none."""
        if self.count == 0:
            return False
        index = self.count - 1
        position = self.newest_row(now_ns)
        row = int(position)
        last_row = int(self._last_rows[index])
        if position < 0.0 or row > last_row:
            return False
        slot = int(self._slots[index])
        rows = self._rows[slot]
        out[:] = rows[row]
        fraction = position - row
        if fraction > 0.0 and row < last_row:
            np.subtract(rows[row + 1], rows[row], out=self._step)
            if self.cubic:
                self._add_curve(slot, row, fraction, out=out)
            else:
                np.multiply(self._step, fraction, out=self._step)
                np.add(out, self._step, out=out)
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
        weights = self._work_weights[:count]
        self._weigh(covered, out=weights)
        total = weights.sum()
        self._combine(count, out=out)
        np.divide(out, total, out=out)
        return True

    def sample_overlap(self, now_ns: int, *, out: Float64Array) -> bool:
        """The course of the overlap function at ``now_ns``; False where the newest has none."""
        count = self.count
        if count == 0:
            return False
        self._locate(now_ns, count)
        covered, due = self._covered[:count], self._started[:count]
        if not covered[count - 1]:
            return False
        np.greater(self._course_ends_ns[:count], now_ns, out=due)
        due[count - 1] = True
        np.logical_and(covered, due, out=covered)
        self._gather(count)
        self.overlap.fill(covered, out=self._work_weights[:count])
        self._combine(count, out=out)
        return True

    def _add_curve(self, slot: int, row: int, fraction: float, *, out: Float64Array) -> None:
        """From row ``row``, which is in ``out``, along the cubic; the step is in ``_step``."""
        low, high = self._tangents[slot, row], self._tangents[slot, row + 1]
        step, bend, curve = self._step, self._bend, self._curve
        np.add(low, high, out=bend)
        np.multiply(step, 2.0, out=curve)
        np.subtract(bend, curve, out=bend)
        np.subtract(step, low, out=curve)
        np.subtract(curve, bend, out=curve)
        np.multiply(bend, fraction, out=bend)
        np.add(curve, bend, out=curve)
        np.multiply(curve, fraction, out=curve)
        np.add(curve, low, out=curve)
        np.multiply(curve, fraction, out=curve)
        # Rounding must not carry it beyond a row either.
        np.minimum(step, 0.0, out=bend)
        np.maximum(step, 0.0, out=step)
        np.clip(curve, bend, step, out=curve)
        np.add(out, curve, out=out)

    def _weigh(self, covered: npt.NDArray[np.bool_], *, out: Float64Array) -> None:
        """Weights of the chunks: by age among those that cover the time, 0 for the others."""
        seen, age = self._lower[: covered.size], self._upper[: covered.size]
        np.copyto(seen, covered)
        np.cumsum(seen, out=age)
        np.subtract(age, 1, out=age)
        np.take(self._weights, age, out=out, mode='clip')
        np.logical_not(covered, out=covered)
        np.copyto(out, 0.0, where=covered)

    def _combine(self, count: int, *, out: Float64Array) -> None:
        """Sum of the gathered chunks by ``_work_weights``, each interpolated, into ``out``."""
        weights, fraction = self._work_weights[:count], self._fraction[:count]
        upper, square = self._upper_weights[:count], self._near[:count]
        if self.cubic:
            np.multiply(fraction, fraction, out=square)
            np.multiply(fraction, -2.0, out=upper)
            np.add(upper, 3.0, out=upper)
            np.multiply(upper, square, out=upper)
            np.multiply(weights, upper, out=upper)
            self._add_tangents(count, out=self._curve)
        else:
            np.multiply(weights, fraction, out=upper)
        np.subtract(weights, upper, out=weights)
        np.dot(weights, self._low[:count], out=out)
        np.dot(upper, self._high[:count], out=self._step)
        np.add(out, self._step, out=out)
        if self.cubic:
            np.add(out, self._curve, out=out)

    def _add_tangents(self, count: int, *, out: Float64Array) -> None:
        """What the tangents add to the sum; ``_near`` holds the squares of the fractions."""
        weights, fraction = self._work_weights[:count], self._fraction[:count]
        square, share = self._near[:count], self._position[:count]
        np.subtract(fraction, 1.0, out=share)
        np.multiply(square, share, out=square)
        np.multiply(square, weights, out=square)
        np.dot(square, self._high_tangents[:count], out=out)
        np.multiply(share, share, out=share)
        np.multiply(share, fraction, out=share)
        np.multiply(share, weights, out=share)
        np.dot(share, self._low_tangents[:count], out=self._step)
        np.add(out, self._step, out=out)

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
        if self.cubic:
            flat = self._flat_tangents
            np.take(flat, lower, axis=0, out=self._low_tangents[:count], mode='clip')
            np.take(flat, upper, axis=0, out=self._high_tangents[:count], mode='clip')

    def _keep(self, kept: npt.NDArray[Any]) -> None:
        """Keep the chunks at these indices, in the same order."""
        for field in self._fields():
            field[: kept.size] = field[kept]
        self.count = int(kept.size)

    def _reserve(self, *, rows: int) -> None:
        """Make room for chunks of ``rows`` rows and carry over what is held."""
        held = slice(0, self.count)
        slots = self._slots[held].copy()
        by_slot = [array[slots] for array in (self._rows, self._tangents)]
        steepest_held = self._steepest[:, slots]
        kept = [field[held] for field in self._fields()]
        self._allocate(rows=rows)
        for array, values in zip((self._rows, self._tangents), by_slot, strict=True):
            array[held, : values.shape[1]] = values
        self._steepest[:, held] = steepest_held
        for field, values in zip(self._fields(), kept, strict=True):
            field[held] = values
        self._slots[held] = np.arange(slots.size)

    def _fields(self) -> tuple[npt.NDArray[Any], ...]:
        """What is stored for each chunk, index 0 the oldest.

        The course of an overlap function leaves a chunk where the chunk runs out, or any that came
        after it.
        """
        return (
            self._slots,
            self._origins_ns,
            self._dt_ns,
            self._last_rows,
            self._ends_ns,
            self._course_ends_ns,
        )

    def _allocate(self, *, rows: int) -> None:
        capacity = MAX_CHUNKS
        self._rows, self._tangents = np.zeros((2, capacity, rows, self._size))
        self._flat = self._rows.reshape(capacity * rows, self._size)
        self._flat_tangents = self._tangents.reshape(capacity * rows, self._size)
        self._steepest = np.zeros((2, capacity, self._size))
        integers = np.zeros((8, capacity), dtype=np.int64)
        self._slots, self._origins_ns, self._last_rows, self._ends_ns = integers[:4]
        self._course_ends_ns, self._lower, self._upper, self._base = integers[4:]
        floats = np.zeros((6, capacity))
        self._dt_ns, self._position, self._near, self._fraction = floats[:4]
        self._work_weights, self._upper_weights = floats[4:]
        self._covered = np.zeros(capacity, dtype=np.bool_)
        self._started = np.zeros(capacity, dtype=np.bool_)
        self._low, self._high = np.zeros((2, capacity, self._size))
        self._low_tangents, self._high_tangents = np.zeros((2, capacity, self._size))

"""The course that chunks make together, by mode, and what is sent of it where it leaps.

Modes:

* ``queue`` plays the newest chunk from its arrival on, and so does ``rtc``, whose chunks the
  policy made to go on from the one before (real-time chunking, arXiv:2506.07339; see ``prefix``).
* ``ensemble`` plays the mean of all chunks that cover the time, weighted ``exp(-coeff * i)`` with
  ``i = 0`` for the oldest: the temporal ensembling of ACT (Zhao et al. 2023, algorithm 2) written
  for times instead of steps.
* ``weighted_average``, ``latest_only``, ``average``, ``conservative``: see ``overlap``.

Between rows the course is a line or a cubic (see ``interpolation``); the last row is due for one
whole ``dt``. Where the course leaps it is blended (see ``seam``), so mode, coefficient and
interpolation may change between two samples while the robot moves: what is sent goes on from where
it was, over ``blend_s`` or SWITCH_BLEND_S, whichever is longer.

Times are int nanoseconds that rise from call to call. Imports no torch; ``A`` joints.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparkrt_ros.runtime.chunking.chunk_store import FOREVER_NS, ChunkStore, Float64Array
from sparkrt_ros.runtime.chunking.interpolation import INTERPOLATIONS
from sparkrt_ros.runtime.chunking.overlap import OVERLAP_SHARES
from sparkrt_ros.runtime.chunking.seam import Cause, Seam
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import ActionChunk

MODES = ('queue', 'ensemble', 'rtc', *OVERLAP_SHARES)
DEFAULT_COEFF = 0.01
MAX_COEFF = 1.0


class Course:
    """Chunks of ``size`` joints and the seam between them; :meth:`sample` allocates no array."""

    def __init__(self, *, size: int) -> None:
        self.seam = Seam(size=size)
        self._store = ChunkStore(size=size)
        self._store.set_coefficient(DEFAULT_COEFF)
        self._old, self._new, self._rate = np.zeros((3, size))
        self._next_end_ns = FOREVER_NS
        self._mode = 'queue'
        self._interpolation = 'linear'
        self._coeff = DEFAULT_COEFF

    @property
    def mode(self) -> str:
        """One of MODES. Setting another raises ConfigError."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ConfigError('timeline mode', found=repr(mode), expected=_one_of(MODES))
        if mode != self._mode:
            self._switch(lambda: self._set_mode(mode))

    @property
    def interpolation(self) -> str:
        """One of INTERPOLATIONS. Setting another raises ConfigError."""
        return self._interpolation

    @interpolation.setter
    def interpolation(self, interpolation: str) -> None:
        if interpolation not in INTERPOLATIONS:
            raise ConfigError(
                'chunking.interpolation',
                found=repr(interpolation),
                expected=_one_of(INTERPOLATIONS),
            )
        if interpolation != self._interpolation:
            self._switch(lambda: self._set_interpolation(interpolation))

    @property
    def coeff(self) -> float:
        """Of ``ensemble``. Setting one beyond MAX_COEFF raises ConfigError."""
        return self._coeff

    @coeff.setter
    def coeff(self, coeff: float) -> None:
        if not abs(coeff) <= MAX_COEFF:
            raise ConfigError(
                'temporal_ensemble_coeff',
                found=str(coeff),
                expected=f'a number between {-MAX_COEFF} and {MAX_COEFF}',
            )
        if coeff != self._coeff:
            self._switch(lambda: self._set_coeff(float(coeff)))

    @property
    def held_chunks(self) -> int:
        return self._store.count

    def take(self, chunk: ActionChunk, *, origin_ns: int, now_ns: int, voids: bool) -> None:
        """Add a chunk whose row 0 is due at ``origin_ns``; ``voids`` drops those before it."""
        playing = self.seam.playing
        if playing:
            if now_ns >= self._next_end_ns:
                self._pass_end(now_ns)
            self.seam.course_at(now_ns, out=self._old)
            self._value(now_ns, out=self._old)
        if voids:
            self._store.clear()
        self._store.append(chunk, origin_ns=origin_ns, now_ns=now_ns)
        self.seam.learn(self._store.steepest())
        self._watch_ends(now_ns)
        if playing:
            self._leap(now_ns, 'chunk')

    def sample(self, now_ns: int, *, out: Float64Array) -> bool:
        """What is sent at ``now_ns``, into ``out`` (A,); False, and no change, on underrun."""
        if not self._value(now_ns, out=out):
            self.seam.forget()
            return False
        if now_ns >= self._next_end_ns:
            self._pass_end(now_ns)
        self.seam.follow(now_ns, value=out)
        return True

    def row(self, now_ns: int) -> float:
        """Which row of the newest chunk is due, fractions included; 0 without chunks."""
        return self._store.newest_row(now_ns) if self._store.count else 0.0

    def dt_ns(self) -> float:
        """Of the newest chunk; there must be one."""
        return self._store.newest_dt_ns()

    def end_ns(self) -> int:
        """When actions run out; 0 without chunks."""
        if self._mode == 'ensemble':
            return self._store.last_end_ns()
        return self._store.newest_end_ns()

    def shift(self, delay_ns: int, *, now_ns: int) -> None:
        """Let everything be due ``delay_ns`` later."""
        self._store.shift(delay_ns)
        self._watch_ends(now_ns)

    def clear(self) -> None:
        """Drop every chunk."""
        self._store.clear()
        self.seam.forget()

    def restart(self) -> None:
        """As when it was made, with its options kept."""
        self._store.clear()
        self.seam.restart()

    def _value(self, now_ns: int, *, out: Float64Array) -> bool:
        """The course at ``now_ns``; False, and no change, on underrun."""
        if self._mode == 'ensemble':
            return self._store.sample_mean(now_ns, out=out)
        if self._store.overlap.share > 0.0:
            return self._store.sample_overlap(now_ns, out=out)
        return self._store.sample_newest(now_ns, out=out)

    def _switch(self, change: Callable[[], None]) -> None:
        """Make ``change`` to the way of playing; what is sent goes on from where it was."""
        change()
        self.seam.learn(self._store.steepest())
        now_ns = self.seam.course_ns
        self._watch_ends(now_ns)
        if self.seam.playing:
            self.seam.course_at(now_ns, out=self._old)
            self._leap(now_ns, 'switch')

    def _set_mode(self, mode: str) -> None:
        self._mode = mode
        self._store.overlap.share = OVERLAP_SHARES.get(mode, 0.0)

    def _set_interpolation(self, interpolation: str) -> None:
        self._interpolation = interpolation
        self._store.cubic = interpolation == 'cubic'

    def _set_coeff(self, coeff: float) -> None:
        self._coeff = coeff
        self._store.set_coefficient(coeff)

    def _watch_ends(self, now_ns: int) -> None:
        """Look when the next chunk runs out that others are averaged with."""
        self._next_end_ns = FOREVER_NS
        if self._mode == 'ensemble' or self._store.overlap.share > 0.0:
            self._next_end_ns = self._store.next_end_ns(now_ns, course=self._mode != 'ensemble')

    def _pass_end(self, now_ns: int) -> None:
        """A chunk ran out since the last sample, and the others play on."""
        self._watch_ends(now_ns)
        if self.seam.playing:
            self.seam.course_at(now_ns, out=self._old)
            self._leap(now_ns, 'end')

    def _leap(self, now_ns: int, cause: Cause) -> None:
        """From the old course, in ``_old``, to the one that holds now."""
        if not self._value(now_ns, out=self._new):
            return
        ahead_ns = self.seam.period_ns or round(self._store.newest_dt_ns() / 10.0)
        self._rate[:] = 0.0
        if self._value(now_ns + ahead_ns, out=self._rate):
            np.subtract(self._rate, self._new, out=self._rate)
            np.divide(self._rate, ahead_ns / 1e9, out=self._rate)
        self.seam.leap(now_ns, old=self._old, new=self._new, new_rate=self._rate, cause=cause)


def _one_of(choices: tuple[str, ...]) -> str:
    return f'{", ".join(choices[:-1])} or {choices[-1]}'

"""From one course to the next without a jump, and how large the jumps would be.

A course is what the chunks say should be sent. It leaps when a chunk begins to play, when one runs
out that others were averaged with, and when the way of playing changes. What is sent is then not
the new course but that plus an offset, which begins as the leap in place and in speed, so that
what is sent goes on as it did, and fades as ``(d/dt + w)^3 offset = 0``: without overshoot from
rest, and with an acceleration that begins at 0. After ``blend_s`` 2 % of a leap are left; some
time later the offset is 0 and the course is sent bit for bit.

Beyond that, no joint moves faster meanwhile than ``SEAM_FACTOR`` times the fastest it moved inside
any chunk taken since the start (``inside``), which is what makes the bound of a seam:

    |step| <= max(SEAM_FACTOR * inside, |leap| / (LONGEST * blend_s)) * period

The second term ends the wait for a joint that hardly moved inside chunks; it counts only where the
leap is that large. Imports no torch; ``A`` joints; nothing is allocated per value.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ConfigError

SEAM_FACTOR = 1.1
LONGEST = 4.0
MAX_BLEND_S = 5.0
# Changes of the way of playing are blended over at least this, also where seams are not.
SWITCH_BLEND_S = 0.2
# (1 + FADE + FADE^2 / 2) exp(-FADE) = 2 % of a leap are left after blend_s.
FADE = 7.5
# An offset below this ends [rad or m]; so does its speed, times blend_s.
NOTHING = 1e-7

Float64Array = npt.NDArray[np.float64]
Cause = Literal['chunk', 'end', 'switch']


class SeamFigures(NamedTuple):
    """The steps that were sent at seams: from where a chunk begins or ends to the blend's end.

    seams: chunks that took over from others. last, largest: the largest step of one joint from one
    value to the next, at the newest seam and at any [rad or m]. last_ratio, largest_ratio: the
    same against the largest step that joint makes inside chunks in that time; joints that do not
    move inside chunks are left out.
    """

    seams: int = 0
    last: float = 0.0
    largest: float = 0.0
    last_ratio: float = 0.0
    largest_ratio: float = 0.0


class Seam:
    """The offset between the course and what is sent, (A,)."""

    def __init__(self, *, size: int) -> None:
        self._blend_s = 0.0
        self._decay = 0.0
        self._course, self._sent, self._rate = np.zeros((3, size))
        self._offset, self._speed, self._push = np.zeros((3, size))
        self._first, self._second = np.zeros((2, size))
        self._least, self._limit, self._work, self._more = np.zeros((4, size))
        self._mask = np.zeros(size, dtype=np.bool_)
        self._inside = np.zeros(size)
        self.restart()

    @property
    def blend_s(self) -> float:
        """Duration of a blend [s], 0: off; may change between two values."""
        return self._blend_s

    @blend_s.setter
    def blend_s(self, blend_s: float) -> None:
        if not 0.0 <= blend_s <= MAX_BLEND_S:
            raise ConfigError(
                'chunking.blend_s', found=str(blend_s), expected=f'0 to {MAX_BLEND_S:g} s'
            )
        self._blend_s = float(blend_s)

    @property
    def figures(self) -> SeamFigures:
        return SeamFigures(
            self._seams, self._last, self._largest, self._last_ratio, self._largest_ratio
        )

    @property
    def inside(self) -> Float64Array:
        """The fastest that each joint moved inside chunks since the start, (A,) per second."""
        return self._inside.copy()

    def restart(self) -> None:
        """As when it was made, with its blend kept."""
        self._inside[:] = 0.0
        self._seams = 0
        self._last = self._largest = self._last_ratio = self._largest_ratio = 0.0
        self.forget()

    def forget(self) -> None:
        """Nothing was sent just before: the next value begins a new motion."""
        self.playing = False
        self._fading = self._measured = False
        self._offset[:] = 0.0
        self._speed[:] = 0.0
        self._push[:] = 0.0
        self._least[:] = 0.0
        self.course_ns = self._sent_ns = self._faded_ns = 0
        self.period_ns = 0

    def learn(self, steepest: Float64Array) -> None:
        """Note how fast each joint moves inside chunks, (A,) per second."""
        np.maximum(self._inside, steepest, out=self._inside)

    def course_at(self, now_ns: int, *, out: Float64Array) -> None:
        """Where the course would be now if it went on as it did; at ``course_ns`` where it was."""
        np.multiply(self._rate, (now_ns - self.course_ns) / 1e9, out=out)
        np.add(out, self._course, out=out)

    def leap(
        self,
        now_ns: int,
        *,
        old: Float64Array,
        new: Float64Array,
        new_rate: Float64Array,
        cause: Cause,
    ) -> None:
        """The course is ``new`` from now on and moves on at ``new_rate``; it would be ``old``.

        cause: a ``chunk`` took over, one came to its ``end`` that others were averaged with, or
        the way of playing was switched (``switch``), which is no seam.
        """
        if now_ns > self.course_ns:
            np.subtract(old, self._course, out=self._rate)
            np.divide(self._rate, (now_ns - self.course_ns) / 1e9, out=self._rate)
        blend_s = self._blend_s
        if cause == 'switch':
            blend_s = max(blend_s, SWITCH_BLEND_S)
        if blend_s > 0.0:
            self._fade(now_ns)
            np.subtract(old, new, out=self._work)
            np.add(self._offset, self._work, out=self._offset)
            np.subtract(self._rate, new_rate, out=self._work)
            np.add(self._speed, self._work, out=self._speed)
            self._open(now_ns, blend_s)
        np.copyto(self._course, new)
        np.copyto(self._rate, new_rate)
        self.course_ns = now_ns
        if cause == 'chunk':
            self._seams += 1
            self._last = self._last_ratio = 0.0
        self._measured = self._measured or cause != 'switch'

    def follow(self, now_ns: int, *, value: Float64Array) -> None:
        """Turn ``value``, the course at ``now_ns``, into what is sent, in place."""
        if not self.playing:
            self.playing = True
            np.copyto(self._course, value)
            np.copyto(self._sent, value)
            self._rate[:] = 0.0
            self.course_ns = self._sent_ns = now_ns
            return
        self._move_course(now_ns, value)
        if self._fading:
            self._fade(now_ns)
            np.add(value, self._offset, out=value)
            if self._blend_s > 0.0:
                self._bound(now_ns, value)
            self._finish()
        if self._measured:
            self._measure(now_ns, value)
            self._measured = self._fading
        self.period_ns = now_ns - self._sent_ns
        self._sent_ns = now_ns
        np.copyto(self._sent, value)

    def _open(self, now_ns: int, blend_s: float) -> None:
        """The offset fades from now on, within ``blend_s``."""
        self._fading = True
        self._faded_ns = now_ns
        self._decay = FADE / blend_s
        np.abs(self._offset, out=self._least)
        np.divide(self._least, LONGEST * blend_s, out=self._least)

    def _move_course(self, now_ns: int, value: Float64Array) -> None:
        elapsed_s = (now_ns - self.course_ns) / 1e9
        if elapsed_s <= 0.0:
            return
        np.subtract(value, self._course, out=self._work)
        np.divide(self._work, elapsed_s, out=self._rate)
        np.copyto(self._course, value)
        self.course_ns = now_ns

    def _fade(self, now_ns: int) -> None:
        """Solve exactly for the time since it was last asked.

        With ``c1 = v + w x`` and ``c2 = a + 2 w v + w^2 x``, after ``h``:
        ``x = (x + c1 h + c2 h^2 / 2) e``, ``v = (c1 + c2 h) e - w x``,
        ``a = c2 e - 2 w v - w^2 x``, where ``e = exp(-w h)``.
        """
        if not self._fading:
            return
        elapsed_s = (now_ns - self._faded_ns) / 1e9
        self._faded_ns = now_ns
        decay, left = self._decay, math.exp(-self._decay * elapsed_s)
        offset, speed, push, work = self._offset, self._speed, self._push, self._work
        first, second = self._first, self._second
        np.multiply(offset, decay, out=first)
        np.add(first, speed, out=first)
        np.multiply(first, decay, out=second)
        np.multiply(speed, decay, out=work)
        np.add(second, work, out=second)
        np.add(second, push, out=second)
        np.multiply(second, elapsed_s, out=work)
        np.multiply(work, 0.5, out=push)
        np.add(push, first, out=push)
        np.multiply(push, elapsed_s, out=push)
        np.add(offset, push, out=offset)
        np.multiply(offset, left, out=offset)
        np.add(first, work, out=speed)
        np.multiply(speed, left, out=speed)
        np.multiply(offset, decay, out=work)
        np.subtract(speed, work, out=speed)
        np.multiply(second, left, out=push)
        np.multiply(work, decay, out=work)
        np.subtract(push, work, out=push)
        np.multiply(speed, 2.0 * decay, out=work)
        np.subtract(push, work, out=push)

    def _bound(self, now_ns: int, value: Float64Array) -> None:
        """Keep the step within the bound; the offset takes what is cut off."""
        elapsed_s = (now_ns - self._sent_ns) / 1e9
        np.multiply(self._inside, SEAM_FACTOR, out=self._limit)
        np.maximum(self._limit, self._least, out=self._limit)
        np.multiply(self._limit, elapsed_s, out=self._limit)
        np.negative(self._limit, out=self._more)
        np.subtract(value, self._sent, out=self._work)
        np.clip(self._work, self._more, self._limit, out=self._limit)
        np.not_equal(self._work, self._limit, out=self._mask)
        if not self._mask.any():
            return
        np.add(self._sent, self._limit, out=self._work)
        np.copyto(value, self._work, where=self._mask)
        np.subtract(value, self._course, out=self._work)
        np.copyto(self._offset, self._work, where=self._mask)
        if elapsed_s > 0.0:
            np.divide(self._limit, elapsed_s, out=self._limit)
            np.subtract(self._limit, self._rate, out=self._limit)
            np.copyto(self._speed, self._limit, where=self._mask)
            np.copyto(self._push, 0.0, where=self._mask)

    def _finish(self) -> None:
        np.abs(self._offset, out=self._work)
        np.abs(self._speed, out=self._more)
        np.abs(self._push, out=self._limit)
        nothing = NOTHING * self._decay
        slow = self._more.max() <= nothing and self._limit.max() <= nothing * self._decay
        if slow and self._work.max() <= NOTHING:
            self._offset[:] = 0.0
            self._speed[:] = 0.0
            self._push[:] = 0.0
            self._least[:] = 0.0
            self._fading = False

    def _measure(self, now_ns: int, value: Float64Array) -> None:
        elapsed_s = (now_ns - self._sent_ns) / 1e9
        np.subtract(value, self._sent, out=self._work)
        np.abs(self._work, out=self._work)
        self._last = max(self._last, float(self._work.max()))
        self._largest = max(self._largest, self._last)
        np.multiply(self._inside, elapsed_s, out=self._limit)
        np.greater(self._limit, 0.0, out=self._mask)
        self._more[:] = 0.0
        np.divide(self._work, self._limit, out=self._more, where=self._mask)
        self._last_ratio = max(self._last_ratio, float(self._more.max()))
        self._largest_ratio = max(self._largest_ratio, self._last_ratio)

"""Stamped action chunks, sampled by time.

Row ``i`` of a chunk is due at ``origin + i * dt``. The origin is the observation stamp when
actions were consumed ever since that observation; otherwise it is shifted so that playback goes
on where it really is: ``skip = min(delay, consumed)``, ``origin = now - skip``. A chunk taken at
start-up therefore begins at row 0, and a late one skips exactly what was played meanwhile.

Modes, which say what the course is:

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

The class has no clock and no lock: one thread owns it, and every time is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparkrt_ros.runtime.chunking.admission import Admission, Refusal, check_form
from sparkrt_ros.runtime.chunking.chunk_store import SNAP_NS, ChunkStore, Float64Array
from sparkrt_ros.runtime.chunking.interpolation import INTERPOLATIONS
from sparkrt_ros.runtime.chunking.overlap import OVERLAP_SHARES
from sparkrt_ros.runtime.chunking.played import PlayedTime
from sparkrt_ros.runtime.chunking.seam import Seam, SeamFigures
from sparkrt_ros.runtime.errors import ActionError, ConfigError
from sparkrt_ros.runtime.types import ActionChunk

MODES = ('queue', 'ensemble', 'rtc', *OVERLAP_SHARES)
DEFAULT_COEFF = 0.01
MAX_COEFF = 1.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A chunk that plays from now on.

    delay_s: from its observation to its arrival. skip_s: how much of it had been consumed.
    late: more of it than the policy was told (``frozen_rows``), so that it does not go on from
    what was played.
    """

    delay_s: float
    skip_s: float
    late: bool = False


class Timeline:
    """Holds chunks for ``joint_names`` and yields the action due at a time.

    joint_names: the A columns every chunk must have, in this order.
    temporal_ensemble_coeff: above 0 favours older chunks, below 0 newer ones.
    interpolation: ``linear`` or ``cubic``. blend_s: of a seam [s]; 0: courses leap.

    After :meth:`take` has seen the longest chunk, :meth:`sample` allocates no array.
    """

    def __init__(
        self,
        *,
        joint_names: tuple[str, ...],
        mode: str = 'queue',
        temporal_ensemble_coeff: float = DEFAULT_COEFF,
        interpolation: str = 'linear',
        blend_s: float = 0.0,
    ) -> None:
        if not joint_names:
            raise ConfigError('timeline', found='no joint names', expected='at least one')
        self.joint_names = joint_names
        self.rejected: Counter[str] = Counter()
        self.time_jumps = 0
        self.late = 0
        self._admission = Admission()
        self._played = PlayedTime()
        self._now_ns: int | None = None
        self._still_since_ns: int | None = None
        size = len(joint_names)
        self._store = ChunkStore(size=size)
        self._seam = Seam(size=size)
        self._old, self._new, self._rate = np.zeros((3, size))
        self._mode = 'queue'
        self._interpolation = 'linear'
        self._coeff = DEFAULT_COEFF
        self.mode = mode
        self.interpolation = interpolation
        self._store.set_coefficient(DEFAULT_COEFF)
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.blend_s = blend_s

    @property
    def mode(self) -> str:
        """One of MODES; may be switched between two samples."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ConfigError('timeline mode', found=repr(mode), expected=_one_of(MODES))
        if mode != self._mode:
            self._switch(lambda: self._set_mode(mode))

    @property
    def interpolation(self) -> str:
        """One of INTERPOLATIONS; may be switched between two samples."""
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
    def temporal_ensemble_coeff(self) -> float:
        """May be changed between two samples."""
        return self._coeff

    @temporal_ensemble_coeff.setter
    def temporal_ensemble_coeff(self, coeff: float) -> None:
        if not abs(coeff) <= MAX_COEFF:
            raise ConfigError(
                'temporal_ensemble_coeff',
                found=str(coeff),
                expected=f'a number between {-MAX_COEFF} and {MAX_COEFF}',
            )
        if coeff != self._coeff:
            self._switch(lambda: self._set_coeff(float(coeff)))

    @property
    def blend_s(self) -> float:
        """Duration of the blend at seams [s], 0: off; may be changed between two samples."""
        return self._seam.blend_s

    @blend_s.setter
    def blend_s(self, blend_s: float) -> None:
        self._seam.blend_s = blend_s

    @property
    def seams(self) -> SeamFigures:
        """How large the steps at seams were, since construction or :meth:`restart`."""
        return self._seam.figures

    @property
    def inside_rates(self) -> Float64Array:
        """The fastest that each joint moved inside chunks, (A,) per second, since then."""
        return self._seam.inside

    @property
    def session_id(self) -> int:
        """Policy process of the newest chunk; 0 before the first."""
        return self._admission.session_id

    @property
    def epoch(self) -> int:
        return self._admission.epoch

    @property
    def chunk_id(self) -> int:
        """Newest chunk taken; 0 before the first."""
        return self._admission.chunk_id

    @property
    def taken(self) -> int:
        """Chunks accepted so far."""
        return self._admission.taken

    @property
    def newest_observation_ns(self) -> int | None:
        """Observation stamp of the newest chunk, None before the first and after a time jump."""
        return self._admission.newest_observation_ns

    @property
    def held_chunks(self) -> int:
        """Chunks held; those that ran out are forgotten when the next is taken."""
        return self._store.count

    @property
    def played_ns(self) -> int:
        """Time during which actions were consumed, since construction or :meth:`restart`."""
        return self._played.total_ns

    def advance(self, now_ns: int) -> None:
        """Note the time; where it went backwards, every chunk and the history are void."""
        if self._now_ns is not None and now_ns < self._now_ns:
            self.time_jumps += 1
            self.clear()
            self._played.forget()
            self._admission.forget_times()
        self._now_ns = now_ns

    def take(self, chunk: ActionChunk, *, now_ns: int, session_id: int = 0) -> Taken | Refusal:
        """Add a chunk that arrives at ``now_ns``; its rows are copied.

        Returns what was skipped of it, or the reason why it is not played (also counted in
        ``rejected`` by its kind). A refused chunk changes nothing else.
        """
        self.advance(now_ns)
        refusal = check_form(chunk, self.joint_names) or self._admission.check(
            chunk, session_id=session_id, now_ns=now_ns
        )
        if refusal is not None:
            return self._refuse(refusal)
        self._move_on(now_ns)
        self._follow_playback(now_ns)
        delay_ns = max(0, now_ns - chunk.observation_stamp_ns)
        skip_ns = min(delay_ns, self._played.since(chunk.observation_stamp_ns))
        if skip_ns >= chunk.rows * chunk.dt_s * 1e9 - SNAP_NS:
            reason = (
                f'all {chunk.rows} rows were consumed before it arrived '
                f'{delay_ns / 1e9:.3f} s after its observation'
            )
            return self._refuse(Refusal(kind='consumed', reason=reason))
        playing = self._seam.playing
        if playing:
            self._where_it_would_be(now_ns)
        if self._admission.accept(chunk, session_id=session_id):
            self._store.clear()
        self._store.append(chunk, origin_ns=now_ns - skip_ns, now_ns=now_ns)
        self._seam.learn(self._store.steepest())
        if playing:
            self._leap(now_ns, switch=False)
        late = bool(chunk.frozen_rows) and skip_ns > chunk.frozen_rows * chunk.dt_s * 1e9 + SNAP_NS
        self.late += late
        return Taken(delay_s=delay_ns / 1e9, skip_s=skip_ns / 1e9, late=late)

    def sample(self, now_ns: int, *, out: Float64Array) -> bool:
        """Write the action due at ``now_ns`` into ``out``, (A,) float64.

        Returns False on underrun (``out`` is then unchanged, so it still holds the last action)
        and notes the time as played otherwise.
        """
        self.advance(now_ns)
        size = len(self.joint_names)
        if out.shape != (size,) or out.dtype != np.float64:
            raise ActionError(
                'timeline sample',
                found=f'out of shape {out.shape} and type {out.dtype}',
                expected=f'({size},) float64',
            )
        self._move_on(now_ns)
        due = self._course(now_ns, out=out)
        if due:
            self._played.extend(now_ns)
            self._seam.follow(now_ns, value=out)
        else:
            self._follow_playback(now_ns)
            self._played.stop()
            self._seam.forget()
        return due

    def row(self, now_ns: int) -> float:
        """Which row of the newest chunk is due, fractions included; 0 without chunks.

        Beyond the last row it is the row that would be due.
        """
        if self._store.count == 0:
            return 0.0
        if self._still_since_ns is not None:
            now_ns = self._still_since_ns
        return self._store.newest_row(now_ns)

    def stand_still(self, now_ns: int) -> None:
        """Consume nothing from ``now_ns`` on; the next sample goes on where playback stood."""
        self.advance(now_ns)
        if self._still_since_ns is None:
            self._follow_playback(now_ns)
            self._played.stop()
            self._seam.forget()
            self._still_since_ns = now_ns

    def remaining_s(self, now_ns: int) -> float:
        """Time until the held actions run out, 0 when they have."""
        return max(0, self._end_ns() - now_ns) / 1e9

    def queue_depth(self, now_ns: int) -> float:
        """Actions left, in rows of the newest chunk's ``dt``."""
        if self._store.count == 0:
            return 0.0
        return self.remaining_s(now_ns) * 1e9 / self._store.newest_dt_ns()

    def clear(self, *, barrier_ns: int | None = None) -> None:
        """Drop every chunk; with ``barrier_ns`` also those on their way, observed before it."""
        self._played.stop()
        self._store.clear()
        self._seam.forget()
        self._still_since_ns = None
        if barrier_ns is not None:
            self._admission.refuse_before(barrier_ns)

    def restart(self) -> None:
        """As when it was made, with its options kept."""
        self._store.clear()
        self._seam.restart()
        self._admission = Admission()
        self._played = PlayedTime()
        self._now_ns = None
        self._still_since_ns = None
        self.rejected = Counter()
        self.time_jumps = 0
        self.late = 0

    def _course(self, now_ns: int, *, out: Float64Array) -> bool:
        """What the chunks say should be sent at ``now_ns``; False on underrun."""
        if self._mode == 'ensemble':
            return self._store.sample_mean(now_ns, out=out)
        if self._store.overlap.share > 0.0:
            return self._store.sample_overlap(now_ns, out=out)
        return self._store.sample_newest(now_ns, out=out)

    def _switch(self, change: Callable[[], None]) -> None:
        """Make ``change`` to the way of playing; what is sent goes on from where it was."""
        change()
        self._seam.learn(self._store.steepest())
        if self._seam.playing:
            self._seam.last_course(out=self._old)
            self._leap(self._seam.course_ns, switch=True)

    def _set_mode(self, mode: str) -> None:
        self._mode = mode
        self._store.overlap.share = OVERLAP_SHARES.get(mode, 0.0)

    def _set_interpolation(self, interpolation: str) -> None:
        self._interpolation = interpolation
        self._store.cubic = interpolation == 'cubic'

    def _set_coeff(self, coeff: float) -> None:
        self._coeff = coeff
        self._store.set_coefficient(coeff)

    def _where_it_would_be(self, now_ns: int) -> None:
        """The course at ``now_ns`` without the next chunk; where it ran out, its last value."""
        self._seam.last_course(out=self._old)
        self._course(now_ns, out=self._old)

    def _leap(self, now_ns: int, *, switch: bool) -> None:
        """From the old course, in ``_old``, to the one that holds now."""
        if not self._course(now_ns, out=self._new):
            return
        ahead_ns = self._seam.period_ns or round(self._store.newest_dt_ns() / 10.0)
        self._rate[:] = 0.0
        if self._course(now_ns + ahead_ns, out=self._rate):
            np.subtract(self._rate, self._new, out=self._rate)
            np.divide(self._rate, ahead_ns / 1e9, out=self._rate)
        self._seam.leap(now_ns, old=self._old, new=self._new, new_rate=self._rate, switch=switch)

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.rejected[refusal.kind] += 1
        return refusal

    def _move_on(self, now_ns: int) -> None:
        """End a standstill."""
        if self._still_since_ns is not None:
            self._store.shift(now_ns - self._still_since_ns)
            self._still_since_ns = None

    def _follow_playback(self, now_ns: int) -> None:
        """Actions that were playing went on until now, or until they ran out."""
        if self._played.playing:
            self._played.extend(min(now_ns, self._end_ns()))

    def _end_ns(self) -> int:
        if self._mode == 'ensemble':
            return self._store.last_end_ns()
        return self._store.newest_end_ns()


def _one_of(choices: tuple[str, ...]) -> str:
    return f'{", ".join(choices[:-1])} or {choices[-1]}'

"""Stamped action chunks, sampled by time.

Row ``i`` of a chunk is due at ``origin + i * dt``. The origin is the observation stamp when
actions were consumed ever since that observation; otherwise it is shifted so that playback goes
on where it really is: ``skip = min(delay, consumed)``, ``origin = now - skip``. A chunk taken at
start-up therefore begins at row 0, and a late one skips exactly what was played meanwhile.

What the chunks make together, by mode, is told in ``course``; how its leaps are blended, in
``seam``.

The class has no clock and no lock: one thread owns it, and every time is an argument.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sparkrt_ros.runtime.chunking.admission import Admission, Refusal, check_form
from sparkrt_ros.runtime.chunking.chunk_store import SNAP_NS, Float64Array
from sparkrt_ros.runtime.chunking.course import DEFAULT_COEFF, MAX_COEFF, MODES, Course
from sparkrt_ros.runtime.chunking.played import PlayedTime
from sparkrt_ros.runtime.chunking.seam import SeamFigures
from sparkrt_ros.runtime.errors import ActionError, ConfigError
from sparkrt_ros.runtime.types import ActionChunk

__all__ = ['DEFAULT_COEFF', 'MAX_COEFF', 'MODES', 'Taken', 'Timeline']


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
        self._course = Course(size=len(joint_names))
        self.mode = mode
        self.interpolation = interpolation
        self.temporal_ensemble_coeff = temporal_ensemble_coeff
        self.blend_s = blend_s

    @property
    def mode(self) -> str:
        """One of MODES; may be switched between two samples."""
        return self._course.mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._course.mode = mode

    @property
    def interpolation(self) -> str:
        """``linear`` or ``cubic``; may be switched between two samples."""
        return self._course.interpolation

    @interpolation.setter
    def interpolation(self, interpolation: str) -> None:
        self._course.interpolation = interpolation

    @property
    def temporal_ensemble_coeff(self) -> float:
        """May be changed between two samples."""
        return self._course.coeff

    @temporal_ensemble_coeff.setter
    def temporal_ensemble_coeff(self, coeff: float) -> None:
        self._course.coeff = coeff

    @property
    def blend_s(self) -> float:
        """Duration of the blend at seams [s], 0: off; may be changed between two samples."""
        return self._course.seam.blend_s

    @blend_s.setter
    def blend_s(self, blend_s: float) -> None:
        self._course.seam.blend_s = blend_s

    @property
    def seams(self) -> SeamFigures:
        """How large the steps at seams were, since construction or :meth:`restart`."""
        return self._course.seam.figures

    @property
    def inside_rates(self) -> Float64Array:
        """The fastest that each joint moved inside chunks, (A,) per second, since then."""
        return self._course.seam.inside

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
        return self._course.held_chunks

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
        voids = self._admission.accept(chunk, session_id=session_id)
        self._course.take(chunk, origin_ns=now_ns - skip_ns, now_ns=now_ns, voids=voids)
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
        due = self._course.sample(now_ns, out=out)
        if due:
            self._played.extend(now_ns)
        else:
            self._follow_playback(now_ns)
            self._played.stop()
        return due

    def row(self, now_ns: int) -> float:
        """Which row of the newest chunk is due, fractions included; 0 without chunks.

        Beyond the last row it is the row that would be due.
        """
        if self._still_since_ns is not None:
            now_ns = self._still_since_ns
        return self._course.row(now_ns)

    def stand_still(self, now_ns: int) -> None:
        """Consume nothing from ``now_ns`` on; the next sample goes on where playback stood."""
        self.advance(now_ns)
        if self._still_since_ns is None:
            self._follow_playback(now_ns)
            self._played.stop()
            self._course.seam.forget()
            self._still_since_ns = now_ns

    def remaining_s(self, now_ns: int) -> float:
        """Time until the held actions run out, 0 when they have."""
        return max(0, self._course.end_ns() - now_ns) / 1e9

    def queue_depth(self, now_ns: int) -> float:
        """Actions left, in rows of the newest chunk's ``dt``."""
        if self._course.held_chunks == 0:
            return 0.0
        return self.remaining_s(now_ns) * 1e9 / self._course.dt_ns()

    def clear(self, *, barrier_ns: int | None = None) -> None:
        """Drop every chunk; with ``barrier_ns`` also those on their way, observed before it."""
        self._played.stop()
        self._course.clear()
        self._still_since_ns = None
        if barrier_ns is not None:
            self._admission.refuse_before(barrier_ns)

    def restart(self) -> None:
        """As when it was made, with its options kept."""
        self._course.restart()
        self._admission = Admission()
        self._played = PlayedTime()
        self._now_ns = None
        self._still_since_ns = None
        self.rejected = Counter()
        self.time_jumps = 0
        self.late = 0

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.rejected[refusal.kind] += 1
        return refusal

    def _move_on(self, now_ns: int) -> None:
        """End a standstill."""
        if self._still_since_ns is not None:
            self._course.shift(now_ns - self._still_since_ns, now_ns=now_ns)
            self._still_since_ns = None

    def _follow_playback(self, now_ns: int) -> None:
        """Actions that were playing went on until now, or until they ran out."""
        if self._played.playing:
            self._played.extend(min(now_ns, self._course.end_ns()))

"""Which chunks may be played: form, then order of sessions, epochs and observations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sparkrt_ros.runtime.types import ActionChunk

MIN_DT_S = 1e-6
# Clocks of two synchronised hosts differ by milliseconds.
MAX_FUTURE_NS = 100_000_000
RETIRED_SESSIONS = 64


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a chunk is not played.

    kind: one of ``names``, ``size``, ``non_finite``, ``dt``, ``future``, ``session``, ``epoch``,
        ``order``, ``before_reset``, ``consumed``; the key it is counted under.
    reason: the sentence for a log.
    """

    kind: str
    reason: str


def check_form(chunk: ActionChunk, joint_names: tuple[str, ...]) -> Refusal | None:
    """Check what needs no history: names, shape, finite values, time step.

    chunk.actions: (T, A), T >= 1 and A == len(joint_names).
    """
    if chunk.joint_names != joint_names:
        found, wanted = list(chunk.joint_names), list(joint_names)
        return Refusal(kind='names', reason=f'joint names {found} instead of {wanted}')
    shape = chunk.actions.shape
    if len(shape) != 2 or shape[0] == 0 or shape[1] != len(joint_names):
        return Refusal(
            kind='size',
            reason=f'actions of shape {shape} instead of (rows >= 1, {len(joint_names)})',
        )
    finite = np.isfinite(chunk.actions)
    if not finite.all():
        row, column = (int(index[0]) for index in np.nonzero(~finite))
        value = chunk.actions[row, column]
        return Refusal(
            kind='non_finite', reason=f'{value} in row {row} for joint {joint_names[column]!r}'
        )
    if not np.isfinite(chunk.dt_s) or chunk.dt_s < MIN_DT_S:
        return Refusal(kind='dt', reason=f'time step dt = {chunk.dt_s} s; it must be above 0')
    return None


class Admission:
    """Orders the chunks of policy processes that come, go and come back.

    Within one session (one policy process) a chunk of an older epoch is void, and so is one
    observed before a chunk already taken. A new session takes over when its observation is newer;
    the session it replaced is retired for good, so that two processes never take turns.
    """

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.chunk_id = 0
        self.taken = 0
        self.newest_observation_ns: int | None = None
        self._barrier_ns: int | None = None
        self._retired: deque[int] = deque(maxlen=RETIRED_SESSIONS)

    def check(self, chunk: ActionChunk, *, session_id: int, now_ns: int) -> Refusal | None:
        """Return why the chunk is out of order at ``now_ns``, or None when it may be played."""
        stamp_ns = chunk.observation_stamp_ns
        if stamp_ns - now_ns > MAX_FUTURE_NS:
            ahead_s = (stamp_ns - now_ns) / 1e9
            return Refusal(
                kind='future',
                reason=f'observed {ahead_s:.3f} s in the future; policy and streamer must use the '
                'same clock (use_sim_time on both or on neither, synchronised hosts)',
            )
        if self._barrier_ns is not None and stamp_ns < self._barrier_ns:
            early_s = (self._barrier_ns - stamp_ns) / 1e9
            return Refusal(
                kind='before_reset',
                reason=f'observed {early_s:.3f} s before the last reset or resume',
            )
        if session_id == self.session_id:
            return self._check_order(chunk)
        return self._check_session(stamp_ns, session_id)

    def accept(self, chunk: ActionChunk, *, session_id: int) -> bool:
        """Note the chunk as the newest; True when it voids every chunk taken before it."""
        other_session = self.taken > 0 and session_id != self.session_id
        if other_session:
            self._retired.append(self.session_id)
        voids = other_session or (self.taken > 0 and chunk.epoch != self.epoch)
        self.taken += 1
        self.session_id = session_id
        self.epoch = chunk.epoch
        self.chunk_id = chunk.chunk_id
        self.newest_observation_ns = chunk.observation_stamp_ns
        return voids

    def refuse_before(self, barrier_ns: int) -> None:
        """Void every chunk observed before ``barrier_ns``, those still on their way included."""
        self._barrier_ns = barrier_ns

    def forget_times(self) -> None:
        """Time went backwards: stamps of before compare with nothing."""
        self.newest_observation_ns = None
        self._barrier_ns = None

    def _check_session(self, stamp_ns: int, session_id: int) -> Refusal | None:
        if session_id in self._retired:
            return Refusal(
                kind='session',
                reason=f'policy process {session_id:x} was replaced by {self.session_id:x}; '
                'two policy processes publish to one streamer: stop one of them',
            )
        newest_ns = self.newest_observation_ns
        if newest_ns is not None and stamp_ns <= newest_ns:
            late_s = (newest_ns - stamp_ns) / 1e9
            return Refusal(
                kind='session',
                reason=f'policy process {session_id:x} observed {late_s:.3f} s before the chunk '
                f'of {self.session_id:x} that plays',
            )
        return None

    def _check_order(self, chunk: ActionChunk) -> Refusal | None:
        if chunk.epoch < self.epoch:
            return Refusal(
                kind='epoch', reason=f'epoch {chunk.epoch} is older than epoch {self.epoch}'
            )
        if self.newest_observation_ns is None or chunk.epoch > self.epoch:
            return None
        newest = (self.newest_observation_ns, self.chunk_id)
        if (chunk.observation_stamp_ns, chunk.chunk_id) <= newest:
            return Refusal(
                kind='order',
                reason=f'chunk {chunk.chunk_id} is not newer than chunk {self.chunk_id}, '
                'taken before',
            )
        return None

"""What a chunk of real-time chunking goes on from (arXiv:2506.07339): the rest of the one before.

The policy predicts from an observation while the robot goes on with the chunk it has. It is told
which actions these will be: row 0 of the prefix is what was due when the observation was made, and
the first ``delay`` rows will have been played before the new chunk arrives.

* Aligned by consumption: the row that was due follows from what the streamer says it plays, not
  from how long an inference is thought to take. Between two rows the prefix is interpolated.
* Where the chunk before ends, its last action is held, which is what the robot does; zeros would
  be the mean of the training data to a policy.
* The delay is the largest of the last latencies, without the first ones: these hold what is done
  once, such as recording a graph.

Imports no torch. Shapes: ``T`` rows, ``A`` joints.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import ActionChunk, FloatArray

KEPT_CHUNKS = 16
# A row that is due this much of a row ago is due now: times are rounded to nanoseconds.
SAME_ROW = 1e-6


@dataclass(frozen=True, kw_only=True)
class Playback:
    """What a streamer says it plays.

    session_id, chunk_id: of the newest chunk it took. row: which of its rows was due at
    ``at_ns``, fractions included. playing: whether it goes on; False where it stands still.
    """

    session_id: int
    chunk_id: int
    row: float
    at_ns: int
    playing: bool

    def row_at(self, stamp_ns: int, *, dt_s: float) -> float:
        """The row that was or will be due at ``stamp_ns``; below 0 before the chunk began."""
        moved = (stamp_ns - self.at_ns) / (dt_s * 1e9) if self.playing else 0.0
        return self.row + moved


@dataclass(frozen=True, kw_only=True)
class PrefixPlan:
    """Which rows of which chunks a prefix is made of, whatever their values.

    chunk_id: of the chunk that it is the rest of, from ``row`` on, ``rows`` of them. known: those
    up to the end of that chunk, from where on its last one is held. earlier: so many of the first
    are of chunk ``before_id`` instead, from ``before_row`` on: they were due before the other one
    arrived. delay: rows played before the new chunk arrives.
    """

    chunk_id: int
    row: float
    rows: int
    known: int
    delay: int
    earlier: int = 0
    before_id: int = 0
    before_row: float = 0.0

    def actions(self, chunks: Mapping[int, FloatArray]) -> FloatArray:
        """The prefix (rows, A) float32, row 0 due at the observation; chunks: (T, A) by number."""
        actions = rest_of_chunk(chunks[self.chunk_id], row=self.row, rows=self.rows)
        if self.earlier:
            played = rest_of_chunk(chunks[self.before_id], row=self.before_row, rows=self.rows)
            actions[: self.earlier] = played[: self.earlier]
        return actions


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """actions: of ``plan``, in the units of the chunks."""

    actions: FloatArray
    plan: PrefixPlan

    @property
    def delay(self) -> int:
        """Rows played before the new chunk arrives."""
        return self.plan.delay


def rest_of_chunk(actions: FloatArray, *, row: float, rows: int) -> FloatArray:
    """``rows`` rows of (T, A) ``actions`` from ``row`` on, then its last row: (rows, A) float32.

    A row between two is interpolated linearly; below 0, before the chunk began, it is its first.
    Raises ConfigError without rows, or for a ``row`` that is no number.
    """
    if actions.ndim != 2 or len(actions) == 0 or rows < 1 or not math.isfinite(row):
        raise ConfigError(
            'rest of a chunk',
            found=f'actions of shape {actions.shape}, row {row}, {rows} rows wanted',
            expected='(rows >= 1, joints), a finite row and at least 1 row',
        )
    last = len(actions) - 1
    if abs(row - round(row)) <= SAME_ROW:
        row = float(round(row))
    places = np.clip(row + np.arange(rows), 0.0, float(last))
    low = places.astype(np.int64)
    fractions = (places - low).astype(np.float32)[:, None]
    taken: FloatArray = actions[low].astype(np.float32)
    ahead = actions[np.minimum(low + 1, last)].astype(np.float32)
    rest: FloatArray = taken + fractions * (ahead - taken)
    return rest


class DelayEstimate:
    """How many rows are played from an observation until its chunk arrives.

    window: latencies it looks back on. warm_up: how many of the first ones do not count.
    """

    def __init__(self, *, window: int = 32, warm_up: int = 1) -> None:
        if window < 1 or warm_up < 0:
            raise ConfigError(
                'delay estimate',
                found=f'window {window}, warm-up {warm_up}',
                expected='a window of at least 1 and a warm-up of at least 0',
            )
        self._latencies_s: deque[float] = deque(maxlen=window)
        self._warm_up = warm_up
        self._ignored = 0

    def add(self, latency_s: float) -> None:
        """Note for how long the robot went on from an observation until its chunk arrived."""
        if self._ignored < self._warm_up:
            self._ignored += 1
        elif math.isfinite(latency_s) and latency_s >= 0.0:
            self._latencies_s.append(latency_s)

    def restart(self) -> None:
        """After a change of policy: forget, and leave the next ones out again."""
        self._latencies_s.clear()
        self._ignored = 0

    @property
    def latency_s(self) -> float:
        """The largest of the window; 0 before the first that counts."""
        return max(self._latencies_s, default=0.0)

    def rows(self, dt_s: float) -> int:
        """The latency in rows of ``dt_s``, rounded up."""
        return math.ceil(self.latency_s / dt_s - SAME_ROW)


class PrefixSource:
    """Remembers the chunks that were sent and yields the prefix of the next inference.

    One thread. session_id: of this policy process.
    """

    def __init__(self, *, session_id: int, delay: DelayEstimate | None = None) -> None:
        self.delay = DelayEstimate() if delay is None else delay
        self._session_id = session_id
        self._sent: OrderedDict[int, ActionChunk] = OrderedDict()
        self._playback: Playback | None = None
        self._before: Playback | None = None
        self._arrived_id = 0
        self._arrived_ns = 0

    def sent(self, chunk: ActionChunk) -> None:
        """A chunk was published."""
        self._sent[chunk.chunk_id] = chunk
        while len(self._sent) > KEPT_CHUNKS:
            self._sent.popitem(last=False)

    def follow(self, playback: Playback | None) -> None:
        """Note what the streamer plays; None: nothing that could be gone on from.

        The first word of a chunk tells how much of it was consumed when it arrived.
        """
        before, self._playback = self._playback, playback
        if playback is None or playback.session_id != self._session_id:
            return
        chunk = self._sent.get(playback.chunk_id)
        if chunk is not None and chunk.chunk_id != self._arrived_id:
            self._before, self._arrived_ns = before, playback.at_ns
            self._arrived_id = chunk.chunk_id
            self.delay.add(playback.row * chunk.dt_s)

    def restart(self) -> None:
        """A new episode: there is nothing to go on from."""
        self._sent.clear()
        self._playback = self._before = None
        self._arrived_id = 0

    def prefix(self, observation_ns: int, *, epoch: int) -> Prefix | None:
        """What the chunk of an observation at ``observation_ns`` has to go on from.

        None where the streamer plays no chunk of this process and epoch. The rows are those of
        the chunk as it was sent, and as many as it had; those due before it arrived are of the
        chunk that played until then.
        """
        plan = self._plan(observation_ns, epoch=epoch)
        if plan is None:
            return None
        chunks = {number: chunk.actions for number, chunk in self._sent.items()}
        return Prefix(actions=plan.actions(chunks), plan=plan)

    def _plan(self, observation_ns: int, *, epoch: int) -> PrefixPlan | None:
        playback = self._playback
        chunk = self._chunk_of(playback, epoch=epoch)
        if playback is None or chunk is None:
            return None
        row = playback.row_at(observation_ns, dt_s=chunk.dt_s)
        plan = PrefixPlan(
            chunk_id=chunk.chunk_id,
            row=row,
            rows=chunk.rows,
            known=min(chunk.rows, max(0, math.floor(chunk.rows - row + SAME_ROW))),
            delay=min(self.delay.rows(chunk.dt_s), chunk.rows),
        )
        before = self._chunk_of(self._before, epoch=epoch)
        earlier_ns = self._arrived_ns - observation_ns
        if self._before is None or before is None or earlier_ns <= 0:
            return plan
        return replace(
            plan,
            earlier=math.ceil(earlier_ns / (chunk.dt_s * 1e9) - SAME_ROW),
            before_id=before.chunk_id,
            before_row=self._before.row_at(observation_ns, dt_s=before.dt_s),
        )

    def _chunk_of(self, playback: Playback | None, *, epoch: int) -> ActionChunk | None:
        if playback is None or playback.session_id != self._session_id:
            return None
        chunk = self._sent.get(playback.chunk_id)
        return None if chunk is None or chunk.epoch != epoch else chunk

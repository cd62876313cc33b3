"""When the next inference should start, from what the streamer has really consumed.

Pure: no clock, no thread, no ROS. Times are seconds of any one steadily rising clock.

queue, rtc: the next chunk should arrive when ``n_action_steps`` rows of the last one were
    consumed, or when the actions run out if that is earlier; so inference starts that much earlier
    than it takes (95th percentile of the last ones, plus a margin).
ensemble: inference starts at a fixed rate.
Without a streamer both run by time alone.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

# States of StreamerProgress in which nothing is consumed and nothing would be taken.
_IDLE = ('inactive', 'paused')
# A chunk is taken within milliseconds; if no progress shows it after this long, it was lost or
# refused and another one is due.
ACKNOWLEDGE_S = 0.5
# A shorter wait is none: what is due at a time is due then, however that time was rounded.
RESOLUTION_S = 1e-6
_NO_EPOCH = -1


class LatencyTracker:
    """Percentiles of the last ``window`` inference times [s]."""

    def __init__(self, *, window: int = 100) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        self._values.append(seconds)

    def clear(self) -> None:
        self._values.clear()

    def percentile(self, percent: float) -> float | None:
        """The nearest-rank percentile, None before the first value."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        rank = math.ceil(percent / 100.0 * len(ordered))
        return ordered[max(0, rank - 1)]


@dataclass(frozen=True, kw_only=True)
class PacingConfig:
    """mode: queue, rtc or ensemble. dt_s: between rows of a chunk. See the policy parameters."""

    mode: str
    n_action_steps: int
    dt_s: float
    inference_rate_hz: float
    lead_margin_s: float
    streamer_timeout_s: float

    @property
    def period_s(self) -> float:
        """Between two inferences, where nothing is known of a streamer."""
        if self.mode == 'ensemble':
            return 1.0 / self.inference_rate_hz
        return self.n_action_steps * self.dt_s


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One StreamerProgress message, received at ``at_s`` of this side's clock.

    tick_ns: of the control tick it describes, on the streamer's clock; 0 where that is unknown.
    row: which row of the chunk is due at that tick, fractions included.
    """

    at_s: float
    session_id: int
    epoch: int
    chunk_id: int
    played_s: float
    remaining_s: float
    state: str
    tick_ns: int = 0
    row: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Due:
    """Wait ``wait_s`` before the next inference: 0 now, inf until something happens.

    reason: for the status, why it waits without end.
    """

    wait_s: float
    reason: str = ''


NOW = Due(wait_s=0.0)


@dataclass(kw_only=True)
class Pacer:
    """Follows one streamer through its progress messages; one thread at a time."""

    config: PacingConfig
    session_id: int
    latency: LatencyTracker = field(default_factory=LatencyTracker)
    _progress: Progress | None = None
    _heard_s: float = -math.inf
    _started_s: float | None = None
    _sent_s: float | None = None
    _sent_id: int = 0
    _sent_epoch: int = _NO_EPOCH
    _taken_id: int = 0
    _taken_played_s: float = 0.0
    _hurried: bool = False

    def hurry(self) -> None:
        """Let the next inference start at once, whatever is left of the actions that play."""
        self._hurried = True

    def restart(self) -> None:
        """Forget what was sent and what the streamer said: the next inference is due at once."""
        self._progress = None
        self._started_s = self._sent_s = None
        self._sent_id = self._taken_id = 0
        self._sent_epoch = _NO_EPOCH

    def started(self, now_s: float) -> None:
        """An inference starts."""
        self._started_s = now_s
        self._hurried = False

    def sent(self, now_s: float, *, chunk_id: int, epoch: int) -> None:
        """A chunk was published."""
        self._sent_s, self._sent_id, self._sent_epoch = now_s, chunk_id, epoch

    @property
    def tick_ns(self) -> int:
        """The newest control tick known of, 0 before the first."""
        return 0 if self._progress is None else self._progress.tick_ns

    def follow(self, progress: Progress) -> None:
        """Take in one progress message; what tells again of the same tick is no newer for that."""
        before, self._heard_s = self._progress, progress.at_s
        if before is not None and 0 < progress.tick_ns == before.tick_ns:
            progress = replace(progress, at_s=before.at_s)
        self._progress = progress
        if progress.session_id == self.session_id and progress.chunk_id != self._taken_id:
            self._taken_id = progress.chunk_id
            self._taken_played_s = progress.played_s

    def due(self, now_s: float) -> Due:
        """How long to wait before the next inference starts."""
        progress = self._progress
        silent = now_s - self._heard_s > self.config.streamer_timeout_s
        if progress is not None and not silent and progress.state in _IDLE:
            return Due(wait_s=self._timeout_in(now_s), reason=f'the streamer is {progress.state}')
        if self._hurried:
            return NOW
        if progress is None or silent:
            return self._by_time(now_s)
        if self.config.mode == 'ensemble':
            return self._by_time(now_s)
        if self._on_its_way(progress, now_s):
            assert self._sent_s is not None
            return _wait(self._sent_s + ACKNOWLEDGE_S - now_s)
        if progress.state != 'streaming' or not self._plays_ours(progress):
            return NOW
        return _wait(self._left_s(progress, now_s) - self._lead_s())

    def _by_time(self, now_s: float) -> Due:
        if self._started_s is None:
            return NOW
        return _wait(self._started_s + self.config.period_s - now_s)

    def _timeout_in(self, now_s: float) -> float:
        return self._heard_s + self.config.streamer_timeout_s - now_s

    def _on_its_way(self, progress: Progress, now_s: float) -> bool:
        """A chunk was sent that no progress shows yet and that may still be taken."""
        if self._sent_s is None or now_s - self._sent_s > ACKNOWLEDGE_S:
            return False
        return not self._plays_ours(progress) or progress.chunk_id < self._sent_id

    def _plays_ours(self, progress: Progress) -> bool:
        return progress.session_id == self.session_id and progress.epoch == self._sent_epoch

    def _left_s(self, progress: Progress, now_s: float) -> float:
        """Until n_action_steps are consumed, or nothing is left; it plays on since the message."""
        consumed_s = progress.played_s - self._taken_played_s
        planned_s = self.config.n_action_steps * self.config.dt_s - consumed_s
        return min(planned_s, progress.remaining_s) - (now_s - progress.at_s)

    def _lead_s(self) -> float:
        return (self.latency.percentile(95) or 0.0) + self.config.lead_margin_s


def _wait(seconds: float) -> Due:
    return NOW if seconds < RESOLUTION_S else Due(wait_s=seconds)

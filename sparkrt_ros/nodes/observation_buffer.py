"""Keeps the newest samples of every stream and takes consistent snapshots of them.

All times are int nanoseconds of the node's clock and are arguments: the buffer has no clock. One
thread puts samples, another takes snapshots.

A snapshot has one reference time: the newest time that every ``asof`` stream has reached, so that
a fast stream is read as it was when the slowest picture was taken. A fast stream that is not
``awaited`` has reached it already with the last sample before it, unless by its own rhythm one is
missing. Where no stream is ``asof`` it is the oldest of the newest samples, and the current time
where all streams are ``hold``.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sparkrt_ros.runtime.errors import ObservationError, StaleObservation

# Two threads read the clock independently, and a slewed system clock may step by milliseconds;
# a replayed bag or a restarted simulation goes back by seconds.
JUMP_NS = 100_000_000
# A message may be dated a little ahead of the node's clock: hosts are synchronised to
# milliseconds, and /clock arrives in steps.
AHEAD_NS = 500_000_000
# Over so many samples the rhythm of a stream is looked at.
_RHYTHM_SAMPLES = 9


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    """How samples of one stream are chosen; see ``StreamTiming`` of the robot contract.

    topic: for messages to the user. depth: samples kept; at least as many as arrive while the
    slowest ``asof`` stream is on its way. awaited: see the module; False for joint states, where
    waiting for the first sample after a picture would cost more than it could correct.
    """

    name: str
    topic: str
    max_age_s: float
    align: str = 'asof'
    depth: int = 16
    awaited: bool = True


@dataclass(kw_only=True, eq=False)
class Sample:
    """One message, when it was taken and arrived; ``used`` once a snapshot contained it."""

    payload: Any
    stamp_ns: int
    received_ns: int
    used: bool = False


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One consistent view: a sample of each stream.

    reference_ns: see the module. ages_s: of each sample at the time of the snapshot.
    skew_s: largest difference between the stamps, ``hold`` streams left out. epoch: of the buffer.
    """

    reference_ns: int
    samples: Mapping[str, Sample]
    ages_s: Mapping[str, float]
    skew_s: float
    epoch: int

    @property
    def received_ns(self) -> int:
        """When the last of the samples arrived."""
        return max(sample.received_ns for sample in self.samples.values())


@dataclass(frozen=True, kw_only=True)
class StreamCounters:
    """received: all messages. dropped: refused, or overwritten before a snapshot used them.

    age_s: of the newest sample; -1 where there is none.
    """

    received: int
    dropped: int
    age_s: float


@dataclass(kw_only=True)
class _Stream:
    """Samples in the order of their stamps; of two with one stamp the first to arrive counts."""

    spec: StreamSpec
    samples: list[Sample] = field(default_factory=list)
    received: int = 0
    dropped: int = 0

    def newest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def newest_at(self, reference_ns: int) -> Sample | None:
        index = bisect_right(self.samples, reference_ns, key=_stamp)
        return self.samples[index - 1] if index else None

    def reaches_ns(self) -> int:
        """Up to which time, by the longest of its last gaps, no sample of it is missing."""
        stamps = [sample.stamp_ns for sample in self.samples[-_RHYTHM_SAMPLES:]]
        gaps = [after - before for before, after in pairwise(stamps)]
        return stamps[-1] + max(gaps, default=0)

    def add(self, sample: Sample) -> None:
        insort_left(self.samples, sample, key=_stamp)
        if len(self.samples) > self.spec.depth:
            self._forget(self.samples.pop(0))

    def keep(self, wanted: Callable[[Sample], bool]) -> None:
        for sample in self.samples:
            if not wanted(sample):
                self._forget(sample)
        self.samples = [sample for sample in self.samples if wanted(sample)]

    def _forget(self, sample: Sample) -> None:
        self.dropped += not sample.used


def _stamp(sample: Sample) -> int:
    return sample.stamp_ns


class ObservationBuffer:
    """Latest-wins slots with a short history, for a fixed set of streams.

    on_jump: called with (before_ns, after_ns), outside the lock, when time went backwards;
    everything dated after the new time has been dropped and the epoch raised by then.
    """

    def __init__(
        self,
        streams: Sequence[StreamSpec],
        *,
        max_skew_s: float,
        on_jump: Callable[[int, int], None] | None = None,
    ) -> None:
        self._streams = {spec.name: _Stream(spec=spec) for spec in streams}
        self._lock = threading.Lock()
        self._on_jump = on_jump
        self._now_ns: int | None = None
        self._epoch = 0
        self._jumps = 0
        self.max_skew_s = max_skew_s

    @property
    def epoch(self) -> int:
        """Backward jumps of time and resets so far."""
        return self._epoch

    @property
    def jumps(self) -> int:
        """Backward jumps of time so far."""
        return self._jumps

    def put(self, name: str, payload: Any, *, stamp_ns: int, now_ns: int) -> bool:
        """Store one message of stream ``name`` that was taken at ``stamp_ns``.

        Samples may arrive out of order; the stamp decides which is newest. False, and counted as
        dropped, where the stamp lies ahead of the clock.
        """
        self.advance(now_ns)
        with self._lock:
            stream = self._streams[name]
            stream.received += 1
            if stamp_ns > now_ns + AHEAD_NS:
                stream.dropped += 1
                return False
            stream.add(Sample(payload=payload, stamp_ns=stamp_ns, received_ns=now_ns))
            return True

    def refuse(self, name: str) -> None:
        """Count one message of stream ``name`` that could not be used."""
        with self._lock:
            self._streams[name].received += 1
            self._streams[name].dropped += 1

    def advance(self, now_ns: int) -> None:
        """Tell the time; after a backward jump forget everything dated later than ``now_ns``.

        What is dated earlier stays: of the messages published after the jump some may have
        arrived before the clock did.
        """
        with self._lock:
            before_ns = self._now_ns
            jumped = before_ns is not None and now_ns < before_ns - JUMP_NS
            if jumped or before_ns is None or now_ns > before_ns:
                self._now_ns = now_ns
            if jumped:
                self._epoch += 1
                self._jumps += 1
                for stream in self._streams.values():
                    stream.keep(lambda sample: sample.stamp_ns <= now_ns + JUMP_NS)
        if jumped and self._on_jump is not None:
            assert before_ns is not None
            self._on_jump(before_ns, now_ns)

    def reset(self) -> None:
        """Forget all but ``hold`` streams, so that the next snapshot is of the time after now."""
        with self._lock:
            self._epoch += 1
            for stream in self._streams.values():
                if stream.spec.align != 'hold':
                    stream.keep(lambda _: False)

    def discard(self, name: str, sample: Sample) -> None:
        """Drop a sample that turned out to be unusable, so that the one before it serves."""
        with self._lock:
            stream = self._streams[name]
            if sample in stream.samples:
                stream.samples.remove(sample)
                stream.dropped += 1

    def snapshot(self, now_ns: int) -> Snapshot:
        """The newest consistent view.

        Raises StaleObservation naming topic, age and limit of every stream that is missing or too
        old, ObservationError where the stamps lie further apart than ``max_skew_s``.
        """
        self.advance(now_ns)
        with self._lock:
            self._refuse_stale(now_ns)
            reference_ns = self._reference(now_ns)
            chosen = {s.spec.name: self._choose(s, reference_ns) for s in self._streams.values()}
            skew_s = self._skew(chosen)
            for sample in chosen.values():
                sample.used = True
            ages_s = {name: _age_s(sample, now_ns) for name, sample in chosen.items()}
            return Snapshot(
                reference_ns=reference_ns,
                samples=chosen,
                ages_s=ages_s,
                skew_s=skew_s,
                epoch=self._epoch,
            )

    def newest_reference_ns(self, now_ns: int) -> int:
        """What the reference time of a snapshot would be, if it succeeds; cheap."""
        with self._lock:
            return self._reference(now_ns)

    def stale(self, now_ns: int) -> tuple[str, ...]:
        """Names of the streams that are missing or too old."""
        with self._lock:
            return tuple(n for n, s in self._streams.items() if _fault(s, now_ns) is not None)

    def counters(self, now_ns: int) -> dict[str, StreamCounters]:
        """Figures of every stream, in the order of the streams."""
        with self._lock:
            return {name: _counters(stream, now_ns) for name, stream in self._streams.items()}

    def _refuse_stale(self, now_ns: int) -> None:
        faults = [fault for s in self._streams.values() if (fault := _fault(s, now_ns))]
        if faults:
            raise StaleObservation(
                ', '.join(topic for topic, _, _ in faults),
                found=', '.join(found for _, found, _ in faults),
                expected=', '.join(expected for _, _, expected in faults),
            )

    def _reference(self, now_ns: int) -> int:
        for align in ('asof', 'latest'):
            streams = [s for s in self._streams.values() if s.spec.align == align and s.samples]
            awaited = [s for s in streams if s.spec.awaited] or streams
            if awaited:
                reference_ns = min(s.samples[-1].stamp_ns for s in awaited)
                late = [s.samples[-1].stamp_ns for s in streams if s.reaches_ns() < reference_ns]
                return min([reference_ns, *late])
        return now_ns

    def _choose(self, stream: _Stream, reference_ns: int) -> Sample:
        spec = stream.spec
        sample = stream.newest() if spec.align == 'latest' else stream.newest_at(reference_ns)
        if sample is None:
            raise self._too_slow(stream, reference_ns)
        gap_s = (reference_ns - sample.stamp_ns) / 1e9
        if spec.align == 'asof' and gap_s > spec.max_age_s:
            raise StaleObservation(
                spec.topic,
                found=f'a gap of {gap_s:.3f} s before the reference time',
                expected=f'at most {spec.max_age_s:g} s',
            )
        return sample

    def _too_slow(self, fast: _Stream, reference_ns: int) -> StaleObservation:
        """The slowest stream is so far behind that ``fast`` has nothing of that time."""
        slow = min(
            (s for s in self._streams.values() if s.spec.align != 'hold'),
            key=lambda s: s.samples[-1].stamp_ns,
        )
        ahead_s = (fast.samples[0].stamp_ns - reference_ns) / 1e9
        return StaleObservation(
            slow.spec.topic,
            found=f'its newest sample {ahead_s:.3f} s older than anything kept of '
            f'{fast.spec.topic}',
            expected='samples of the same time',
            remedy=f'wait for {slow.spec.topic}, or set its align to latest in the contract',
        )

    def _skew(self, chosen: Mapping[str, Sample]) -> float:
        dated = [
            (sample.stamp_ns, self._streams[name].spec.topic)
            for name, sample in chosen.items()
            if self._streams[name].spec.align != 'hold'
        ]
        if not dated:
            return 0.0
        oldest, newest = min(dated), max(dated)
        skew_s = (newest[0] - oldest[0]) / 1e9
        if skew_s > self.max_skew_s:
            raise ObservationError(
                f'{oldest[1]} and {newest[1]}',
                found=f'stamps {skew_s:.3f} s apart',
                expected=f'at most {self.max_skew_s:g} s',
                remedy='find out which driver lags, or raise max_skew_s',
            )
        return skew_s


def _fault(stream: _Stream, now_ns: int) -> tuple[str, str, str] | None:
    """(topic, found, expected) where the stream has no sample that may be used."""
    spec = stream.spec
    newest = stream.newest()
    limit = f'at most {spec.max_age_s:g} s'
    if newest is None:
        what = 'no usable message yet' if stream.received == stream.dropped else 'nothing newer'
        return spec.topic, what, limit
    age_s = _age_s(newest, now_ns)
    if spec.align != 'hold' and age_s > spec.max_age_s:
        return spec.topic, f'{age_s:.3f} s old', limit
    return None


def _age_s(sample: Sample, now_ns: int) -> float:
    return max(0, now_ns - sample.stamp_ns) / 1e9


def _counters(stream: _Stream, now_ns: int) -> StreamCounters:
    newest = stream.newest()
    return StreamCounters(
        received=stream.received,
        dropped=stream.dropped,
        age_s=-1.0 if newest is None else _age_s(newest, now_ns),
    )

"""What a demo run yields, free of ROS, and the figures drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The outcome of one attempt at the task. start_ns and end_ns are on the command clock."""

    seed: int
    success: bool
    duration_s: float
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A camera frame kept for the report: (H, W, 3) uint8 RGB."""

    camera: str
    stamp_ns: int
    image: npt.NDArray[np.uint8]


@dataclass(kw_only=True)
class DemoRecord:
    """Everything recorded while the demo ran; times in ns of the system clock.

    commands, positions: rows of (time, one value per joint), in ``joint_names`` order; a joint
    that a message did not carry is NaN. chunks: (arrival, observation stamp, inference seconds).
    latencies_s: observation stamp to first command from it, one per chunk.
    """

    joint_names: tuple[str, ...] = ()
    episodes: list[Episode] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    command_ns: list[int] = field(default_factory=list)
    commands: list[npt.NDArray[np.float64]] = field(default_factory=list)
    position_ns: list[int] = field(default_factory=list)
    positions: list[npt.NDArray[np.float64]] = field(default_factory=list)
    chunks: list[tuple[int, int, float]] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    control_rate_hz: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Percentiles of one quantity, in milliseconds; NaN when nothing was measured."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    count: int

    @classmethod
    def of_seconds(cls, values: npt.ArrayLike) -> Spread:
        array = np.asarray(values, dtype=np.float64) * 1e3
        if array.size == 0:
            return cls(p50_ms=float('nan'), p99_ms=float('nan'), max_ms=float('nan'), count=0)
        p50, p99 = np.percentile(array, [50, 99])
        return cls(
            p50_ms=float(p50), p99_ms=float(p99), max_ms=float(array.max()), count=array.size
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures a demo prints."""

    successes: int
    attempts: int
    period: Spread
    latency: Spread
    inference: Spread
    counters: dict[str, int]

    @property
    def success_rate(self) -> float:
        return self.successes / self.attempts if self.attempts else 0.0


def command_periods_s(record: DemoRecord) -> npt.NDArray[np.float64]:
    """Times between commands, within episodes only: between them the streamer is paused."""
    times = np.asarray(record.command_ns, dtype=np.int64)
    parts = [np.diff(times[(times >= e.start_ns) & (times <= e.end_ns)]) for e in record.episodes]
    joined = np.concatenate(parts) if parts else np.empty(0)
    return joined.astype(np.float64) * 1e-9


def figures(record: DemoRecord) -> Figures:
    return Figures(
        successes=sum(e.success for e in record.episodes),
        attempts=len(record.episodes),
        period=Spread.of_seconds(command_periods_s(record)),
        latency=Spread.of_seconds(record.latencies_s),
        inference=Spread.of_seconds([seconds for _, _, seconds in record.chunks]),
        counters=dict(record.counters),
    )

"""What goes into a StreamerCore and comes out of it. No ROS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparkrt_ros.nodes.guard_limits import Float64Array


class Outlet(Protocol):
    """Where commands go; (A,) SI in action order. Called under the core's lock, never blocking."""

    def prepare(self, command: Float64Array, *, now_ns: int) -> None:
        """Make the messages of a command that is due at ``now_ns``; nothing leaves yet."""

    def schedule(self, due_ns: int) -> None:
        """Send what was prepared last at ``due_ns`` of the monotonic clock, unless cancelled."""

    def cancel(self) -> bool:
        """Send nothing of what was scheduled; False if it has been sent. Settled on return."""

    def publish(self) -> None:
        """Send what was prepared last now, unless it has been sent."""

    def stop_velocities(self, command: Float64Array, *, now_ns: int) -> None:
        """Publish only what carries velocities, which are all 0 in ``command``."""


class MadeUpTimeOutlet:
    """An Outlet where nobody waits: what was prepared is sent when it is published."""

    def send(self, command: Float64Array, *, now_ns: int) -> None:
        """Take a command, (A,) SI, which is valid until this returns."""
        raise NotImplementedError

    def prepare(self, command: Float64Array, *, now_ns: int) -> None:
        """See Outlet."""
        self._prepared = command, now_ns

    def schedule(self, due_ns: int) -> None:
        """See Outlet."""

    def cancel(self) -> bool:
        """See Outlet."""
        return True

    def publish(self) -> None:
        """See Outlet."""
        command, now_ns = self._prepared
        self.send(command, now_ns=now_ns)


@dataclass(frozen=True, kw_only=True)
class Pose:
    """Where the robot is: (A,) SI in action order, NaN where nothing measures.

    fresh_until_ns: from then on it is too old to start from. number: counts the poses of one
    source, from 1.
    """

    values: Float64Array
    fresh_until_ns: int
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may change while it runs; see Timeline and Guard."""

    mode: str
    temporal_ensemble_coeff: float
    hold_s: float
    velocity_scale: float
    start_max_error: float
    interpolation: str = 'linear'
    blend_s: float = 0.0
    blend_in_s: float = 0.0


class Snapshot(NamedTuple):
    """How it stood after the last tick, for other threads.

    row: of the newest chunk, due at that tick, fractions included.
    """

    now_ns: int = 0
    state: str = 'inactive'
    cause: str = ''
    mode: str = 'queue'
    session_id: int = 0
    epoch: int = 0
    chunk_id: int = 0
    observation_ns: int | None = None
    played_ns: int = 0
    remaining_s: float = 0.0
    queue_depth: float = 0.0
    row: float = 0.0

"""What goes into a StreamerCore and comes out of it. No ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparkrt_ros.nodes.guard_limits import Float64Array


class Sent(NamedTuple):
    """When a command was due, and when it was sent; by the monotonic clock [ns]."""

    due_ns: int
    at_ns: int


class Outlet(Protocol):
    """Where commands go; (A,) SI in action order. Called under the core's lock, never blocking."""

    def prepare(self, command: Float64Array, *, now_ns: int) -> None:
        """Make the messages of a command that is due at ``now_ns``; nothing leaves yet."""

    def schedule(self, due_ns: int) -> None:
        """Send what was prepared last at ``due_ns`` of the monotonic clock, unless cancelled.

        After what was scheduled before.
        """

    def settle(self) -> Sequence[Sent]:
        """Send all that is due; what was sent of what was scheduled, since the last time."""

    def cancel(self) -> Sequence[Sent]:
        """Send nothing more of what was scheduled; what was sent, since :meth:`settle`.

        Settled on return.
        """

    def publish(self) -> None:
        """Send what was prepared last now; it was not scheduled, and nothing else is."""

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
        """Nobody waits for a moment of real time."""
        raise NotImplementedError

    def settle(self) -> Sequence[Sent]:
        """See Outlet."""
        return ()

    def cancel(self) -> Sequence[Sent]:
        """See Outlet."""
        return ()

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

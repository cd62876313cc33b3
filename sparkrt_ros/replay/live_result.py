"""What a live replay found, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DroppedMessage:
    """A message of the bag that did not enter a node. stamp_ns: of its header, else of the log."""

    topic: str
    stamp_ns: int
    node: str

    def __str__(self) -> str:
        return f'dropped frame {self.topic} {seconds(self.stamp_ns)} ({self.node})'


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something live that is not, byte for byte, what it is offline.

    kind: ``chunk``, ``command`` or ``input``; output: of a command. index: of the live one.
    is_heard: False for what is missing live. cause: why, in words; empty where no cause was
    found. lacked_ns: stamps of samples used offline alone.
    """

    kind: str
    index: int
    time_ns: int
    text: str
    cause: str = ''
    output: str = ''
    is_heard: bool = True
    lacked_ns: tuple[int, ...] = ()

    def __str__(self) -> str:
        why = self.cause or 'NO CAUSE FOUND'
        return f'{self.kind} {self.index} at {seconds(self.time_ns)}: {self.text}: {why}'


@dataclass(frozen=True, kw_only=True)
class LiveResult:
    """One bag, played into the running nodes and offline.

    pacing: how it was played. receipt: what served, as in ``Policy.receipt``.
    digest: SHA-256 of all chunks and commands heard. chunks, commands: how many that were;
    identical: those of them that are the same offline, byte for byte. differences: all the
    others, and what is missing.
    """

    bag: str
    robot: str
    pacing: str
    receipt: Mapping[str, Any]
    digest: str
    chunks: int
    chunks_identical: int
    commands: int
    commands_identical: int
    differences: tuple[Difference, ...] = ()
    dropped: tuple[DroppedMessage, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Differences without a cause."""
        return tuple(item for item in self.differences if not item.cause)

    @property
    def band(self) -> str:
        """``pass``: all identical. ``warn``: every difference has a named cause. ``fail``."""
        if self.unexplained or not self.chunks:
            return 'fail'
        return 'warn' if self.differences or self.dropped else 'pass'

    def lines(self, *, most: int = 20) -> list[str]:
        """For people; at most ``most`` lines of each kind."""
        found = [
            f'live ({self.pacing}): {self.band}',
            f'chunks: {self.chunks_identical} of {self.chunks} identical to the offline run',
            f'commands: {self.commands_identical} of {self.commands} identical',
        ]
        for items in (self.dropped, self.differences, self.warnings):
            found += [str(item) for item in items[:most]]
            if len(items) > most:
                found.append(f'... and {len(items) - most} more')
        return found

    def to_dict(self) -> dict[str, Any]:
        """For a receipt in JSON."""
        return {**asdict(self), 'band': self.band}


def seconds(time_ns: int) -> str:
    """``12.345000000``: seconds of a time, every digit of it."""
    return f'{time_ns // 1_000_000_000}.{time_ns % 1_000_000_000:09d}'

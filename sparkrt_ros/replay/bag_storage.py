"""What the two storages have in common: channels, entries in order of time, data on demand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# (log time [ns], channel id, where the data are: known to the reader it came from)
Entry = tuple[int, int, int]
# A time beyond this fits no signed 64-bit integer: damage, not a date.
MAX_TIME_NS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One topic as one publisher wrote it.

    type: ROS type name, empty where the file does not say. encoding: of the data, ``cdr`` for
    ROS 2. schema_encoding and definition: how the type is described, empty where it is not.
    """

    id: int
    topic: str
    type: str
    encoding: str
    schema_encoding: str
    definition: str
    count: int


class StorageReader(Protocol):
    """One pass over one file; has its own handle, so that passes may run side by side."""

    def entries(self, channels: Collection[int]) -> Iterator[Entry]:
        """Messages of ``channels`` by log time; equal times in file order."""

    def raw(self, locator: int) -> bytes | None:
        """The data of one entry; None, with a note, where they are damaged."""

    def close(self) -> None:
        """Give the handle back."""


class StorageFile(Protocol):
    """One file of a bag. Times are log times in ns; 0 where there is no message."""

    @property
    def channels(self) -> Mapping[int, Channel]:
        """By id."""

    @property
    def start_ns(self) -> int: ...

    @property
    def end_ns(self) -> int: ...

    @property
    def count(self) -> int: ...

    def reader(self) -> StorageReader:
        """Begin a pass."""


def merge_by_time(
    sources: Sequence[tuple[int, Callable[[], Iterator[Entry]]]],
) -> Iterator[tuple[int, Entry]]:
    """Merge ``(start_ns, open)`` pairs into (index of the source, entry), by log time.

    Equal times come in order of the sources. A source is opened only when its start is due, so
    that files and chunks that follow one another in time are open one after the other.
    """
    waiting = sorted(range(len(sources)), key=lambda index: (sources[index][0], index))
    waiting.reverse()
    heads: list[tuple[int, int, Entry, Iterator[Entry]]] = []
    while waiting or heads:
        while waiting and (not heads or sources[waiting[-1]][0] <= heads[0][0]):
            index = waiting.pop()
            entries = sources[index][1]()
            entry = next(entries, None)
            if entry is not None:
                heapq.heappush(heads, (entry[0], index, entry, entries))
        if not heads:
            continue
        _, index, entry, entries = heads[0]
        yield index, entry
        following = next(entries, None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following[0], index, following, entries))

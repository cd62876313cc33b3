"""The rows of a SQLite bag that can still be read when its file is cut short or damaged.

SQLite itself gives up at the first bad page, or reads what lies behind the end of the file as
zeros. So the table's tree is walked here, and only rows count whose pages are all there. The form
of the file is described in https://www.sqlite.org/fileformat.html.
"""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

_INTERIOR, _LEAF = 0x05, 0x0D
# Bytes of an integer by its serial type; 8 and 9 stand for the numbers 0 and 1.
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Messages by log time, equal times by row; 24 bytes each. whole: none is known to be lost."""

    whole: bool
    times_ns: array[int]
    topics: array[int]
    ids: array[int]

    def after(self, log_ns: int, row: int) -> Iterator[tuple[int, int, int]]:
        """(log time, topic, row) of the messages behind the given one."""
        start = bisect_right(
            range(len(self.ids)), (log_ns, row), key=lambda i: (self.times_ns[i], self.ids[i])
        )
        for i in range(start, len(self.ids)):
            yield self.times_ns[i], self.topics[i], self.ids[i]


@dataclass(frozen=True, kw_only=True)
class _Pages:
    """The geometry of a file. usable: bytes of a page that hold content."""

    size: int
    usable: int
    declared: int
    present: int

    @classmethod
    def of(cls, file: BinaryIO) -> _Pages:
        head = file.read(100)
        length = file.seek(0, 2)
        size = int.from_bytes(head[16:18], 'big')
        size = 65536 if size == 1 else max(size, 512)
        present = length // size
        # The count in the head is meant only while it was written with the change counter.
        counted = len(head) == 100 and head[24:28] == head[92:96]
        declared = int.from_bytes(head[28:32], 'big') if counted else present
        reserved = head[20] if len(head) > 20 else 0
        return cls(size=size, usable=size - reserved, declared=declared, present=present)


def cut_short(path: Path) -> bool:
    """Whether the file has fewer pages than its head says."""
    with path.open('rb') as file:
        pages = _Pages.of(file)
    return pages.present < pages.declared


def recover_rows(path: Path, database: sqlite3.Connection) -> Rows:
    """Every message whose pages are all in the file."""
    times, topics, ids = array('q'), array('q'), array('q')
    root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'")
    columns = [row[1] for row in database.execute('PRAGMA table_info(messages)')]
    with path.open('rb') as file:
        walk = _Walk(file, columns.index('topic_id'), columns.index('timestamp'))
        for row, topic, log_ns in walk.rows(root.fetchone()[0]):
            times.append(log_ns)
            topics.append(topic)
            ids.append(row)
    order = np.lexsort((ids, times))
    return Rows(
        whole=walk.whole,
        times_ns=array('q', np.asarray(times)[order]),
        topics=array('q', np.asarray(topics)[order]),
        ids=array('q', np.asarray(ids)[order]),
    )


class _Walk:
    """Goes through the tree of one table. topic, time: the columns that hold them."""

    def __init__(self, file: BinaryIO, topic: int, time: int) -> None:
        self._file = file
        self._topic = topic
        self._time = time
        self._pages = _Pages.of(file)
        self.whole = True

    def rows(self, root: int) -> Iterator[tuple[int, int, int]]:
        """(row, topic, log time) of the rows that are whole, in the order of the table."""
        waiting, seen = [root], set()
        while waiting:
            number = waiting.pop()
            page = self._page(number)
            if number in seen or not page:
                self.whole = False
                continue
            seen.add(number)
            if page[0] == _INTERIOR:
                children = [
                    int.from_bytes(page[cell : cell + 4], 'big') for cell in _cells(page, 12)
                ]
                waiting += [int.from_bytes(page[8:12], 'big'), *reversed(children)]
            elif page[0] == _LEAF:
                for cell in _cells(page, 8):
                    row = self._row(page, cell)
                    if row is None:
                        self.whole = False
                    else:
                        yield row
            else:
                self.whole = False

    def _row(self, page: bytes, cell: int) -> tuple[int, int, int] | None:
        """One row; None where it is damaged or part of it is missing."""
        try:
            size, cell = _varint(page, cell)
            row, cell = _varint(page, cell)
            local = self._local(size)
            if local < size:
                chain = int.from_bytes(page[cell + local : cell + local + 4], 'big')
                if not self._whole(chain, size - local):
                    return None
            topic, log_ns = _integers(page[cell : cell + local], self._topic, self._time)
        except (IndexError, KeyError):
            return None
        return (row, topic, log_ns) if row > 0 and log_ns >= 0 else None

    def _local(self, size: int) -> int:
        """Bytes of a row's content that lie in the leaf itself."""
        usable = self._pages.usable
        if size <= usable - 35:
            return size
        least = (usable - 12) * 32 // 255 - 23
        wanted = least + (size - least) % (usable - 4)
        return wanted if wanted <= usable - 35 else least

    def _whole(self, number: int, size: int) -> bool:
        """Whether a chain of overflow pages with ``size`` bytes is all there."""
        while size > 0:
            if not 0 < number <= self._pages.present:
                return False
            self._file.seek((number - 1) * self._pages.size)
            number = int.from_bytes(self._file.read(4), 'big')
            size -= self._pages.usable - 4
        return True

    def _page(self, number: int) -> bytes:
        if not 1 < number <= self._pages.present:
            return b''
        self._file.seek((number - 1) * self._pages.size)
        return self._file.read(self._pages.size)


def _cells(page: bytes, start: int) -> list[int]:
    """Where the cells of a page begin."""
    count = int.from_bytes(page[3:5], 'big')
    pointers = page[start : start + 2 * count]
    return [int.from_bytes(pointers[i : i + 2], 'big') for i in range(0, len(pointers), 2)]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of up to nine bytes, and where it ends."""
    value = 0
    for index in range(9):
        byte = data[position + index]
        if index == 8:
            return (value << 8) | byte, position + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, position + index + 1
    raise IndexError


def _integers(record: bytes, first: int, second: int) -> tuple[int, int]:
    """Two integer columns of a record."""
    stop, position = _varint(record, 0)
    kinds = []
    while position < stop:
        kind, position = _varint(record, position)
        kinds.append(kind)
    values: dict[int, int] = {}
    position = stop
    for column in range(max(first, second) + 1):
        kind = kinds[column]
        if kind == 0:  # NULL: the row's own number
            continue
        size = _INTEGER_BYTES[kind]
        value = int.from_bytes(record[position : position + size], 'big', signed=True)
        values[column] = kind - 8 if kind >= 8 else value
        position += size
    return values[first], values[second]

"""What an MCAP file holds and where, learned without keeping any of it."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from sparkrt_ros.replay.bag_compression import DamagedData, decompress
from sparkrt_ros.replay.bag_errors import Notes
from sparkrt_ros.replay.bag_files import MCAP_MAGIC
from sparkrt_ros.replay.bag_mcap_records import (
    CHANNEL,
    CHUNK,
    DATA_END,
    FOOTER,
    MESSAGE,
    MESSAGE_HEAD,
    PREFIX,
    SCHEMA,
    Block,
    ChannelRecord,
    DamagedRecord,
    Record,
    Schema,
    Summary,
    read_channel,
    read_chunk,
    read_exactly,
    read_schema,
    read_summary,
    walk,
)
from sparkrt_ros.replay.bag_storage import MAX_TIME_NS

# Messages outside of chunks are read in runs of about this size.
_RUN_BYTES = 1 << 20
# Places within a block are kept in 32 bits; writers make chunks of about a megabyte.
_MOST_BLOCK_BYTES = 2**32 - 1


@dataclass(kw_only=True)
class Layout:
    """Blocks in file order, and what is known of channels. counts: messages by channel id."""

    blocks: list[Block] = field(default_factory=list)
    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, ChannelRecord] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    start_ns: int = 0
    end_ns: int = 0

    def define(self, op: int, data: bytes, note: Callable[[str], None]) -> None:
        """Take a schema or channel record; one that cannot be read is only noted."""
        try:
            if op == SCHEMA:
                key, schema = read_schema(data)
                self.schemas[key] = schema
            elif op == CHANNEL:
                key, channel = read_channel(data)
                self.channels[key] = channel
        except DamagedRecord as error:
            note(f'a description of a topic cannot be read: {error}')


@dataclass(kw_only=True)
class BlockIndex:
    """Messages of a block by log time, equal times in file order.

    offsets: of a message record's content within the block. definitions: op and range of the
    schemas and channels. damage: why the rest of the block cannot be read, if so.
    """

    times_ns: array[int] = field(default_factory=lambda: array('q'))
    channels: array[int] = field(default_factory=lambda: array('H'))
    offsets: array[int] = field(default_factory=lambda: array('I'))
    definitions: list[tuple[int, int, int]] = field(default_factory=list)
    damage: str = ''

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """(log time, channel, offset) of each message."""
        return zip(self.times_ns, self.channels, self.offsets, strict=True)

    def sort(self) -> None:
        """Bring a block that was not written in order into order."""
        times = self.times_ns
        if all(times[i] <= times[i + 1] for i in range(len(times) - 1)):
            return
        order = sorted(range(len(times)), key=times.__getitem__)
        self.times_ns = array('q', (times[i] for i in order))
        self.channels = array('H', (self.channels[i] for i in order))
        self.offsets = array('I', (self.offsets[i] for i in order))


def read_layout(path: Path, notes: Notes) -> Layout:
    """Walk the file; note what is missing or damaged."""
    with path.open('rb') as file:
        size = file.seek(0, os.SEEK_END)
        try:
            summary = read_summary(file, size)
        except DamagedRecord as error:
            notes.add(path.name, f'{error}; read without it')
            summary = None
        layout = Layout()
        whole = _walk_blocks(file, size, layout, path.name, summary, notes)
        if whole and summary is not None and summary.usable:
            _trust(layout, summary)
        else:
            _scan(file, layout, path.name, notes)
    return layout


def load_block(file: BinaryIO, block: Block) -> bytes:
    """The block, unpacked. Raises DamagedData, DamagedRecord."""
    if block.size > _MOST_BLOCK_BYTES:
        raise DamagedData(f'a chunk that claims {block.size} bytes')
    data = decompress(
        read_exactly(file, block.offset, block.stored), block.compression, block.size
    )
    if block.crc and crc32(data) != block.crc:
        raise DamagedData('wrong checksum')
    return data


def index_block(data: bytes) -> BlockIndex:
    """Find the messages of an unpacked block, up to the first record that makes no sense."""
    index = BlockIndex()
    position, stop = 0, len(data)
    while position < stop:
        content = position + PREFIX.size
        if content > stop:
            index.damage = 'a record is cut short'
            break
        op, length = PREFIX.unpack_from(data, position)
        position = content + length
        if op == 0 or position > stop or (op == MESSAGE and length < MESSAGE_HEAD.size):
            index.damage = 'a record makes no sense'
            break
        if op == MESSAGE:
            channel, _, log_ns, _ = MESSAGE_HEAD.unpack_from(data, content)
            if log_ns > MAX_TIME_NS:
                index.damage = 'a message has an impossible time'
                continue
            index.times_ns.append(log_ns)
            index.channels.append(channel)
            index.offsets.append(content)
        elif op in (SCHEMA, CHANNEL):
            index.definitions.append((op, content, position))
    index.sort()
    return index


def _walk_blocks(
    file: BinaryIO, size: int, layout: Layout, name: str, summary: Summary | None, notes: Notes
) -> bool:
    """Collect blocks and definitions; whether the file is whole.

    Behind damage the walk goes on at the next chunk that the summary knows.
    """
    position, whole = len(MCAP_MAGIC), True
    run = _Run(layout.blocks)
    note = partial(notes.add, name)
    while True:
        try:
            for record in walk(file, position, size):
                if record.op in (DATA_END, FOOTER):
                    run.end()
                    return whole
                position = record.start
                _take(file, record, layout, run, note)
            run.end()
            notes.add(name, 'was not closed by its recorder; read to its end', lost=True)
            return False
        except DamagedRecord as error:
            run.end()
            whole = False
            notes.add(name, f'is damaged or cut: {error}', lost=True)
            offsets = summary.chunk_offsets if summary else ()
            following = next((offset for offset in offsets if offset > position), None)
            if following is None:
                return False
            position = following


def _take(
    file: BinaryIO, record: Record, layout: Layout, run: _Run, note: Callable[[str], None]
) -> None:
    if record.op == MESSAGE:
        if record.end - record.content < MESSAGE_HEAD.size:
            raise DamagedRecord(f'a message record of impossible length at byte {record.start}')
        head = read_exactly(file, record.content, MESSAGE_HEAD.size)
        run.add(record, MESSAGE_HEAD.unpack(head)[2])
        return
    run.end()
    if record.op == CHUNK:
        layout.blocks.append(read_chunk(file, record))
    elif record.op in (SCHEMA, CHANNEL):
        content = read_exactly(file, record.content, record.end - record.content)
        layout.define(record.op, content, note)


class _Run:
    """Gathers messages outside of chunks that lie side by side."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._start = self._stop = 0
        self._start_ns = self._end_ns = 0

    def add(self, record: Record, log_ns: int) -> None:
        if self._start == self._stop:
            self._start = record.start
            self._start_ns = self._end_ns = log_ns
        self._start_ns = min(self._start_ns, log_ns)
        self._end_ns = max(self._end_ns, log_ns)
        self._stop = record.end
        if self._stop - self._start >= _RUN_BYTES:
            self.end()

    def end(self) -> None:
        if self._stop > self._start:
            size = self._stop - self._start
            self._blocks.append(
                Block(
                    offset=self._start,
                    stored=size,
                    size=size,
                    compression='',
                    crc=0,
                    start_ns=self._start_ns,
                    end_ns=self._end_ns,
                )
            )
        self._start = self._stop = 0


def _trust(layout: Layout, summary: Summary) -> None:
    layout.schemas.update(summary.schemas)
    layout.channels.update(summary.channels)
    layout.counts.update(summary.counts)
    if layout.counts.total():
        layout.start_ns, layout.end_ns = summary.start_ns, summary.end_ns


def _scan(file: BinaryIO, layout: Layout, name: str, notes: Notes) -> None:
    """Unpack every block once: drop the damaged ones, count, and take the true times."""
    blocks, layout.blocks = layout.blocks, []
    for block in blocks:
        try:
            data = load_block(file, block)
        except (DamagedData, DamagedRecord) as error:
            note_damage(name, block, str(error), notes)
            continue
        index = index_block(data)
        if index.damage:
            note_damage(name, block, index.damage, notes)
        for op, start, stop in index.definitions:
            layout.define(op, data[start:stop], partial(notes.add, name))
        if index.times_ns:
            times = index.times_ns
            layout.blocks.append(replace(block, start_ns=times[0], end_ns=times[-1]))
            layout.counts.update(index.channels)
    if layout.blocks:
        layout.start_ns = min(block.start_ns for block in layout.blocks)
        layout.end_ns = max(block.end_ns for block in layout.blocks)
    for key in sorted(layout.counts.keys() - layout.channels.keys()):
        text = f'has {layout.counts[key]} messages of channel {key}, which it does not describe'
        notes.add(name, text, lost=True)


def note_damage(name: str, block: Block, reason: str, notes: Notes) -> None:
    """Say that messages of a block are lost."""
    notes.add(name, f'messages lost: {reason}', place=f'chunk at byte {block.offset}', lost=True)

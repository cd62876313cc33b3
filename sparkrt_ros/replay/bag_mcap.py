"""MCAP files: with or without index, cut short, damaged in the middle, written in any order.

The records of the file are walked once, without unpacking chunks. Where the summary describes
every message nothing more is needed; else the chunks are unpacked once, one at a time, to learn
what is in them. Reading merges chunks by time and keeps few of them in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from sparkrt_ros.replay.bag_compression import DamagedData, unpack_message
from sparkrt_ros.replay.bag_errors import Notes
from sparkrt_ros.replay.bag_mcap_ahead import BlockLoader
from sparkrt_ros.replay.bag_mcap_layout import (
    Layout,
    index_block,
    note_damage,
    read_layout,
)
from sparkrt_ros.replay.bag_mcap_records import (
    MESSAGE_HEAD,
    Block,
    DamagedRecord,
    Schema,
    read_exactly,
)
from sparkrt_ros.replay.bag_storage import Channel, Entry, merge_by_time

# Unpacked chunks kept for messages that are still to come. A recorder's chunks overlap by one or
# two; a file written in no order at all is read correctly, but its chunks are unpacked again.
CACHE_BYTES = 64 << 20
_OFFSET_BITS = 32
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class McapFile:
    """One MCAP file. See :class:`~sparkrt_ros.replay.bag_storage.StorageFile`."""

    def __init__(self, path: Path, notes: Notes) -> None:
        self.path = path
        self._notes = notes
        layout = read_layout(path, notes)
        self._blocks = tuple(layout.blocks)
        self.channels = _channels(layout)
        self.start_ns, self.end_ns = layout.start_ns, layout.end_ns
        self.count = sum(channel.count for channel in self.channels.values())

    def reader(self) -> McapReader:
        return McapReader(self.path, self._blocks, self._notes)


class McapReader:
    """One pass over the messages; a locator is the block's number and the place within it."""

    def __init__(self, path: Path, blocks: tuple[Block, ...], notes: Notes) -> None:
        self._file = path.open('rb')
        self._name = path.name
        self._blocks = blocks
        self._notes = notes
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached_bytes = 0
        by_time = sorted(range(len(blocks)), key=lambda number: blocks[number].start_ns)
        self._loader = BlockLoader(path, blocks, by_time)

    def entries(self, channels: Collection[int]) -> Iterator[Entry]:
        wanted = frozenset(channels)
        sources = [
            (block.start_ns, partial(self._block_entries, number, wanted))
            for number, block in enumerate(self._blocks)
        ]
        return (entry for _, entry in merge_by_time(sources))

    def raw(self, locator: int) -> bytes | None:
        number, offset = locator >> _OFFSET_BITS, locator & _OFFSET_MASK
        block = self._blocks[number]
        try:
            if number not in self._cache and block.compression == '':
                return unpack_message(self._from_file(block.offset + offset))
            data = self._data(number)
            length = int.from_bytes(data[offset - 8 : offset], 'little')
            return unpack_message(data[offset + MESSAGE_HEAD.size : offset + length])
        except (DamagedData, DamagedRecord) as error:
            note_damage(self._name, block, str(error), self._notes)
            return None

    def close(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0
        self._loader.close()
        self._file.close()

    def _block_entries(self, number: int, wanted: frozenset[int]) -> Iterator[Entry]:
        block = self._blocks[number]
        try:
            index = index_block(self._data(number))
        except (DamagedData, DamagedRecord) as error:
            note_damage(self._name, block, str(error), self._notes)
            return
        if index.damage:
            note_damage(self._name, block, index.damage, self._notes)
        if index.times_ns and index.times_ns[0] < block.start_ns:
            text = 'messages come too late, since a chunk is wrong about its times'
            self._notes.add(self._name, text, place=f'chunk at byte {block.offset}')
        base = number << _OFFSET_BITS
        for log_ns, channel, offset in index.rows():
            if channel in wanted:
                yield log_ns, channel, base | offset

    def _data(self, number: int) -> bytes:
        data = self._cache.get(number)
        if data is not None:
            self._cache.move_to_end(number)
            return data
        data = self._loader.load(number)
        self._cache[number] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
        return data

    def _from_file(self, offset: int) -> bytes:
        length = int.from_bytes(read_exactly(self._file, offset - 8, 8), 'little')
        size = length - MESSAGE_HEAD.size
        return read_exactly(self._file, offset + MESSAGE_HEAD.size, size)


def _channels(layout: Layout) -> dict[int, Channel]:
    unknown = Schema(name='', encoding='', text='')
    return {
        key: Channel(
            id=key,
            topic=channel.topic,
            type=(schema := layout.schemas.get(channel.schema, unknown)).name,
            encoding=channel.encoding,
            schema_encoding=schema.encoding,
            definition=schema.text,
            count=layout.counts[key],
        )
        for key, channel in sorted(layout.channels.items())
    }

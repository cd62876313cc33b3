"""The records of an MCAP file, from https://mcap.dev/spec: little-endian, length-prefixed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from zlib import crc32

from sparkrt_ros.replay.bag_files import MCAP_MAGIC

HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK = 1, 2, 3, 4, 5, 6
MESSAGE_INDEX, CHUNK_INDEX, STATISTICS, DATA_END = 0x07, 0x08, 0x0B, 0x0F
PREFIX = struct.Struct('<BQ')
MESSAGE_HEAD = struct.Struct('<HIQQ')
_CHUNK_HEAD = struct.Struct('<QQQII')
_CHUNK_INDEX_HEAD = struct.Struct('<QQQQ')
_STATISTICS_HEAD = struct.Struct('<QHIIIIQQI')
_FOOTER = struct.Struct('<QQI')


class DamagedRecord(Exception):
    """A record whose bytes contradict the format; the text says how."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """start: offset of the record. content, end: the range of what follows its prefix."""

    op: int
    start: int
    content: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Schema:
    name: str
    encoding: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ChannelRecord:
    schema: int
    topic: str
    encoding: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """Messages that are read at once: a chunk, or a run of messages outside of chunks.

    offset, stored: the range in the file. size: in bytes, uncompressed. crc: 0 for none.
    """

    offset: int
    stored: int
    size: int
    compression: str
    crc: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary section. counts: messages by channel; None without a statistics record."""

    schemas: dict[int, Schema]
    channels: dict[int, ChannelRecord]
    chunk_offsets: tuple[int, ...]
    counts: dict[int, int] | None
    start_ns: int
    end_ns: int

    @property
    def usable(self) -> bool:
        """Whether it describes every message, so that no chunk need be unpacked to know."""
        counted = [key for key, count in (self.counts or {}).items() if count]
        known = (self.channels.get(key) for key in counted)
        return self.counts is not None and all(
            channel is not None and (channel.schema == 0 or channel.schema in self.schemas)
            for channel in known
        )


def walk(file: BinaryIO, start: int, stop: int) -> Iterator[Record]:
    """Records from ``start`` on, without their content. Raises DamagedRecord where they break."""
    position = start
    while position < stop:
        file.seek(position)
        prefix = file.read(PREFIX.size)
        if len(prefix) < PREFIX.size:
            raise DamagedRecord(f'cut short at byte {position}')
        op, length = PREFIX.unpack(prefix)
        content = position + PREFIX.size
        if op == 0:
            raise DamagedRecord(f'no record at byte {position}')
        if content + length > stop:
            raise DamagedRecord(f'a record at byte {position} goes beyond the end of the file')
        yield Record(op=op, start=position, content=content, end=content + length)
        position = content + length


def read_exactly(file: BinaryIO, offset: int, size: int) -> bytes:
    """``size`` bytes at ``offset``. Raises DamagedRecord where there are fewer."""
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise DamagedRecord(f'cut short at byte {offset + len(data)}')
    return data


def read_schema(data: bytes) -> tuple[int, Schema]:
    """Id and schema of a schema record's content."""
    fields = Fields(data)
    key = fields.integer(2)
    return key, Schema(name=fields.text(), encoding=fields.text(), text=fields.text())


def read_channel(data: bytes) -> tuple[int, ChannelRecord]:
    """Id and channel of a channel record's content; its metadata (QoS) are of no use here."""
    fields = Fields(data)
    key = fields.integer(2)
    channel = ChannelRecord(schema=fields.integer(2), topic=fields.text(), encoding=fields.text())
    return key, channel


def read_chunk(file: BinaryIO, record: Record) -> Block:
    """Where the messages of a chunk are. Raises DamagedRecord where lengths contradict."""
    data = read_exactly(file, record.content, min(record.end - record.content, 256))
    fields = Fields(data)
    start_ns, end_ns, size, crc = (fields.integer(n) for n in (8, 8, 8, 4))
    compression = fields.text()
    stored = fields.integer(8)
    offset = record.content + fields.position
    if offset + stored != record.end:
        raise DamagedRecord(f'a chunk at byte {record.start} whose lengths contradict')
    return Block(
        offset=offset,
        stored=stored,
        size=size,
        compression=compression,
        crc=crc,
        start_ns=start_ns,
        end_ns=end_ns,
    )


def read_summary(file: BinaryIO, size: int) -> Summary | None:
    """The summary of a file that was closed properly; None where there is none.

    Raises DamagedRecord where it is damaged.
    """
    tail_size = PREFIX.size + _FOOTER.size + len(MCAP_MAGIC)
    if size < len(MCAP_MAGIC) + tail_size:
        return None
    footer = size - tail_size
    tail = read_exactly(file, footer, tail_size)
    if not tail.endswith(MCAP_MAGIC) or PREFIX.unpack_from(tail) != (FOOTER, _FOOTER.size):
        return None
    start, _, crc = _FOOTER.unpack_from(tail, PREFIX.size)
    if start == 0:
        return None
    if not len(MCAP_MAGIC) <= start <= footer:
        raise DamagedRecord('the footer points outside of the file')
    if crc and crc32(read_exactly(file, start, footer + PREFIX.size + 16 - start)) != crc:
        raise DamagedRecord('the checksum of the summary is wrong')
    return _parse_summary(file, start, footer)


def _parse_summary(file: BinaryIO, start: int, stop: int) -> Summary:
    schemas, channels = {}, {}
    chunks: list[int] = []
    counts: dict[int, int] | None = None
    start_ns = end_ns = 0
    for record in walk(file, start, stop):
        data = read_exactly(file, record.content, record.end - record.content)
        try:
            if record.op == SCHEMA:
                key, schema = read_schema(data)
                schemas[key] = schema
            elif record.op == CHANNEL:
                key, channel = read_channel(data)
                channels[key] = channel
            elif record.op == CHUNK_INDEX:
                chunks.append(_CHUNK_INDEX_HEAD.unpack_from(data)[2])
            elif record.op == STATISTICS:
                total, *_, start_ns, end_ns, length = _STATISTICS_HEAD.unpack_from(data)
                found = dict(struct.iter_unpack('<HQ', data[_STATISTICS_HEAD.size :][:length]))
                counts = found if sum(found.values()) == total else None
        except (struct.error, UnicodeDecodeError) as error:
            raise DamagedRecord(f'the summary is damaged: {error}') from error
    return Summary(
        schemas=schemas,
        channels=channels,
        chunk_offsets=tuple(sorted(chunks)),
        counts=counts,
        start_ns=start_ns,
        end_ns=end_ns,
    )


class Fields:
    """Reads the fields of a record's content one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), 'little')

    def text(self) -> str:
        try:
            return self._take(self.integer(4)).decode()
        except UnicodeDecodeError as error:
            raise DamagedRecord(f'text that is not UTF-8: {error}') from error

    def _take(self, size: int) -> bytes:
        data = self._data[self.position : self.position + size]
        if len(data) < size:
            raise DamagedRecord('fields that go beyond their record')
        self.position += size
        return data

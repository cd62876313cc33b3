"""Write MCAP files as rosbag2 does, with the choices that a recorder has."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from types import TracebackType
from zlib import crc32

from sparkrt_ros.replay.bag_compression import COMPRESSORS
from sparkrt_ros.replay.bag_files import MCAP_MAGIC
from sparkrt_ros.replay.bag_mcap_records import (
    CHANNEL,
    CHUNK,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    HEADER,
    MESSAGE,
    MESSAGE_HEAD,
    MESSAGE_INDEX,
    PREFIX,
    SCHEMA,
    STATISTICS,
)

CHUNK_BYTES = 1 << 20
NEVER_NS = 2**64


class McapWriter:
    """Writes one file; a context manager. Messages may come in any order of time.

    compression: of chunks, ``zstd``, ``lz4`` or '' for none; level: of zstd. chunk_bytes: a chunk
    ends when it has as many; None: no chunks. index: False leaves out message indexes and the
    summary, as recorders that stream do.
    """

    def __init__(
        self,
        path: Path,
        *,
        compression: str = 'zstd',
        level: int = 3,
        chunk_bytes: int | None = CHUNK_BYTES,
        index: bool = True,
    ) -> None:
        self._file = path.open('xb')
        self._compression = compression
        self._compress: Callable[[bytes, int], bytes] = COMPRESSORS[compression]
        self._level = level
        self._chunk_bytes = chunk_bytes
        self._index = index
        self._definitions: list[bytes] = []
        self._schemas = self._channels = 0
        self._counts: dict[int, int] = {}
        self._start_ns, self._end_ns = NEVER_NS, 0
        self._chunk_indexes: list[bytes] = []
        self._file.write(MCAP_MAGIC + _record(HEADER, _text('ros2') + _text('sparkrt')))
        self._begin_chunk()

    def add_schema(self, name: str, *, encoding: str = 'ros2msg', text: str = '') -> int:
        """The id of a new schema; ids count from 1."""
        self._schemas += 1
        self._define(
            _record(
                SCHEMA,
                struct.pack('<H', self._schemas) + _text(name) + _text(encoding) + _text(text),
            )
        )
        return self._schemas

    def add_channel(
        self,
        topic: str,
        schema: int,
        *,
        encoding: str = 'cdr',
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """The id of a new channel; schema 0: none."""
        self._channels += 1
        pairs = b''.join(_text(key) + _text(value) for key, value in (metadata or {}).items())
        content = struct.pack('<HH', self._channels, schema) + _text(topic) + _text(encoding)
        self._define(_record(CHANNEL, content + struct.pack('<I', len(pairs)) + pairs))
        self._counts[self._channels] = 0
        return self._channels

    def write(self, channel: int, log_ns: int, data: bytes) -> None:
        """Add one message."""
        head = MESSAGE_HEAD.pack(channel, self._counts[channel], log_ns, log_ns)
        self._counts[channel] += 1
        self._start_ns = min(self._start_ns, log_ns)
        self._end_ns = max(self._end_ns, log_ns)
        record = _record(MESSAGE, head + data)
        if self._chunk_bytes is None:
            self._file.write(record)
            return
        self._chunk_messages[channel].append((log_ns, self._chunk.tell()))
        self._chunk_times.append(log_ns)
        self._chunk.write(record)
        if self._chunk.tell() >= self._chunk_bytes:
            self.end_chunk()

    @property
    def size(self) -> int:
        """Bytes in the file so far, chunks that are not yet written left out."""
        return self._file.tell()

    def end_chunk(self) -> None:
        """Write out what has gathered."""
        content = self._chunk.getvalue()
        if not content:
            return
        packed = self._compress(content, self._level)
        times = (min(self._chunk_times, default=0), max(self._chunk_times, default=0))
        start = self._file.tell()
        head = struct.pack('<QQQI', *times, len(content), crc32(content))
        head += _text(self._compression) + struct.pack('<Q', len(packed))
        self._file.write(_record(CHUNK, head + packed))
        if self._index:
            self._write_indexes(start, times, len(packed), len(content))
        self._begin_chunk()

    def close(self) -> None:
        """Write the last chunk, the summary and the footer."""
        self.end_chunk()
        self._file.write(_record(DATA_END, struct.pack('<I', 0)))
        start = self._file.tell()
        summary = b''
        if self._index:
            summary = b''.join((*self._definitions, *self._chunk_indexes, self._statistics()))
        footer = struct.pack('<BQQQ', FOOTER, 20, start if summary else 0, 0)
        crc = crc32(summary + footer) if summary else 0
        self._file.write(summary + footer + struct.pack('<I', crc) + MCAP_MAGIC)
        self._file.close()

    def __enter__(self) -> McapWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _define(self, record: bytes) -> None:
        self._definitions.append(record)
        (self._file if self._chunk_bytes is None else self._chunk).write(record)

    def _begin_chunk(self) -> None:
        self._chunk = BytesIO()
        self._chunk_messages: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._chunk_times: list[int] = []

    def _write_indexes(self, start: int, times: tuple[int, int], packed: int, size: int) -> None:
        stop = self._file.tell()
        offsets = b''
        for channel, messages in self._chunk_messages.items():
            offsets += struct.pack('<HQ', channel, self._file.tell())
            rows = b''.join(struct.pack('<QQ', *row) for row in messages)
            content = struct.pack('<HI', channel, len(rows)) + rows
            self._file.write(_record(MESSAGE_INDEX, content))
        self._chunk_indexes.append(
            _record(
                CHUNK_INDEX,
                struct.pack('<QQQQI', *times, start, stop - start, len(offsets))
                + offsets
                + struct.pack('<Q', self._file.tell() - stop)
                + _text(self._compression)
                + struct.pack('<QQ', packed, size),
            )
        )

    def _statistics(self) -> bytes:
        counts = b''.join(struct.pack('<HQ', *pair) for pair in self._counts.items())
        content = struct.pack(
            '<QHIIIIQQI',
            sum(self._counts.values()),
            self._schemas,
            self._channels,
            0,
            0,
            len(self._chunk_indexes),
            self._start_ns if self._start_ns < NEVER_NS else 0,
            self._end_ns,
            len(counts),
        )
        return _record(STATISTICS, content + counts)


def _record(op: int, content: bytes) -> bytes:
    return PREFIX.pack(op, len(content)) + content


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack('<I', len(data)) + data

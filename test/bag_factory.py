"""Makes bags: whole ones, and such as crashed recorders and odd tools leave behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from backports import zstd
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from sparkrt_ros.replay.bag_mcap_writer import McapWriter

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
STORE = get_typestore(Stores.LATEST)
JOINT_STATE = 'sensor_msgs/msg/JointState'
IMAGE = 'sensor_msgs/msg/Image'
MULTI_ARRAY = 'std_msgs/msg/Float64MultiArray'


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One message to be written: its topic, type, log time and CDR."""

    topic: str
    kind: str
    log_ns: int
    data: bytes


def message(kind: str, *fields: Any) -> Any:
    return STORE.types[kind](*fields)


def header(stamp_ns: int) -> Any:
    stamp = message('builtin_interfaces/msg/Time', *divmod(stamp_ns, SECOND))
    return message('std_msgs/msg/Header', stamp, 'base')


def cdr(content: Any, *, little_endian: bool = True) -> bytes:
    kind = content.__msgtype__
    return bytes(STORE.serialize_cdr(content, kind, little_endian=little_endian))


def joints(
    log_ns: int,
    *,
    value: float = 0.0,
    stamp_ns: int | None = None,
    topic: str = '/joint_states',
    little_endian: bool = True,
) -> Recorded:
    """Joint states of two joints, the first at ``value``."""
    content = message(
        JOINT_STATE,
        header(log_ns if stamp_ns is None else stamp_ns),
        ['a', 'b'],
        np.array([value, 2.0]),
        np.array([]),
        np.array([]),
    )
    data = cdr(content, little_endian=little_endian)
    return Recorded(topic=topic, kind=JOINT_STATE, log_ns=log_ns, data=data)


def image(
    log_ns: int,
    *,
    stamp_ns: int | None = None,
    size: tuple[int, int] = (16, 12),
    topic: str = '/front_camera/image_raw',
) -> Recorded:
    """An rgb8 picture of noise that follows from the time."""
    width, height = size
    pixels = np.random.default_rng(log_ns % 2**32).integers(0, 256, 3 * width * height)
    stamp = header(log_ns if stamp_ns is None else stamp_ns)
    content = message(IMAGE, stamp, height, width, 'rgb8', 0, 3 * width, pixels.astype(np.uint8))
    return Recorded(topic=topic, kind=IMAGE, log_ns=log_ns, data=cdr(content))


def commands(log_ns: int, *, value: float = 0.0, topic: str = '/commands') -> Recorded:
    """A message without header."""
    layout = message('std_msgs/msg/MultiArrayLayout', [], 0)
    content = message(MULTI_ARRAY, layout, np.array([value]))
    return Recorded(topic=topic, kind=MULTI_ARRAY, log_ns=log_ns, data=cdr(content))


def drive(*, seconds: float = 1.0, start_ns: int = START_NS) -> list[Recorded]:
    """A camera at 30 Hz, joints at 100 Hz and commands at 50 Hz, by log time."""
    made: list[Recorded] = []
    for rate_hz, make in ((100, joints), (30, image), (50, commands)):
        times = (start_ns + k * SECOND // rate_hz for k in range(round(seconds * rate_hz)))
        made += [make(log_ns) for log_ns in times]
    return sorted(made, key=lambda recorded: recorded.log_ns)


def definition(kind: str) -> str:
    return STORE.generate_msgdef(kind, ros_version=2)[0]


def write_mcap(
    path: Path,
    messages: Iterable[Recorded],
    *,
    chunk_every: int | None = None,
    schemas: Mapping[str, tuple[str, str]] | None = None,
    **options: Any,
) -> list[int]:
    """One file; the size of the file after each chunk.

    chunk_every: a chunk ends after that many messages. schemas: type -> (encoding, text) instead
    of the real definition; ('', '') leaves the schema out. options: see McapWriter.
    """
    schemas = schemas or {}
    channels: dict[str, int] = {}
    kinds: dict[str, int] = {}
    sizes = []
    with McapWriter(path, **options) as writer:
        for number, recorded in enumerate(messages, start=1):
            if recorded.kind not in kinds:
                encoding, text = schemas.get(recorded.kind, ('ros2msg', None))
                text = definition(recorded.kind) if text is None else text
                kinds[recorded.kind] = (
                    writer.add_schema(recorded.kind, encoding=encoding, text=text)
                    if encoding
                    else 0
                )
            if recorded.topic not in channels:
                channels[recorded.topic] = writer.add_channel(recorded.topic, kinds[recorded.kind])
            writer.write(channels[recorded.topic], recorded.log_ns, recorded.data)
            if chunk_every and number % chunk_every == 0:
                writer.end_chunk()
                sizes.append(writer.size)
    return sizes


def write_db3(
    path: Path,
    messages: Iterable[Recorded],
    *,
    version: int = 4,
    indexed: bool = True,
    packed: bool = False,
    journal: str = 'delete',
    definitions: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """One SQLite file as rosbag2 lays it out.

    version: 1 had neither QoS nor definitions, 2 no definitions. packed: compresses each
    message. definitions: as ``schemas`` of write_mcap.
    """
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f'PRAGMA journal_mode = {journal}')
    database.executescript(_tables(version, indexed=indexed))
    topics: dict[str, int] = {}
    known: set[str] = set()
    database.execute('BEGIN')
    for recorded in messages:
        if recorded.topic not in topics:
            topics[recorded.topic] = len(topics) + 1
            row = (topics[recorded.topic], recorded.topic, recorded.kind, 'cdr', '', '')
            row = row[: {1: 4, 2: 5}.get(version, 6)]
            database.execute(f'INSERT INTO topics VALUES ({",".join("?" * len(row))})', row)
        if version >= 4 and recorded.kind not in known:
            known.add(recorded.kind)
            chosen = (definitions or {}).get(recorded.kind)
            chosen = chosen or ('ros2msg', definition(recorded.kind))
            database.execute(
                'INSERT INTO message_definitions VALUES (NULL, ?, ?, ?, ?)',
                (recorded.kind, *chosen, ''),
            )
        data = zstd.compress(recorded.data) if packed else recorded.data
        database.execute(
            'INSERT INTO messages VALUES (NULL, ?, ?, ?)',
            (topics[recorded.topic], recorded.log_ns, data),
        )
    database.execute('COMMIT')
    database.close()


def write_folder(
    folder: Path,
    messages: Sequence[Recorded],
    *,
    storage: StoragePlugin,
    mode: CompressionMode = CompressionMode.NONE,
) -> None:
    """A bag folder with metadata.yaml, as an independent library writes it."""
    writer = Writer(folder, version=9, storage_plugin=storage)
    writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connections = {
            topic: writer.add_connection(topic, kind, typestore=STORE)
            for topic, kind in {m.topic: m.kind for m in messages}.items()
        }
        for recorded in messages:
            writer.write(connections[recorded.topic], recorded.log_ns, recorded.data)


def write_metadata(folder: Path, files: Sequence[str], **changes: Any) -> None:
    """A metadata.yaml that lists ``files``; ``changes`` replace or, with None, remove keys."""
    about: dict[str, Any] = {
        'version': 9,
        'storage_identifier': 'mcap',
        'relative_file_paths': list(files),
        'topics_with_message_count': [],
        'compression_format': '',
        'compression_mode': '',
        **changes,
    }
    about = {key: value for key, value in about.items() if value is not None}
    text = yaml.safe_dump({'rosbag2_bagfile_information': about})
    (folder / 'metadata.yaml').write_text(text, encoding='utf-8')


def _tables(version: int, *, indexed: bool) -> str:
    more = {1: '', 2: ', offered_qos_profiles TEXT NOT NULL'}.get(
        version, ', offered_qos_profiles TEXT NOT NULL, type_description_hash TEXT NOT NULL'
    )
    text = (
        'CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, '
        f'serialization_format TEXT NOT NULL{more});'
        'CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, '
        'timestamp INTEGER NOT NULL, data BLOB NOT NULL);'
    )
    if version >= 4:
        text += (
            'CREATE TABLE message_definitions(id INTEGER PRIMARY KEY, topic_type TEXT NOT NULL, '
            'encoding TEXT NOT NULL, encoded_message_definition TEXT NOT NULL, '
            'type_description_hash TEXT NOT NULL);'
        )
    return text + ('CREATE INDEX timestamp_idx ON messages (timestamp ASC);' if indexed else '')

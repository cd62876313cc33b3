"""Messages as CDR, and the files of the sample bags; used by record_sample_bag.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from sparkrt_ros.replay.bag_mcap_writer import McapWriter

MCAP_CHUNK_BYTES = 8 << 20
MCAP_FILE_BYTES = 600_000
ZSTD_LEVEL = 19
_NS = 1_000_000_000


class RecordedMessage(Protocol):
    topic: str
    kind: str
    log_ns: int
    data: bytes


class Messages:
    """Makes messages; each comes as (type, CDR)."""

    def __init__(self) -> None:
        self.store = get_typestore(Stores.LATEST)

    def joint_state(
        self, stamp_ns: int, names: Sequence[str], positions: np.ndarray, velocities: np.ndarray
    ) -> tuple[str, bytes]:
        header = self._header(stamp_ns, '')
        return self._made(
            'sensor_msgs/msg/JointState',
            header,
            list(names),
            positions.copy(),
            velocities.copy(),
            np.array([], dtype=np.float64),
        )

    def image(self, stamp_ns: int, frame: str, pixels: np.ndarray) -> tuple[str, bytes]:
        height, width = pixels.shape[:2]
        return self._made(
            'sensor_msgs/msg/Image',
            self._header(stamp_ns, frame),
            height,
            width,
            'rgb8',
            0,
            3 * width,
            pixels.reshape(-1),
        )

    def multi_array(self, values: Iterable[float]) -> tuple[str, bytes]:
        layout = self._make('std_msgs/msg/MultiArrayLayout', [], 0)
        data = np.array(list(values), dtype=np.float64)
        return self._made('std_msgs/msg/Float64MultiArray', layout, data)

    def _header(self, stamp_ns: int, frame: str) -> Any:
        stamp = self._make('builtin_interfaces/msg/Time', *divmod(stamp_ns, _NS))
        return self._make('std_msgs/msg/Header', stamp, frame)

    def _make(self, kind: str, *fields: Any) -> Any:
        return self.store.types[kind](*fields)

    def _made(self, kind: str, *fields: Any) -> tuple[str, bytes]:
        return kind, bytes(self.store.serialize_cdr(self._make(kind, *fields), kind))


def write_mcap(folder: Path, messages: Sequence[RecordedMessage]) -> None:
    """A split bag of MCAP files with metadata.yaml."""
    folder.mkdir(parents=True)
    store = get_typestore(Stores.LATEST)
    topics = {message.topic: message.kind for message in messages}
    rest, files = list(messages), []
    while rest:
        path = folder / f'{folder.name}_{len(files)}.mcap'
        with McapWriter(path, level=ZSTD_LEVEL, chunk_bytes=MCAP_CHUNK_BYTES) as writer:
            kinds = sorted(set(topics.values()))
            schemas = {
                kind: writer.add_schema(kind, text=store.generate_msgdef(kind, ros_version=2)[0])
                for kind in kinds
            }
            channels = {
                topic: writer.add_channel(topic, schemas[kind]) for topic, kind in topics.items()
            }
            written = 0
            while written < len(rest) and writer.size < MCAP_FILE_BYTES:
                message = rest[written]
                writer.write(channels[message.topic], message.log_ns, message.data)
                written += 1
        files.append((path.name, rest[:written]))
        rest = rest[written:]
    _write_metadata(folder, files, topics)


def write_sqlite(folder: Path, messages: Sequence[RecordedMessage]) -> None:
    """A bag of one SQLite file, compressed as a whole."""
    store = get_typestore(Stores.LATEST)
    writer = Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3)
    writer.set_compression(CompressionMode.FILE, CompressionFormat.ZSTD)
    with writer:
        connections = {
            topic: writer.add_connection(topic, kind, typestore=store)
            for topic, kind in {m.topic: m.kind for m in messages}.items()
        }
        for message in messages:
            writer.write(connections[message.topic], message.log_ns, message.data)


def _write_metadata(
    folder: Path, files: list[tuple[str, Sequence[RecordedMessage]]], topics: dict[str, str]
) -> None:
    everything = [message for _, messages in files for message in messages]
    counts = Counter(message.topic for message in everything)
    about = {
        'version': 9,
        'storage_identifier': 'mcap',
        **_extent(everything),
        'topics_with_message_count': [
            {
                'topic_metadata': {
                    'name': topic,
                    'type': kind,
                    'serialization_format': 'cdr',
                    'offered_qos_profiles': [],
                    'type_description_hash': '',
                },
                'message_count': counts[topic],
            }
            for topic, kind in topics.items()
        ],
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': [name for name, _ in files],
        'files': [{'path': name, **_extent(messages)} for name, messages in files],
        'custom_data': None,
        'ros_distro': 'kilted',
    }
    text = yaml.safe_dump({'rosbag2_bagfile_information': about}, sort_keys=False)
    (folder / 'metadata.yaml').write_text(text, encoding='utf-8')


def _extent(messages: Sequence[RecordedMessage]) -> dict[str, Any]:
    first, last = messages[0].log_ns, messages[-1].log_ns
    return {
        'duration': {'nanoseconds': last - first},
        'starting_time': {'nanoseconds_since_epoch': first},
        'message_count': len(messages),
    }

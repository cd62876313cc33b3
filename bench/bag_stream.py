"""How fast a big bag is read, and with how much memory.

    python bench/bag_stream.py --gigabytes 2
    python bench/bag_stream.py --gigabytes 0.5 2 8 --kinds mcap sqlite3 --limit-mb 500

Writes a bag of two 640x480 rgb8 cameras at 30 Hz and joint states at 500 Hz, of as many
gigabytes of messages as asked, and reads it in a process of its own: every message in order of
time, each decoded. Peak memory is the resident set of that process (VmHWM), its libraries
included. The bags are removed again. Exits with 1 where a reading took more than --limit-mb.

Kinds: ``mcap`` in zstd chunks with index; ``mcap-unindexed`` the same without; ``mcap-late``
where every fortieth chunk holds messages of ten seconds before; ``sqlite3``; ``sqlite3-unindexed``
without its index over time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_mcap_writer import McapWriter

KINDS = ('mcap', 'mcap-unindexed', 'mcap-late', 'sqlite3', 'sqlite3-unindexed')
TOPICS = {
    '/front_camera/image_raw': 'sensor_msgs/msg/Image',
    '/wrist_camera/image_raw': 'sensor_msgs/msg/Image',
    '/joint_states': 'sensor_msgs/msg/JointState',
}
WIDTH, HEIGHT = 640, 480
CAMERA_HZ, JOINT_HZ = 30, 500
START_NS = 1_700_000_000_000_000_000
STORE = get_typestore(Stores.LATEST)
# What one second of the recording holds, in bytes of pictures.
BYTES_PER_S = 2 * CAMERA_HZ * WIDTH * HEIGHT * 3
MB = 1e6

Message = tuple[str, int, bytes]


def messages(gigabytes: float) -> Iterator[Message]:
    """(topic, log time, CDR) in order of time; pictures of noise that compresses a little."""
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 64, HEIGHT * WIDTH * 3, dtype=np.uint8) for _ in range(8)]
    for tick in range(round(gigabytes * 1e9 / BYTES_PER_S * JOINT_HZ)):
        now_ns = START_NS + tick * 1_000_000_000 // JOINT_HZ
        yield '/joint_states', now_ns, joint_data(now_ns)
        if tick * CAMERA_HZ % JOINT_HZ < CAMERA_HZ:
            for number, camera in enumerate(('front', 'wrist')):
                pixels = pictures[(tick + number) % len(pictures)]
                yield f'/{camera}_camera/image_raw', now_ns, picture_data(now_ns, pixels)


def header(now_ns: int) -> Any:
    stamp = STORE.types['builtin_interfaces/msg/Time'](*divmod(now_ns, 1_000_000_000))
    return STORE.types['std_msgs/msg/Header'](stamp, 'frame')


def joint_data(now_ns: int) -> bytes:
    values = np.full(6, now_ns % 1000 / 1000.0)
    names = [f'joint_{number}' for number in range(6)]
    kind = 'sensor_msgs/msg/JointState'
    return bytes(
        STORE.serialize_cdr(STORE.types[kind](header(now_ns), names, values, values, values), kind)
    )


def picture_data(now_ns: int, pixels: np.ndarray) -> bytes:
    kind = 'sensor_msgs/msg/Image'
    fields = (header(now_ns), HEIGHT, WIDTH, 'rgb8', 0, 3 * WIDTH, pixels)
    return bytes(STORE.serialize_cdr(STORE.types[kind](*fields), kind))


def write_mcap(folder: Path, gigabytes: float, *, index: bool = True, late: bool = False) -> None:
    folder.mkdir()
    with McapWriter(folder / 'big_0.mcap', level=1, index=index) as writer:
        channels = {
            topic: writer.add_channel(
                topic,
                writer.add_schema(kind, text=STORE.generate_msgdef(kind, ros_version=2)[0]),
            )
            for topic, kind in TOPICS.items()
        }
        held: list[Message] = []
        for number, (topic, log_ns, data) in enumerate(messages(gigabytes)):
            if late and number % 40 == 0:
                held.append((topic, log_ns, data))
                if log_ns - held[0][1] > 10_000_000_000:
                    writer.write(channels[held[0][0]], *held.pop(0)[1:])
                continue
            writer.write(channels[topic], log_ns, data)
        for topic, log_ns, data in held:
            writer.write(channels[topic], log_ns, data)


def write_sqlite(folder: Path, gigabytes: float, *, index: bool = True) -> None:
    with Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connections = {
            topic: writer.add_connection(topic, kind, typestore=STORE)
            for topic, kind in TOPICS.items()
        }
        for topic, log_ns, data in messages(gigabytes):
            writer.write(connections[topic], log_ns, data)
    if not index:
        database = sqlite3.connect(folder / f'{folder.name}.db3')
        database.execute('DROP INDEX timestamp_idx')
        database.close()


WRITERS: dict[str, Callable[[Path, float], None]] = {
    'mcap': write_mcap,
    'mcap-unindexed': lambda folder, size: write_mcap(folder, size, index=False),
    'mcap-late': lambda folder, size: write_mcap(folder, size, late=True),
    'sqlite3': write_sqlite,
    'sqlite3-unindexed': lambda folder, size: write_sqlite(folder, size, index=False),
}


def read(folder: Path, order: str) -> dict[str, Any]:
    """Read everything; the figures of this process."""
    started_s = time.perf_counter()
    with open_bag(folder) as bag:
        opened_s = time.perf_counter() - started_s
        count = size = pixels = 0
        last_ns = 0
        for message in bag.messages(order=order):
            assert message.log_ns >= last_ns
            last_ns = message.log_ns
            count += 1
            size += len(message.raw)
            if message.topic != '/joint_states':
                pixels += len(message.message.data)
            else:
                assert len(message.message.position) == 6
        assert bag.complete, bag.warnings
        assert count == sum(topic.count for topic in bag.topics.values())
    total_s = time.perf_counter() - started_s
    return {
        'messages': count,
        'megabytes': size / MB,
        'open_s': opened_s,
        'total_s': total_s,
        'mb_per_s': size / MB / total_s,
        'peak_mb': peak_mb(),
    }


def peak_mb() -> float:
    """Most memory this process ever had resident."""
    status = Path('/proc/self/status').read_text(encoding='utf-8')
    line = next(line for line in status.splitlines() if line.startswith('VmHWM'))
    return int(line.split()[1]) * 1024 / MB


def measure(kind: str, gigabytes: float, orders: list[str], scratch: Path) -> list[dict[str, Any]]:
    """Write, read in processes of their own, remove."""
    folder = scratch / 'big'
    try:
        WRITERS[kind](folder, gigabytes)
        on_disk = sum(file.stat().st_size for file in folder.iterdir()) / MB
        results = []
        for order in orders:
            command = [sys.executable, __file__, '--read', str(folder), '--orders', order]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(
                {
                    'kind': kind,
                    'order': order,
                    'gigabytes': gigabytes,
                    'disk_mb': on_disk,
                    **json.loads(done.stdout),
                }
            )
        return results
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--gigabytes', type=float, nargs='+', default=[1.0], help='of messages')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=['mcap', 'sqlite3'])
    parser.add_argument('--orders', nargs='+', choices=('log', 'header'), default=['log'])
    parser.add_argument('--limit-mb', type=float, default=500.0, help='of resident memory')
    parser.add_argument('--scratch', type=Path, help='where the bags are written meanwhile')
    parser.add_argument('--json', type=Path, help='write the figures here')
    parser.add_argument('--read', type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        json.dump(read(options.read, options.orders[0]), sys.stdout)
        return 0
    print(f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}')
    print(
        f'{"":<18} {"order":<7} {"GB":>6} {"messages":>9} {"MB/s":>7} {"open s":>7} {"peak MB":>8}'
    )
    results = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for kind in options.kinds:
            for gigabytes in options.gigabytes:
                for row in measure(kind, gigabytes, options.orders, Path(scratch)):
                    results.append(row)
                    print(
                        f'{kind:<18} {row["order"]:<7} {row["megabytes"] / 1000:6.2f} '
                        f'{row["messages"]:9d} {row["mb_per_s"]:7.0f} {row["open_s"]:7.2f} '
                        f'{row["peak_mb"]:8.0f}',
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps({'results': results}, indent=1), encoding='utf-8')
    return int(any(row['peak_mb'] > options.limit_mb for row in results))


if __name__ == '__main__':
    sys.exit(main())

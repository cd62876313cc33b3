"""Bags without metadata or index (B1), out of order (B2), of unknown schema (B4); stamps in bags.

The rows T1 and T2 concern bags as far as stamps of zero and loops must come out as recorded.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
from pathlib import Path

import pytest
from bag_factory import (
    JOINT_STATE,
    SECOND,
    START_NS,
    Recorded,
    cdr,
    commands,
    drive,
    image,
    joints,
    message,
    write_db3,
    write_folder,
    write_mcap,
    write_metadata,
)
from rosbags.rosbag2 import StoragePlugin

from sparkrt_ros.replay.bag import Bag, open_bag

STORAGES = ('mcap', 'sqlite3')


def write(path: Path, messages: list[Recorded], storage: str) -> None:
    if storage == 'mcap':
        write_mcap(path, messages, chunk_every=20)
    else:
        write_db3(path, messages)


def at(*seconds: float) -> list[Recorded]:
    """Joint states at these times, counted by value in the order they are written."""
    return [
        joints(START_NS + round(second * SECOND), value=float(number))
        for number, second in enumerate(seconds)
    ]


def times(bag: Bag, **options: str) -> list[float]:
    return [(m.log_ns - START_NS) / SECOND for m in bag.messages(**options)]


def content(bag: Bag) -> list[tuple[str, int, bytes]]:
    return [(m.topic, m.log_ns, m.raw) for m in bag.messages()]


def expected(messages: list[Recorded]) -> list[tuple[str, int, bytes]]:
    ordered = sorted(messages, key=lambda recorded: recorded.log_ns)
    return [(m.topic, m.log_ns, m.data) for m in ordered]


# B1: what is missing is found out


@pytest.mark.parametrize('storage', STORAGES)
def test_b1_folder_with_nothing_but_a_data_file(tmp_path: Path, storage: str) -> None:
    messages = drive()
    write(tmp_path / {'mcap': 'x_0.mcap', 'sqlite3': 'x_0.db3'}[storage], messages, storage)
    with open_bag(tmp_path) as bag:
        assert bag.storage == storage
        assert content(bag) == expected(messages)
        assert bag.complete
        assert bag.warnings == ()


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('identifier', ['', None, 'nonsense', 'mcap', 'sqlite3'])
def test_b1_the_file_says_what_it_is_not_the_storage_identifier(
    tmp_path: Path, storage: str, identifier: str | None
) -> None:
    messages = drive()
    write(tmp_path / 'recording', messages, storage)
    write_metadata(tmp_path, ['recording'], storage_identifier=identifier)
    with open_bag(tmp_path) as bag:
        assert bag.storage == storage
        assert content(bag) == expected(messages)
        assert bag.complete


@pytest.mark.parametrize('compression', ['zstd', 'lz4', ''])
@pytest.mark.parametrize('index', [True, False])
@pytest.mark.parametrize('share', [0.05, 0.5, 0.95])
def test_b1_mcap_cut_in_a_chunk_yields_every_message_of_the_whole_ones(
    tmp_path: Path, compression: str, index: bool, share: float
) -> None:
    messages = drive()
    sizes = write_mcap(
        tmp_path / 'whole.mcap', messages, chunk_every=20, compression=compression, index=index
    )
    data = (tmp_path / 'whole.mcap').read_bytes()
    for whole, (start, stop) in enumerate(itertools.pairwise(sizes), start=1):
        cut = tmp_path / f'{whole}_0.mcap'
        # Behind a chunk come the indexes of its messages; a chunk alone takes most of the room.
        cut.write_bytes(data[: start + round(share * 0.5 * (stop - start))])
        with open_bag(cut) as bag:
            assert not bag.complete
            assert len(bag.warnings) == 1
            assert 'damaged or cut' in bag.warnings[0]
            assert content(bag) == expected(messages[: whole * 20])
            assert sum(topic.count for topic in bag.topics.values()) == whole * 20
            assert len(bag.warnings) == 1


def test_b1_mcap_that_was_never_closed_is_read_and_reported(tmp_path: Path) -> None:
    messages = drive()
    sizes = write_mcap(tmp_path / 'whole.mcap', messages, chunk_every=20)
    (tmp_path / 'x_0.mcap').write_bytes((tmp_path / 'whole.mcap').read_bytes()[: sizes[3]])
    with open_bag(tmp_path / 'x_0.mcap') as bag:
        assert content(bag) == expected(messages[:80])
        assert not bag.complete
        assert 'not closed' in bag.warnings[0]


def test_b1_sqlite_cut_short_yields_its_rows_up_to_the_cut(tmp_path: Path) -> None:
    messages = drive(seconds=3.0)
    write_db3(tmp_path / 'whole.db3', messages)
    data = (tmp_path / 'whole.db3').read_bytes()
    (tmp_path / 'cut.db3').write_bytes(data[: len(data) // 2])
    with open_bag(tmp_path / 'cut.db3') as bag:
        found = content(bag)
        assert not bag.complete
        assert 'cut short' in bag.warnings[0]
    assert len(found) > len(messages) // 3
    assert found == expected(messages)[: len(found)]


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('damaged', [False, True])
def test_b1_the_source_is_never_touched(tmp_path: Path, storage: str, damaged: bool) -> None:
    folder = tmp_path / 'bag'
    folder.mkdir()
    file = folder / {'mcap': 'x_0.mcap', 'sqlite3': 'x_0.db3'}[storage]
    write(file, drive(), storage)
    if damaged:
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    file.chmod(0o444)
    folder.chmod(0o555)
    before = {p.name: (hash_of(p), p.stat().st_mtime_ns) for p in folder.iterdir()}
    names = set(os.listdir(folder))
    try:
        with open_bag(folder) as bag:
            assert len(content(bag)) > 10
            list(bag.messages(order='header'))
            bag.digest()
            assert set(os.listdir(folder)) == names
    finally:
        folder.chmod(0o755)
    assert {p.name: (hash_of(p), p.stat().st_mtime_ns) for p in folder.iterdir()} == before


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_b1_a_write_ahead_log_beside_the_database_is_read_but_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / 'crashed'
    folder.mkdir()
    messages = drive()
    write_db3(folder / 'x_0.db3', messages[:100], journal='wal')
    recorder = sqlite3.connect(folder / 'x_0.db3', isolation_level=None)
    recorder.execute('PRAGMA wal_autocheckpoint = 0')
    topics = {name: key for key, name in recorder.execute('SELECT id, name FROM topics')}
    for m in messages[100:]:
        row = (topics[m.topic], m.log_ns, m.data)
        recorder.execute('INSERT INTO messages VALUES (NULL, ?, ?, ?)', row)
    copy = tmp_path / 'bag'
    copy.mkdir()
    for name in ('x_0.db3', 'x_0.db3-wal'):  # as they lie on disk when the power goes
        (copy / name).write_bytes((folder / name).read_bytes())
    recorder.close()
    before = {p.name: hash_of(p) for p in copy.iterdir()}
    with open_bag(copy) as bag:
        assert content(bag) == expected(messages)
        assert bag.complete
    assert {p.name: hash_of(p) for p in copy.iterdir()} == before


# B2: order


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('with_metadata', [True, False])
def test_b2_split_files_that_overlap_in_time(
    tmp_path: Path, storage: str, with_metadata: bool
) -> None:
    ending = {'mcap': 'mcap', 'sqlite3': 'db3'}[storage]
    names = [f'x_0.{ending}', f'x_1.{ending}']
    write(tmp_path / names[0], at(0, 1, 5), storage)
    write(tmp_path / names[1], at(3, 10), storage)
    if with_metadata:
        write_metadata(tmp_path, names, storage_identifier=storage)
    with open_bag(tmp_path) as bag:
        assert times(bag) == [0, 1, 3, 5, 10]
        assert (bag.start_ns, bag.end_ns) == (START_NS, START_NS + 10 * SECOND)
        assert bag.warnings == ()


@pytest.mark.parametrize('storage', STORAGES)
def test_b2_one_file_written_out_of_order(tmp_path: Path, storage: str) -> None:
    write(tmp_path / 'x', at(5, 3, 10, 0), storage)
    with open_bag(tmp_path / 'x') as bag:
        assert times(bag) == [0, 3, 5, 10]


@pytest.mark.parametrize('options', [{'index': False}, {'chunk_bytes': None}, {'chunk_every': 1}])
def test_b2_mcap_out_of_order_whatever_its_layout(tmp_path: Path, options: dict) -> None:
    write_mcap(tmp_path / 'x.mcap', at(5, 3, 10, 0), **options)
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert times(bag) == [0, 3, 5, 10]
        assert (bag.start_ns, bag.end_ns) == (START_NS, START_NS + 10 * SECOND)


@pytest.mark.parametrize('storage', STORAGES)
def test_b2_equal_times_come_in_the_order_of_the_files(tmp_path: Path, storage: str) -> None:
    first = [joints(START_NS + SECOND, value=3), image(START_NS), joints(START_NS, value=1)]
    second = [joints(START_NS + SECOND, value=4), joints(START_NS, value=2), commands(START_NS)]
    write(tmp_path / f'a_0.{storage}', first, storage)
    write(tmp_path / f'a_1.{storage}', second, storage)
    write_metadata(tmp_path, [f'a_0.{storage}', f'a_1.{storage}'])
    with open_bag(tmp_path) as bag:
        assert content(bag) == expected(first + second)


def test_b2_copies_in_either_storage_give_the_same_bytes_in_the_same_order(
    tmp_path: Path,
) -> None:
    messages = [*drive(), *drive(), *at(0.5, 0.25, 0.25)]  # many equal times, not in order
    write_folder(tmp_path / 'a', messages, storage=StoragePlugin.SQLITE3)
    write_folder(tmp_path / 'b', messages, storage=StoragePlugin.MCAP)
    with open_bag(tmp_path / 'a') as a, open_bag(tmp_path / 'b') as b:
        assert (a.storage, b.storage) == ('sqlite3', 'mcap')
        assert content(a) == content(b) == expected(messages)


@pytest.mark.parametrize('storage', STORAGES)
def test_b2_log_time_or_header_stamp_is_a_choice(tmp_path: Path, storage: str) -> None:
    late = image(START_NS + 3 * SECOND, stamp_ns=START_NS + SECOND // 2)  # 2.5 s on its way
    write(tmp_path / 'x', [*at(0, 1, 2), late, *at(4)], storage)
    with open_bag(tmp_path / 'x') as bag:
        assert times(bag) == [0, 1, 2, 3, 4]
        assert times(bag, order='log') == [0, 1, 2, 3, 4]
        assert times(bag, order='header') == [0, 3, 1, 2, 4]


# B4: unknown schemas and versions

IDL = """
module sensor_msgs {
  module msg {
    struct JointState {
      @verbatim (language="comment", text="not all of it")
      std_msgs::msg::Header header;
"""


@pytest.mark.parametrize(
    'schema',
    [
        ('ros2idl', IDL),
        ('ros2idl', ''),
        ('ros2msg', ' \n'),
        ('omgidl', 'nonsense'),
        ('', ''),
        ('protobuf', '\0\1'),
    ],
)
def test_b4_standard_types_decode_whatever_the_schema(
    tmp_path: Path, schema: tuple[str, str]
) -> None:
    messages = at(0, 1, 2)
    write_mcap(tmp_path / 'x.mcap', messages, schemas={JOINT_STATE: schema})
    write_metadata(tmp_path, ['x.mcap'], topics_with_message_count=[listed(JOINT_STATE)])
    with open_bag(tmp_path) as bag:
        found = [m.message.position[0] for m in bag.messages()]
        assert found == [0, 1, 2]
        assert bag.topics['/joint_states'].type == JOINT_STATE
        assert bag.complete


def listed(kind: str, **about: object) -> dict[str, object]:
    metadata = {'name': '/joint_states', 'type': kind, 'serialization_format': 'cdr', **about}
    return {'topic_metadata': metadata, 'message_count': 3}


@pytest.mark.parametrize('storage', STORAGES)
def test_b4_a_custom_topic_without_schema_is_skipped_with_one_warning(
    tmp_path: Path, storage: str
) -> None:
    custom = [
        Recorded(topic='/odd', kind='vendor/msg/Odd', log_ns=m.log_ns, data=b'\0\1\0\0abcd')
        for m in drive()
    ]
    needed = drive()
    mixed = [m for pair in zip(needed, custom, strict=True) for m in pair]
    if storage == 'mcap':
        write_mcap(tmp_path / 'x', mixed, schemas={'vendor/msg/Odd': ('', '')})
    else:
        write_db3(tmp_path / 'x', mixed, definitions={'vendor/msg/Odd': ('unknown', '')})
    with open_bag(tmp_path / 'x') as bag:
        assert content(bag) == expected(needed)
        assert content(bag) == expected(needed)  # a second pass does not warn again
        assert len(bag.warnings) == 1
        assert '/odd' in bag.warnings[0]
        assert bag.complete  # nothing that could be used was lost
        assert bag.topics['/odd'].count == len(custom)


QOS = {'history': 'unknown', 'depth': 0, 'reliability': 'soon', 'durability': 'whatever'}


@pytest.mark.parametrize('version', [9, 10, 99])
@pytest.mark.parametrize('qos', [[QOS], 'history: unknown', [{}], None, 7])
def test_b4_metadata_of_any_version_with_any_qos(
    tmp_path: Path, version: int, qos: object
) -> None:
    messages = drive()
    write_mcap(tmp_path / 'x.mcap', messages)
    topics = [listed(JOINT_STATE, offered_qos_profiles=qos)]
    write_metadata(tmp_path, ['x.mcap'], version=version, topics_with_message_count=topics)
    with open_bag(tmp_path) as bag:
        assert content(bag) == expected(messages)
        assert bag.complete


# T1, T2: stamps come out as recorded


@pytest.mark.parametrize('storage', STORAGES)
def test_t1_stamps_of_zero_stay_zero_and_keep_their_place(tmp_path: Path, storage: str) -> None:
    zero = [image(START_NS + k * SECOND // 30, stamp_ns=0) for k in range(30)]
    stamped = [joints(START_NS + k * SECOND // 100) for k in range(100)]
    write(tmp_path / 'x', [*zero, *stamped], storage)
    with open_bag(tmp_path / 'x') as bag:
        for order in ('log', 'header'):
            found = list(bag.messages(order=order))
            assert [m.log_ns for m in found] == sorted(m.log_ns for m in [*zero, *stamped])
            pictures = [m for m in found if m.topic == zero[0].topic]
            assert {m.stamp_ns for m in pictures} == {0}
            assert len(pictures) == 30


@pytest.mark.parametrize('storage', STORAGES)
def test_t2_a_recorded_loop_keeps_its_rounds(tmp_path: Path, storage: str) -> None:
    """Three rounds of a bag, recorded anew: log times go on, header stamps jump back."""
    messages = [
        joints(START_NS + (loop * 10 + k) * SECOND // 10, stamp_ns=START_NS + k * SECOND // 10)
        for loop in range(3)
        for k in range(10)
    ]
    write(tmp_path / 'x', messages, storage)
    with open_bag(tmp_path / 'x') as bag:
        stamps = [m.stamp_ns for m in bag.messages()]
    assert stamps == stamps[:10] * 3
    assert sum(b < a for a, b in itertools.pairwise(stamps)) == 2


def test_t2_simulated_time_that_was_recorded_decodes(tmp_path: Path) -> None:
    clock = message('rosgraph_msgs/msg/Clock', message('builtin_interfaces/msg/Time', 5, 7))
    recorded = Recorded(
        topic='/clock', kind='rosgraph_msgs/msg/Clock', log_ns=START_NS, data=cdr(clock)
    )
    write_mcap(tmp_path / 'x.mcap', [recorded])
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages()
    assert (found.message.clock.sec, found.message.clock.nanosec) == (5, 7)
    assert found.stamp_ns is None

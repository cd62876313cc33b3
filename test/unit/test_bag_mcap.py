"""MCAP bags: every layout, and what is left of damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from bag_factory import (
    JOINT_STATE,
    SECOND,
    START_NS,
    Recorded,
    definition,
    drive,
    image,
    joints,
    write_folder,
    write_mcap,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rosbags.rosbag2 import CompressionMode, Reader, StoragePlugin

from sparkrt_ros.replay import bag_mcap
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_errors import BagError
from sparkrt_ros.replay.bag_mcap_writer import McapWriter

Content = list[tuple[str, int, bytes]]


def content(path: Path) -> Content:
    with open_bag(path) as bag:
        return [(m.topic, m.log_ns, m.raw) for m in bag.messages()]


def expected(messages: list[Recorded]) -> Content:
    return [(m.topic, m.log_ns, m.data) for m in sorted(messages, key=lambda m: m.log_ns)]


@pytest.mark.parametrize('compression', ['zstd', 'lz4', ''])
@pytest.mark.parametrize('chunk_bytes', [None, 1, 3000, 1 << 20])
@pytest.mark.parametrize('index', [True, False])
def test_every_layout(
    tmp_path: Path, compression: str, chunk_bytes: int | None, index: bool
) -> None:
    messages = drive()[::-1]
    path = tmp_path / 'x.mcap'
    write_mcap(path, messages, compression=compression, chunk_bytes=chunk_bytes, index=index)
    with open_bag(path) as bag:
        assert [(m.topic, m.log_ns, m.raw) for m in bag.messages()] == expected(messages)
        assert {name: topic.count for name, topic in bag.topics.items()} == {
            '/commands': 50,
            '/front_camera/image_raw': 30,
            '/joint_states': 100,
        }
        assert (bag.start_ns, bag.end_ns) == (START_NS, START_NS + 990_000_000)
        assert bag.warnings == ()
        assert bag.complete


@pytest.mark.parametrize('mode', [CompressionMode.NONE, CompressionMode.STORAGE])
def test_files_of_an_independent_writer(tmp_path: Path, mode: CompressionMode) -> None:
    write_folder(tmp_path / 'bag', drive(), storage=StoragePlugin.MCAP, mode=mode)
    assert content(tmp_path / 'bag') == expected(drive())


def test_our_files_are_read_by_an_independent_reader(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x.mcap', drive(), chunk_every=50)
    with Reader(tmp_path / 'x.mcap') as reader:
        found = [(c.topic, log_ns, bytes(data)) for c, log_ns, data in reader.messages()]
    assert sorted(found) == sorted(expected(drive()))


class Whole:
    """A file with and one without summary, in chunks of 20 messages."""

    def __init__(self, folder: Path, compression: str) -> None:
        self.messages = drive()
        self.files: dict[bool, bytes] = {}
        for index in (True, False):
            path = folder / f'{compression}_{index}.mcap'
            self.sizes = write_mcap(
                path, self.messages, chunk_every=20, compression=compression, index=index
            )
            self.files[index] = path.read_bytes()


@pytest.fixture(scope='module', params=['zstd', 'lz4', ''])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp('whole'), request.param)


FUZZ = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(share=st.floats(0.0, 1.0, exclude_max=True), index=st.booleans())
def test_wherever_it_is_cut_whole_chunks_come_out_and_nothing_else(
    whole: Whole, tmp_path: Path, share: float, index: bool
) -> None:
    data = whole.files[index]
    path = tmp_path / 'cut.mcap'
    path.write_bytes(data[: int(share * len(data))])
    if share * len(data) < 8:
        with pytest.raises(BagError):
            open_bag(path)
        return
    with open_bag(path) as bag:
        found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
        assert len(found) % 20 == 0
        assert found == expected(whole.messages)[: len(found)]
        assert sum(topic.count for topic in bag.topics.values()) == len(found)
        # A file cut in its summary has lost nothing.
        assert bag.complete == (len(found) == len(whole.messages) and not bag.warnings)


@FUZZ
@given(place=st.floats(0.0, 1.0, exclude_max=True), flip=st.integers(1, 255), index=st.booleans())
def test_a_flipped_byte_never_invents_a_message(
    whole: Whole, tmp_path: Path, place: float, flip: int, index: bool
) -> None:
    data = bytearray(whole.files[index])
    data[int(place * len(data))] ^= flip
    path = tmp_path / 'x.mcap'
    path.write_bytes(data)
    try:
        with open_bag(path) as bag:
            found = {(m.topic, m.log_ns, m.raw) for m in bag.messages()}
            complete = bag.complete
    except BagError:
        assert place * len(data) < 16  # what tells that it is an MCAP file
        return
    assert found <= set(expected(whole.messages))
    assert not complete or found == set(expected(whole.messages))


@FUZZ
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes_behind_the_magic_number(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / 'x.mcap'
    path.write_bytes(b'\x89MCAP0\r\n' + data)
    with open_bag(path) as bag:
        list(bag.messages())
        assert not bag.complete or not bag.warnings


@pytest.mark.parametrize('offset', [1, 100])  # the length of the record; its content
def test_a_damaged_chunk_costs_only_itself_where_the_next_one_can_be_found(
    tmp_path: Path, offset: int
) -> None:
    messages = drive()
    for index, survives in ((True, True), (False, offset == 100)):
        path = tmp_path / f'{index}.mcap'
        sizes = write_mcap(tmp_path / f'whole_{index}', messages, chunk_every=20, index=index)
        data = bytearray((tmp_path / f'whole_{index}').read_bytes())
        for byte in range(4):
            data[sizes[2] + offset + byte] ^= 0xFF
        path.write_bytes(data)
        with open_bag(path) as bag:
            found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
            after = expected(messages[80:]) if survives else []
            assert found == expected(messages[:60]) + after
            assert not bag.complete
            assert len(bag.warnings) == 1
            assert 'damaged' in bag.warnings[0] or 'lost' in bag.warnings[0]
            list(bag.messages())
            assert len(bag.warnings) == 1


def test_a_chunk_that_is_wrong_about_its_times_is_reported(tmp_path: Path) -> None:
    sizes = write_mcap(tmp_path / 'x.mcap', drive(), chunk_every=20)
    data = bytearray((tmp_path / 'x.mcap').read_bytes())
    struct.pack_into('<Q', data, sizes[2] + 9, START_NS + SECOND)
    (tmp_path / 'x.mcap').write_bytes(data)
    with open_bag(tmp_path / 'x.mcap') as bag:
        found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
        assert sorted(found) == sorted(expected(drive()))
        assert 'too late' in bag.warnings[0]
        assert bag.complete


def test_a_tail_of_zeros_as_a_file_system_leaves_it_after_a_power_cut(tmp_path: Path) -> None:
    sizes = write_mcap(tmp_path / 'whole', drive(), chunk_every=20)
    data = (tmp_path / 'whole').read_bytes()
    (tmp_path / 'x.mcap').write_bytes(data[: sizes[4]] + bytes(50_000))
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert [m.log_ns for m in bag.messages()] == [m.log_ns for m in drive()[:100]]
        assert 'no record' in bag.warnings[0]
        assert not bag.complete


def test_a_damaged_summary_is_done_without(tmp_path: Path) -> None:
    sizes = write_mcap(tmp_path / 'x.mcap', drive(), chunk_every=20)
    data = bytearray((tmp_path / 'x.mcap').read_bytes())
    data[-200] ^= 0xFF
    (tmp_path / 'x.mcap').write_bytes(data)
    assert len(sizes) == 9
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert [(m.topic, m.log_ns, m.raw) for m in bag.messages()] == expected(drive())
        assert 'checksum of the summary' in bag.warnings[0]
        assert bag.complete


def test_records_that_are_not_known_are_stepped_over(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x.mcap', drive(), index=False)
    data = (tmp_path / 'x.mcap').read_bytes()
    header = 8 + 9 + struct.unpack_from('<Q', data, 9)[0]
    foreign = struct.pack('<BQ', 0x42, 5) + b'hello' + struct.pack('<BQ', 0x90, 0)
    (tmp_path / 'x.mcap').write_bytes(data[:header] + foreign + data[header:])
    assert content(tmp_path / 'x.mcap') == expected(drive())


def test_a_channel_that_is_not_described_is_reported(tmp_path: Path) -> None:
    with McapWriter(tmp_path / 'x.mcap', index=False) as writer:
        channel = writer.add_channel(
            '/joint_states', writer.add_schema(JOINT_STATE, text=definition(JOINT_STATE))
        )
        writer.end_chunk()
        cut = writer.size
        writer.write(channel, START_NS, joints(START_NS).data)
    data = (tmp_path / 'x.mcap').read_bytes()
    header = 8 + 9 + struct.unpack_from('<Q', data, 9)[0]
    (tmp_path / 'x.mcap').write_bytes(data[:header] + data[cut:])
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert list(bag.messages()) == []
        assert 'channel 1, which it does not describe' in bag.warnings[0]
        assert not bag.complete


def test_a_bag_without_messages(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x.mcap', [])
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert list(bag.messages()) == list(bag.messages(order='header')) == []
        assert (dict(bag.topics), bag.start_ns, bag.end_ns) == ({}, 0, 0)
        assert bag.complete


@pytest.mark.parametrize('index', [True, False])
def test_a_topic_without_messages_is_listed(tmp_path: Path, index: bool) -> None:
    with McapWriter(tmp_path / 'x.mcap', index=index) as writer:
        schema = writer.add_schema(JOINT_STATE, text=definition(JOINT_STATE))
        writer.add_channel('/silent', schema)
        channel = writer.add_channel('/joint_states', schema)
        writer.write(channel, START_NS, joints(START_NS).data)
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert {name: topic.count for name, topic in bag.topics.items()} == {
            '/silent': 0,
            '/joint_states': 1,
        }


def test_times_from_zero_on(tmp_path: Path) -> None:
    """As a simulation that starts at 0 is recorded under use_sim_time."""
    for index in (True, False):
        path = tmp_path / f'{index}.mcap'
        write_mcap(path, [joints(k * SECOND) for k in range(3)], chunk_every=1, index=index)
        with open_bag(path) as bag:
            assert [m.log_ns for m in bag.messages()] == [0, SECOND, 2 * SECOND]
            assert (bag.start_ns, bag.end_ns) == (0, 2 * SECOND)


def test_an_impossible_time_costs_that_message_only(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x.mcap', [joints(1), joints(2**64 - 1, stamp_ns=2), joints(3)])
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert [m.log_ns for m in bag.messages()] == [1, 3]
        assert 'impossible time' in bag.warnings[0]
        assert not bag.complete


@pytest.mark.parametrize('index', [True, False])
def test_a_compression_that_nothing_knows_is_named(tmp_path: Path, index: bool) -> None:
    write_mcap(tmp_path / 'x.mcap', drive(), compression='lz4', chunk_every=60, index=index)
    data = (tmp_path / 'x.mcap').read_bytes()
    (tmp_path / 'x.mcap').write_bytes(data.replace(b'\x03\0\0\0lz4', b'\x03\0\0\0bz2'))
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert list(bag.messages()) == []
        assert not bag.complete
        assert "'bz2'" in bag.warnings[-1]
        assert 'and 2 more places' in bag.warnings[-1]


def test_messages_in_another_encoding_are_skipped_with_a_warning(tmp_path: Path) -> None:
    with McapWriter(tmp_path / 'x.mcap') as writer:
        schema = writer.add_schema('foxglove.Log', encoding='jsonschema', text='{}')
        writer.write(writer.add_channel('/log', schema, encoding='json'), START_NS, b'{}')
        writer.write(writer.add_channel('/none', 0, encoding=''), START_NS, b'')
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert list(bag.messages()) == []
        assert bag.warnings == (
            '/log: skipped: its messages are in json encoding, not CDR',
            '/none: skipped: its messages are in no named encoding, not CDR',
        )
        assert bag.complete


def test_chunks_in_no_order_are_unpacked_again_rather_than_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen chunks that all span the whole time, with room for two in memory."""
    messages = [
        image(START_NS + (k * 16 + chunk) * 1000, size=(64, 64))
        for chunk in range(16)
        for k in range(16)
    ]
    write_mcap(tmp_path / 'x.mcap', messages, chunk_every=16)
    size = 17 * len(messages[0].data)
    monkeypatch.setattr(bag_mcap, 'CACHE_BYTES', 2 * size)
    kept = []
    real = bag_mcap.McapReader._data

    def watched(self: bag_mcap.McapReader, number: int) -> bytes:
        data = real(self, number)
        kept.append(sum(map(len, self._cache.values())))
        return data

    monkeypatch.setattr(bag_mcap.McapReader, '_data', watched)
    assert content(tmp_path / 'x.mcap') == expected(messages)
    assert max(kept) <= 2 * size


def test_types_are_decoded_by_their_recorded_definition(tmp_path: Path) -> None:
    """A type of one's own, described in the bag as rosbag2 does."""
    text = (
        'std_msgs/Header header\nInner[] parts\nuint8 MODE=3\nstring<=10 label\n'
        + '=' * 80
        + '\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n'
        + '=' * 80
        + '\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n'
        + '=' * 80
        + '\nMSG: my_robot/Inner\nfloat32[3] xyz\n'
    )
    head = struct.pack('<4xiII5s3x', 7, 9, 5, b'base\0')
    data = b'\0\1\0\0' + head[4:] + struct.pack('<I6fI4s', 2, 1, 2, 3, 4, 5, 6, 4, b'abc\0')
    custom = Recorded(topic='/own', kind='my_robot/msg/Own', log_ns=START_NS, data=data)
    write_mcap(tmp_path / 'x.mcap', [custom], schemas={'my_robot/msg/Own': ('ros2msg', text)})
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages()
        assert found.message.label == 'abc'
        assert [list(part.xyz) for part in found.message.parts] == [[1, 2, 3], [4, 5, 6]]
        assert found.stamp_ns == 7 * SECOND + 9
        assert bag.warnings == ()

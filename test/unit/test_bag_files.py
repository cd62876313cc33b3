"""Which files make up a bag, and what is said where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from backports import zstd
from bag_factory import (
    START_NS,
    drive,
    image,
    joints,
    write_db3,
    write_folder,
    write_mcap,
    write_metadata,
)
from rosbags.rosbag2 import CompressionMode, StoragePlugin

from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_errors import BagError
from sparkrt_ros.runtime.errors import MessageError, SparkRTError

POINTER = b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n'


def values(path: Path) -> list[float]:
    with open_bag(path) as bag:
        return [m.message.position[0] for m in bag.messages(['/joint_states'])]


def numbered(count: int, *, start: int = 0) -> list:
    return [joints(START_NS + k, value=k) for k in range(start, start + count)]


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (POINTER, 'Git LFS pointer.*git lfs pull'),
        (b'#ROSBAG V2.0\nmore', 'a bag of ROS 1.*rosbags-convert'),
        (b'\x04\x22\x4d\x18lz4 frame', 'no bag'),
        (b'hello', r"no bag \(it begins with b'hello'\)"),
        (b'', 'an empty file'),
    ],
)
@pytest.mark.parametrize('name', ['x_0.mcap', 'x_0.db3', 'x_0.db3.zstd', 'anything'])
def test_what_is_no_bag_is_called_by_its_name(
    tmp_path: Path, content: bytes, said: str, name: str
) -> None:
    (tmp_path / name).write_bytes(content)
    write_metadata(tmp_path, [name])
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(BagError, match=said) as caught:
            open_bag(path)
        assert caught.value.expected
        assert name in str(caught.value) or str(tmp_path) in str(caught.value)


@pytest.mark.parametrize('content', [POINTER, b''])
def test_a_pointer_or_nothing_inside_a_compressed_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / 'x.db3.zstd').write_bytes(zstd.compress(content))
    with pytest.raises(BagError, match=r'LFS pointer|empty file'):
        open_bag(tmp_path)


def test_errors_are_of_the_one_root_and_messages_of_both_kinds() -> None:
    from sparkrt_ros.replay.bag_errors import BagMessageError

    assert issubclass(BagError, SparkRTError)
    assert issubclass(BagMessageError, BagError)
    assert issubclass(BagMessageError, MessageError)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BagError, match='found nothing'):
        open_bag(tmp_path / 'no' / 'bag')


def test_a_folder_without_bags(tmp_path: Path) -> None:
    (tmp_path / 'notes.txt').write_text('hello')
    with pytest.raises(BagError, match='a folder without bag files'):
        open_bag(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read everything')
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x.mcap', drive())
    (tmp_path / 'x.mcap').chmod(0)
    with pytest.raises(BagError, match='Permission denied'):
        open_bag(tmp_path)


def test_natural_order_without_metadata(tmp_path: Path) -> None:
    for number in (10, 9, 2, 0):  # equal times: the order of the files decides
        write_mcap(tmp_path / f'x_{number}.mcap', [joints(START_NS, value=number)])
    assert values(tmp_path) == [0, 2, 9, 10]


def test_listed_order_with_metadata(tmp_path: Path) -> None:
    for name, value in (('b.mcap', 1), ('a.mcap', 2)):
        write_mcap(tmp_path / name, [joints(START_NS, value=value)])
    write_metadata(tmp_path, ['b.mcap', 'a.mcap'])
    assert values(tmp_path) == [1, 2]


def test_paths_of_old_recorders_lead_to_the_files_beside_metadata(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    write_metadata(tmp_path, ['home/me/recordings/x_0.mcap'])
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    'text', ['', 'a: [', 'just text', '- 1', 'rosbag2_bagfile_information: 7']
)
def test_damaged_metadata_is_done_without(tmp_path: Path, text: str) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    (tmp_path / 'metadata.yaml').write_text(text)
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert bag.warnings[0].startswith('metadata.yaml: not used')
        assert bag.complete


def test_metadata_of_nonsense_is_done_without(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    write_metadata(tmp_path, ['x_0.mcap'], topics_with_message_count=[7, {'topic_metadata': 3}])
    assert values(tmp_path) == [0, 1, 2]
    write_metadata(tmp_path, [], relative_file_paths='x_0.mcap')
    assert values(tmp_path) == [0, 1, 2]


def test_a_missing_part_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    write_mcap(tmp_path / 'x_2.mcap', numbered(3, start=6))
    write_metadata(tmp_path, ['x_0.mcap', 'x_1.mcap', 'x_2.mcap'])
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 6
        assert bag.warnings == ('metadata.yaml: lists x_1.mcap, which is not there',)
        assert not bag.complete


def test_a_part_without_a_byte_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    (tmp_path / 'x_1.mcap').touch()
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert bag.warnings == ('x_1.mcap: an empty file',)
        assert not bag.complete


def test_a_part_that_was_never_fetched_is_an_error(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    (tmp_path / 'x_1.mcap').write_bytes(POINTER)
    with pytest.raises(BagError, match='git lfs pull'):
        open_bag(tmp_path)


def test_a_file_that_metadata_does_not_list_is_left_out_and_reported(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    write_mcap(tmp_path / 'x_1.mcap', numbered(3, start=3))
    write_metadata(tmp_path, ['x_0.mcap'])
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert bag.warnings == ('metadata.yaml: does not list x_1.mcap; not read',)


def test_all_files_renamed_after_recording(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'better_name.mcap', numbered(3))
    write_metadata(tmp_path, ['x_0.mcap'])
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert 'x_0.mcap, which is not there' in bag.warnings[0]


def test_two_storages_side_by_side_are_not_read_as_one(tmp_path: Path) -> None:
    write_mcap(tmp_path / 'x_0.mcap', numbered(3))
    write_db3(tmp_path / 'x_0.db3', numbered(3))
    with pytest.raises(BagError, match='name the file'):
        open_bag(tmp_path)
    assert values(tmp_path / 'x_0.db3') == [0, 1, 2]
    write_metadata(tmp_path, ['x_0.mcap'])
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize('listed', ['x_0.db3', 'x_0.db3.zstd'])
@pytest.mark.parametrize('present', ['x_0.db3', 'x_0.db3.zstd', 'x_0.db3.zst'])
def test_a_file_that_was_compressed_or_unpacked_by_hand(
    tmp_path: Path, listed: str, present: str
) -> None:
    write_db3(tmp_path / 'x_0.db3', numbered(3))
    if present != 'x_0.db3':
        packed = zstd.compress((tmp_path / 'x_0.db3').read_bytes())
        (tmp_path / present).write_bytes(packed)
        (tmp_path / 'x_0.db3').unlink()
    write_metadata(tmp_path, [listed])
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert bag.warnings == ()


def test_a_file_and_its_unfinished_compressed_form_are_one(tmp_path: Path) -> None:
    """What a recorder leaves that is killed while it compresses."""
    write_db3(tmp_path / 'x_0.db3', numbered(3))
    packed = zstd.compress((tmp_path / 'x_0.db3').read_bytes())
    (tmp_path / 'x_0.db3.zstd').write_bytes(packed[: len(packed) // 2])
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert bag.complete


MODES = [
    (StoragePlugin.MCAP, CompressionMode.NONE),
    (StoragePlugin.MCAP, CompressionMode.STORAGE),
    (StoragePlugin.MCAP, CompressionMode.MESSAGE),
    (StoragePlugin.MCAP, CompressionMode.FILE),
    (StoragePlugin.SQLITE3, CompressionMode.NONE),
    (StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
    (StoragePlugin.SQLITE3, CompressionMode.FILE),
]


@pytest.mark.parametrize(('storage', 'mode'), MODES)
@pytest.mark.parametrize('with_metadata', [True, False])
def test_every_compression_of_an_independent_writer(
    tmp_path: Path, storage: StoragePlugin, mode: CompressionMode, with_metadata: bool
) -> None:
    messages = drive()
    write_folder(tmp_path / 'bag', messages, storage=storage, mode=mode)
    if not with_metadata:
        (tmp_path / 'bag' / 'metadata.yaml').unlink()
    ordered = sorted(messages, key=lambda m: m.log_ns)
    with open_bag(tmp_path / 'bag') as bag:
        assert bag.storage == storage.name.lower()
        for order in ('log', 'header'):
            found = [(m.topic, m.log_ns, m.raw) for m in bag.messages(order=order)]
            assert found == [(m.topic, m.log_ns, m.data) for m in ordered]
        assert bag.warnings == ()


def test_what_was_unpacked_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / 'scratch'
    scratch.mkdir()
    monkeypatch.setattr('tempfile.tempdir', str(scratch))
    folder = tmp_path / 'bag'
    write_folder(folder, drive(), storage=StoragePlugin.MCAP, mode=CompressionMode.FILE)
    with open_bag(folder):
        assert [p.name for p in scratch.rglob('*.mcap')] == ['bag.mcap']
    assert list(scratch.iterdir()) == []
    (folder / 'bag.mcap.zstd').write_bytes(zstd.compress(b'hello'))
    with pytest.raises(BagError, match='no bag'):
        open_bag(folder)
    assert list(scratch.iterdir()) == []


def test_a_compressed_file_cut_short(tmp_path: Path) -> None:
    messages = [image(START_NS + k * 1000, size=(64, 48)) for k in range(200)]
    write_mcap(tmp_path / 'x_0.mcap', messages, chunk_every=5, compression='')
    packed = zstd.compress((tmp_path / 'x_0.mcap').read_bytes())
    (tmp_path / 'x_0.mcap').unlink()
    (tmp_path / 'x_0.mcap.zstd').write_bytes(packed[: len(packed) // 2])
    with open_bag(tmp_path) as bag:
        found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
        assert found == [(m.topic, m.log_ns, m.data) for m in messages[: len(found)]]
        assert 50 < len(found) < 150
        assert 'the compressed file is cut short' in bag.warnings[0]
        assert not bag.complete


def test_a_compressed_file_of_several_frames_and_great_expansion(tmp_path: Path) -> None:
    messages = numbered(10)
    write_mcap(tmp_path / 'x.mcap', messages, compression='')
    data = (tmp_path / 'x.mcap').read_bytes()
    (tmp_path / 'x.mcap').unlink()
    frames = [zstd.compress(data[:500]), zstd.compress(data[500:]), zstd.compress(b'')]
    (tmp_path / 'x.mcap.zstd').write_bytes(b''.join(frames))
    assert values(tmp_path) == list(range(10))


def test_a_part_too_damaged_to_open_costs_only_itself(tmp_path: Path) -> None:
    write_db3(tmp_path / 'x_0.db3', numbered(3))
    data = bytearray((tmp_path / 'x_0.db3').read_bytes())
    data[4096:8192] = bytes(4096)
    (tmp_path / 'x_1.db3').write_bytes(data)
    with open_bag(tmp_path) as bag:
        assert len(list(bag.messages())) == 3
        assert not bag.complete
        assert 'x_1.db3' in bag.warnings[0]
    (tmp_path / 'x_0.db3').unlink()
    with pytest.raises(BagError, match='too damaged'):
        open_bag(tmp_path)

"""Messages of a bag: in which order they come, how they are decoded, who may read at once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bag_factory import (
    IMAGE,
    JOINT_STATE,
    SECOND,
    START_NS,
    Recorded,
    cdr,
    commands,
    drive,
    header,
    image,
    joints,
    message,
    write_db3,
    write_mcap,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.replay import bag_order
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_errors import BagError, BagMessageError
from sparkrt_ros.replay.bag_storage import Entry, merge_by_time
from sparkrt_ros.replay.bag_types import ros2_name


@pytest.fixture
def driven(tmp_path: Path) -> Path:
    write_mcap(tmp_path / 'driven.mcap', drive(), chunk_every=30)
    return tmp_path / 'driven.mcap'


def test_topics_keep_their_full_names(tmp_path: Path) -> None:
    names = ['/robot1/joint_states', '/robot2/joint_states', '/joint_states']
    write_mcap(tmp_path / 'x.mcap', [joints(START_NS + k, topic=n) for k, n in enumerate(names)])
    with open_bag(tmp_path / 'x.mcap') as bag:
        assert sorted(bag.topics) == sorted(names)
        assert [m.topic for m in bag.messages(['/robot2/joint_states'])] == names[1:2]
        assert [m.topic for m in bag.messages(names[:2])] == names[:2]
        assert list(bag.messages([])) == list(bag.messages(['/robot3/joint_states'])) == []


def test_what_is_known_before_reading(driven: Path) -> None:
    with open_bag(str(driven)) as bag:
        assert bag.path == driven
        assert bag.topics['/joint_states'].type == JOINT_STATE
        assert bag.topics['/front_camera/image_raw'].count == 30
        assert (bag.start_ns, bag.end_ns) == (START_NS, START_NS + 990_000_000)


def test_an_order_that_does_not_exist(driven: Path) -> None:
    with open_bag(driven) as bag, pytest.raises(BagError, match=r"'arrival'.*log or header"):
        bag.messages(order='arrival')


def test_the_digest_is_that_of_the_files_one_after_the_other(tmp_path: Path) -> None:
    write_db3(tmp_path / 'x_0.db3', drive())
    write_db3(tmp_path / 'x_1.db3', drive(start_ns=START_NS + SECOND))
    data = [(tmp_path / name).read_bytes() for name in ('x_0.db3', 'x_1.db3')]
    with open_bag(tmp_path) as bag:
        assert bag.digest() == hashlib.sha256(b''.join(data)).hexdigest()
    with open_bag(tmp_path / 'x_0.db3') as bag:
        assert bag.digest() == hashlib.sha256(data[0]).hexdigest()


def test_one_topic_may_be_given_as_it_is(driven: Path) -> None:
    with open_bag(driven) as bag:
        assert {m.topic for m in bag.messages('/commands')} == {'/commands'}


@pytest.mark.parametrize(
    ('module', 'compression'), [('rosbags', ''), ('lz4', 'lz4'), ('backports', 'zstd')]
)
def test_a_library_that_is_not_installed_is_named(
    tmp_path: Path, module: str, compression: str
) -> None:
    if module == 'backports' and sys.version_info >= (3, 14):
        pytest.skip('part of Python')
    write_mcap(tmp_path / 'x.mcap', drive(), compression=compression)
    code = (
        f'import sys; sys.modules["{module}"] = None\n'
        'from sparkrt_ros.replay.bag import open_bag\n'
        'from sparkrt_ros.replay.bag_errors import BagError\n'
        'try:\n    list(open_bag(sys.argv[1]).messages())\n'
        'except BagError as error:\n    print(error)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code, str(tmp_path / 'x.mcap')],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert module in done.stdout
    assert 'sparkrt-ros[bags]' in done.stdout


# Decoding


def test_fields_are_those_of_the_ros_message(driven: Path) -> None:
    with open_bag(driven) as bag:
        joint = next(bag.messages(['/joint_states']))
        picture = next(bag.messages(['/front_camera/image_raw']))
        command = next(bag.messages(['/commands']))
    assert stamp_to_ns(joint.message.header.stamp) == joint.stamp_ns == START_NS
    assert list(joint.message.name) == ['a', 'b']
    assert list(joint.message.position) == [0.0, 2.0]
    assert (picture.message.width, picture.message.encoding) == (16, 'rgb8')
    assert command.stamp_ns is None
    assert list(command.message.data) == [0.0]


def test_messages_outlive_their_bag_and_cannot_be_changed(driven: Path) -> None:
    with open_bag(driven) as bag:
        found = list(bag.messages())
    pictures = [m.message.data for m in found if m.topic.startswith('/front')]
    assert all(isinstance(pixels, np.ndarray) and pixels.size == 576 for pixels in pictures)
    with pytest.raises(ValueError, match='read-only'):
        pictures[0][0] = 1


def test_nothing_is_decoded_before_it_is_looked_at(
    driven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    real = bag_order.Decoder.decode
    monkeypatch.setattr(
        bag_order.Decoder,
        'decode',
        lambda self, raw, *, where: decoded.append(where) or real(self, raw, where=where),
    )
    with open_bag(driven) as bag:
        found = list(bag.messages(order='header'))
        assert {m.stamp_ns for m in found if m.topic != '/commands'}
        assert decoded == []
        assert found[3].message is found[3].message
        assert len(decoded) == 1


def test_big_endian_messages(tmp_path: Path) -> None:
    big = [joints(START_NS + k, value=k, little_endian=False) for k in range(3)]
    assert big[0].data[1] == 0
    write_mcap(tmp_path / 'x.mcap', big)
    with open_bag(tmp_path / 'x.mcap') as bag:
        found = list(bag.messages(order='header'))
    assert [m.message.position[0] for m in found] == [0, 1, 2]
    assert [m.stamp_ns for m in found] == [START_NS, START_NS + 1, START_NS + 2]


@pytest.mark.parametrize('data', [b'', b'\0\1', b'\0\1\0\0\1\2', b'\0\7\0\0' + bytes(60)])
def test_a_message_that_does_not_decode_hurts_only_who_looks_at_it(
    tmp_path: Path, data: bytes
) -> None:
    bad = Recorded(topic='/joint_states', kind=JOINT_STATE, log_ns=START_NS + 1, data=data)
    write_mcap(tmp_path / 'x.mcap', [joints(START_NS), bad, joints(START_NS + 2)])
    with open_bag(tmp_path / 'x.mcap') as bag:
        for order in ('log', 'header'):
            found = list(bag.messages(order=order))
            assert [m.log_ns for m in found] == [START_NS, START_NS + 1, START_NS + 2]
            for read in (lambda m: m.message, lambda m: m.stamp_ns):
                with pytest.raises(BagMessageError, match=r'/joint_states at .*JointState in CDR'):
                    read(found[1])
        assert list(found[2].message.position) == [0.0, 2.0]


def test_a_stamp_that_does_not_come_first(tmp_path: Path) -> None:
    text = 'float64 value\nstd_msgs/Header header\n'
    data = b'\0\1\0\0' + np.array([1.5]).tobytes() + cdr(header(START_NS - 7))[4:]
    recorded = Recorded(topic='/own', kind='my/msg/Late', log_ns=START_NS, data=data)
    write_mcap(tmp_path / 'x.mcap', [recorded], schemas={'my/msg/Late': ('ros2msg', text)})
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages(order='header')
        assert found.stamp_ns == START_NS - 7
        assert found.message.value == 1.5


@pytest.mark.parametrize('separator', ['=' * 80 + '\n', ''])
def test_types_described_in_idl(tmp_path: Path, separator: str) -> None:
    text = (
        separator
        + ('IDL: my/msg/Own\n' if separator else '')
        + 'module my { module msg { struct Own { float value; sequence<int32> more; }; }; };\n'
    )
    data = b'\0\1\0\0' + np.float32(1.5).tobytes() + np.array([2, 7, 8], dtype='<i4').tobytes()
    recorded = Recorded(topic='/own', kind='my/msg/Own', log_ns=START_NS, data=data)
    write_mcap(tmp_path / 'x.mcap', [recorded], schemas={'my/msg/Own': ('ros2idl', text)})
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages()
        assert (found.message.value, list(found.message.more)) == (1.5, [7, 8])


@pytest.mark.parametrize('text', ['Missing thing\n', 'float64 x\nfloat64 x\n', '%%%', ''])
def test_a_definition_that_cannot_be_used_costs_that_topic(tmp_path: Path, text: str) -> None:
    odd = Recorded(topic='/odd', kind='my/msg/Odd', log_ns=START_NS, data=b'\0\1\0\0')
    write_mcap(
        tmp_path / 'x.mcap', [odd, joints(START_NS)], schemas={'my/msg/Odd': ('ros2msg', text)}
    )
    with open_bag(tmp_path / 'x.mcap') as bag:
        found = [m.topic for m in bag.messages()]
        assert found == ['/joint_states']
        assert len(bag.warnings) == 1


def test_ways_of_writing_a_type() -> None:
    for name in ('sensor_msgs/msg/Image', 'sensor_msgs/Image', 'sensor_msgs::msg::Image'):
        assert ros2_name(name) == IMAGE
    assert ros2_name('') == ''


def test_messages_go_through_the_conversions_of_the_live_node(tmp_path: Path) -> None:
    from sparkrt_ros.convert.image import image_to_rgb

    write_mcap(tmp_path / 'x.mcap', [image(START_NS)])
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages()
    pixels = np.asarray(found.message.data).reshape(12, 16, 3)
    assert np.array_equal(image_to_rgb(found.message), pixels)


@pytest.mark.ros
def test_what_ros_serialises_is_what_comes_out(tmp_path: Path) -> None:
    rclpy_serialization = pytest.importorskip('rclpy.serialization')
    messages = pytest.importorskip('sensor_msgs.msg')
    # The empty arrays make rclpy append bytes that no field has.
    original = messages.JointState(name=['x', 'yy', 'zzz'], position=[1.0, -2.5, 3e-9])
    original.header.stamp.sec, original.header.stamp.nanosec = 12, 34
    original.header.frame_id = 'base_link'
    data = rclpy_serialization.serialize_message(original)
    recorded = Recorded(topic='/j', kind=JOINT_STATE, log_ns=START_NS, data=bytes(data))
    write_mcap(tmp_path / 'x.mcap', [recorded])
    with open_bag(tmp_path / 'x.mcap') as bag:
        (found,) = bag.messages()
    assert list(found.message.name) == list(original.name)
    assert list(found.message.position) == list(original.position)
    assert found.message.header.frame_id == 'base_link'
    assert found.stamp_ns == 12 * SECOND + 34


# Order


TIMES = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=4)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(files=TIMES, storage=st.sampled_from(['mcap', 'db3']), chunk=st.integers(1, 5))
def test_order_is_a_stable_sort_of_all_files(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], storage: str, chunk: int
) -> None:
    folder = tmp_path_factory.mktemp('order')
    written = []
    for number, times in enumerate(files):
        stamps = [(time * 7919) % 13 for time in times]
        messages = [
            joints(time, stamp_ns=stamp, value=len(written) + k)
            for k, (time, stamp) in enumerate(zip(times, stamps, strict=True))
        ]
        written += messages
        path = folder / f'x_{number}.{storage}'
        if storage == 'mcap':
            write_mcap(path, messages, chunk_every=chunk)
        else:
            write_db3(path, messages)
    with open_bag(folder) as bag:
        by_log = list(bag.messages())
        by_header = list(bag.messages(order='header'))
    in_order = sorted(written, key=lambda m: m.log_ns)
    assert [m.raw for m in by_log] == [m.data for m in in_order]
    keyed = sorted(by_log, key=lambda m: m.stamp_ns or m.log_ns)
    assert [m.raw for m in by_header] == [m.raw for m in keyed]


def test_header_order_mixes_messages_with_and_without_stamp(tmp_path: Path) -> None:
    messages = [joints(START_NS + 30, stamp_ns=START_NS + 10), commands(START_NS + 20)]
    write_mcap(tmp_path / 'x.mcap', messages)
    with open_bag(tmp_path / 'x.mcap') as bag:
        found = [m.topic for m in bag.messages(order='header')]
    assert found == ['/joint_states', '/commands']


def test_sources_are_opened_only_when_they_are_due() -> None:
    opened = []

    def source(start: int) -> tuple[int, object]:
        def entries() -> Iterator[Entry]:
            opened.append(start)
            yield from ((start + k, 0, 0) for k in range(3))

        return start, entries

    merged = merge_by_time([source(0), source(10), source(2)])
    assert [next(merged)[1][0] for _ in range(2)] == [0, 1]
    assert opened == [0]
    assert [entry[0] for _, entry in merged] == [2, 2, 3, 4, 10, 11, 12]
    assert opened == [0, 2, 10]


def test_more_files_than_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bag_order, '_MOST_IDLE_FILES', 3)
    for number in range(12):  # all span the whole time
        times = (START_NS + number, START_NS + 1000 - number)
        write_mcap(tmp_path / f'x_{number}.mcap', [joints(t) for t in times])
    with open_bag(tmp_path) as bag:
        for order in ('log', 'header'):
            times_ns = [m.log_ns for m in bag.messages(order=order)]
            assert len(times_ns) == 24
            assert times_ns == sorted(times_ns)


# Several readers, and ends before the end


def test_iterations_side_by_side_and_in_threads(driven: Path) -> None:
    with open_bag(driven) as bag:
        expected = [m.raw for m in bag.messages()]
        pairs = list(zip(bag.messages(), bag.messages(), strict=True))
        assert [a.raw for a, _ in pairs] == [b.raw for _, b in pairs] == expected
        with ThreadPoolExecutor(4) as pool:
            passes = [pool.submit(lambda: [m.raw for m in bag.messages()]) for _ in range(8)]
            assert all(done.result() == expected for done in passes)


@pytest.mark.parametrize('storage', ['mcap', 'db3'])
def test_an_iteration_may_go_on_in_another_thread(tmp_path: Path, storage: str) -> None:
    write = write_mcap if storage == 'mcap' else write_db3
    write(tmp_path / 'x', drive())
    with open_bag(tmp_path / 'x') as bag:
        messages = bag.messages()
        found = [next(messages)]
        thread = threading.Thread(target=lambda: found.extend(messages))
        thread.start()
        thread.join()
    assert len(found) == len(drive())


def test_one_message_may_be_decoded_by_many_threads(driven: Path) -> None:
    with open_bag(driven) as bag:
        found = list(bag.messages(['/joint_states']))
    with ThreadPoolExecutor(8) as pool:
        decoded = list(pool.map(lambda k: found[k % 5].message.position[1], range(400)))
    assert set(decoded) == {2.0}


def test_an_iteration_that_is_given_up_leaves_no_file_open(driven: Path) -> None:
    handles = Path('/proc/self/fd')
    with open_bag(driven) as bag:
        before = len(list(handles.iterdir()))
        messages = bag.messages()
        next(messages)
        messages.close()
        assert len(list(handles.iterdir())) == before


def test_the_same_topic_with_two_types_is_reported(tmp_path: Path) -> None:
    stamp = message('std_msgs/msg/Header', message('builtin_interfaces/msg/Time', 1, 2), 'x')
    other = Recorded(topic='/j', kind='std_msgs/msg/Header', log_ns=START_NS, data=cdr(stamp))
    write_mcap(tmp_path / 'x_0.mcap', [joints(START_NS, topic='/j')])
    write_mcap(tmp_path / 'x_1.mcap', [other])
    with open_bag(tmp_path) as bag:
        assert bag.topics['/j'].count == 2
        assert f'{JOINT_STATE} and std_msgs/msg/Header' in bag.warnings[0]
        assert len(list(bag.messages())) == 2

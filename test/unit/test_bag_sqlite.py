"""SQLite bags: every layout that recorders wrote, and what is left of damaged ones."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest
from bag_factory import JOINT_STATE, START_NS, Recorded, drive, image, joints, write_db3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_errors import BagError

PAGE = 4096


def content(path: Path) -> list[tuple[str, int, bytes]]:
    with open_bag(path) as bag:
        return [(m.topic, m.log_ns, m.raw) for m in bag.messages()]


def expected(messages: list[Recorded]) -> list[tuple[str, int, bytes]]:
    return [(m.topic, m.log_ns, m.data) for m in sorted(messages, key=lambda m: m.log_ns)]


@pytest.mark.parametrize('version', [1, 2, 3, 4])
@pytest.mark.parametrize('indexed', [True, False])
@pytest.mark.parametrize('packed', [True, False])
def test_every_layout(tmp_path: Path, version: int, indexed: bool, packed: bool) -> None:
    messages = drive()[::-1]
    write_db3(tmp_path / 'x.db3', messages, version=version, indexed=indexed, packed=packed)
    assert content(tmp_path / 'x.db3') == [
        (m.topic, m.log_ns, m.data) for m in sorted(messages, key=lambda m: m.log_ns)
    ]


def test_names_with_characters_that_mean_something_in_a_uri(tmp_path: Path) -> None:
    path = tmp_path / 'a?b=c#d%41 e.db3'
    write_db3(path, drive())
    assert content(path) == expected(drive())


class Whole:
    """A database with a tree of several levels and rows that fill several pages."""

    def __init__(self, path: Path, messages: list[Recorded]) -> None:
        self.data = path.read_bytes()
        self.messages = messages
        self.roots = roots(path)


@pytest.fixture(scope='module')
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    messages = drive(seconds=2.0)
    messages += [image(START_NS + k * 10_000_000 + 1, size=(40, 80)) for k in range(100)]
    messages += [joints(START_NS + 7 + k * 1_000_000) for k in range(3000)]
    path = tmp_path_factory.mktemp('whole') / 'x.db3'
    write_db3(path, messages)
    return Whole(path, messages)


def roots(path: Path) -> dict[str, int]:
    """Where the trees of the database begin."""
    database = sqlite3.connect(path)
    found = dict(database.execute('SELECT name, rootpage FROM sqlite_master'))
    database.close()
    return found


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_wherever_it_is_cut_what_comes_out_is_what_went_in(
    whole: Whole, tmp_path: Path, share: float
) -> None:
    cut = int(share * len(whole.data))
    path = tmp_path / 'cut.db3'
    path.write_bytes(whole.data[:cut])
    try:
        with open_bag(path) as bag:
            found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
            complete, counted = bag.complete, sum(t.count for t in bag.topics.values())
    except BagError:
        assert share < 0.1  # the table of topics is gone
        return
    assert not complete
    assert counted == len(found)
    assert set(found) <= set(expected(whole.messages))
    assert [m[1] for m in found] == sorted(m[1] for m in found)
    # Rows are written one after the other, and pages hold little else.
    sizes = itertools.accumulate(len(m.data) for m in whole.messages)
    early = [m for m, size in zip(whole.messages, sizes, strict=True) if size < 0.6 * cut - 50000]
    assert set(expected(early)) <= set(found)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(page=st.integers(1, 10_000), filling=st.sampled_from([b'\0', b'\xff', b'\x0d\x05\x01']))
def test_a_page_that_is_lost_costs_only_what_was_on_it(
    whole: Whole, tmp_path: Path, page: int, filling: bytes
) -> None:
    damaged = bytearray(whole.data)
    page = page % (len(damaged) // PAGE)
    damaged[page * PAGE : (page + 1) * PAGE] = (filling * PAGE)[:PAGE]
    path = tmp_path / 'damaged.db3'
    path.write_bytes(damaged)
    try:
        found = content(path)
    except BagError:
        assert page + 1 in (1, whole.roots['topics'])  # the head of the file, or its topics
        return
    known = {(m.topic, m.log_ns) for m in whole.messages}
    assert {m[:2] for m in found} <= known
    assert [m[1] for m in found] == sorted(m[1] for m in found)
    if page + 1 != whole.roots['messages']:
        assert len(found) >= len(whole.messages) - 50


def test_a_damaged_index_is_not_needed(tmp_path: Path) -> None:
    messages = [joints(START_NS + k) for k in range(3000)]
    path = tmp_path / 'x.db3'
    write_db3(path, messages)
    root = roots(path)['timestamp_idx']
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = b'\xff' * PAGE
    path.write_bytes(data)
    with open_bag(path) as bag:
        found = [(m.topic, m.log_ns, m.raw) for m in bag.messages()]
        assert found == expected(messages)
        assert 'every message is still there' in bag.warnings[0]
        assert bag.complete


def test_messages_of_a_topic_that_is_not_described_are_reported(tmp_path: Path) -> None:
    path = tmp_path / 'x.db3'
    write_db3(path, drive())
    database = sqlite3.connect(path)
    with database:
        database.execute("DELETE FROM topics WHERE name = '/commands'")
    database.close()
    with open_bag(path) as bag:
        assert [m for m in bag.messages() if m.topic == '/commands'] == []
        assert not bag.complete
        assert '50 messages of topic' in bag.warnings[0]


def test_rows_without_data_are_left_out_and_reported(tmp_path: Path) -> None:
    path = tmp_path / 'x.db3'
    write_db3(path, drive())
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE messages SET data = 'text' WHERE id = 5")
    database.close()
    with open_bag(path) as bag:
        assert len(list(bag.messages())) == len(drive()) - 1
        assert bag.warnings == ('x.db3: messages lost: no data (row 5)',)
        assert not bag.complete


@pytest.mark.parametrize('statement', ['CREATE TABLE other(x)', 'CREATE TABLE topics(x)', ''])
def test_a_database_that_is_no_bag(tmp_path: Path, statement: str) -> None:
    database = sqlite3.connect(tmp_path / 'x.db3')
    database.execute('PRAGMA user_version = 1')
    database.execute(statement or 'VACUUM')
    database.close()
    with pytest.raises(BagError, match='no bag, or too damaged'):
        open_bag(tmp_path / 'x.db3')


def test_a_bag_without_messages(tmp_path: Path) -> None:
    write_db3(tmp_path / 'x.db3', [])
    with open_bag(tmp_path / 'x.db3') as bag:
        assert list(bag.messages()) == list(bag.messages(order='header')) == []
        assert (dict(bag.topics), bag.start_ns, bag.end_ns) == ({}, 0, 0)
        assert bag.complete


def test_a_message_packed_by_itself_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / 'x.db3'
    write_db3(path, drive(), packed=True)
    database = sqlite3.connect(path)
    with database:
        database.execute('UPDATE messages SET data = substr(data, 1, 20) WHERE id = 5')
    database.close()
    with open_bag(path) as bag:
        assert len(list(bag.messages([m.topic for m in drive()]))) == len(drive()) - 1
        assert not bag.complete


def test_a_definition_that_differs_from_the_built_in_one_is_used(tmp_path: Path) -> None:
    """As of a release whose message had fewer fields."""
    text = 'std_msgs/Header header\nstring[] name\nfloat64[] position\n' + '=' * 80
    text += '\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n'
    messages = [joints(START_NS)]
    short = messages[0].data[:-8]  # without the two empty arrays
    write_db3(
        tmp_path / 'x.db3',
        [Recorded(topic='/j', kind=JOINT_STATE, log_ns=START_NS, data=short)],
        definitions={JOINT_STATE: ('ros2msg', text)},
    )
    with open_bag(tmp_path / 'x.db3') as bag:
        (found,) = bag.messages()
    assert list(found.message.position) == [0.0, 2.0]
    assert not hasattr(found.message, 'velocity')

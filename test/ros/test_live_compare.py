"""How live is compared with offline: matching, differences and their causes; without processes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from bag_factory import START_NS, drive, joints, write_mcap
from parity_bags import contract

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import TraceEntry
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes.policy_messages import chunk_message
from sparkrt_ros.nodes.trace import content_crc
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.live_compare import (
    Heard,
    Matcher,
    compare,
    difference_of_chunks,
    differences_of_sequence,
    explain,
)
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.replay.live_nodes import LocalDomain
from sparkrt_ros.replay.live_offline import BagWithout, OfflineRun, numbered
from sparkrt_ros.replay.live_player import Input, LivePlayer, LiveStalled
from sparkrt_ros.replay.live_result import Difference, DroppedMessage, LiveResult
from sparkrt_ros.runtime.types import ActionChunk

pytestmark = pytest.mark.ros

MS = 1_000_000
TOPIC = '/joint_states'


@pytest.fixture
def bag(tmp_path):
    write_mcap(tmp_path / 'bag.mcap', drive(seconds=0.2))
    with open_bag(tmp_path / 'bag.mcap') as opened:
        yield opened


def entries_of(bag, *, without=(), more=()) -> list[TraceEntry]:
    """A trace of a node that took the joint states of ``bag``, but for some."""
    found = []
    for key, message in numbered(bag.messages([TOPIC])):
        if key[1] not in without:
            entry = TraceEntry(kind=TraceEntry.MESSAGE, name='arm')
            entry.stamp.sec, entry.stamp.nanosec = divmod(message.stamp_ns, 1_000_000_000)
            entry.number = content_crc(message.message)
            found.append(entry)
        found += [entry for at, entry in more if at == key[1]]
    return found


def match(bag, entries) -> Matcher:
    matcher = Matcher(entries, node='policy node')
    for key, message in numbered(bag.messages([TOPIC])):
        matcher.offer('arm', key, message)
    return matcher


def test_messages_that_did_not_enter_a_node_are_found_by_stamp_and_content(bag):
    matcher = match(bag, entries_of(bag, without=(0, 7, 8, 19)))
    assert [key[1] for key in matcher.dropped] == [0, 7, 8, 19]
    assert [drop.stamp_ns for drop in matcher.dropped.values()] == [
        START_NS + number * 10 * MS for number in (0, 7, 8, 19)
    ]
    assert matcher.foreign == 0


def test_nothing_is_missing_where_everything_entered(bag):
    matcher = match(bag, entries_of(bag))
    assert matcher.dropped == {}
    assert matcher.foreign == 0


def test_a_message_of_another_publisher_is_noticed(bag):
    stranger = TraceEntry(kind=TraceEntry.MESSAGE, name='arm', number=1)
    matcher = match(bag, entries_of(bag, more=[(5, stranger)]))
    assert matcher.foreign > 0


def test_the_content_counts_not_only_the_stamp(bag):
    entries = entries_of(bag)
    entries[3].number ^= 1
    assert match(bag, entries).foreign > 0


def test_a_bag_without_some_of_its_messages_keeps_the_order_of_the_others(bag):
    rest = [m.log_ns for m in BagWithout(bag, [(TOPIC, 2), (TOPIC, 3)]).messages([TOPIC])]
    assert rest == [m.log_ns for k, m in numbered(bag.messages([TOPIC])) if k[1] not in (2, 3)]
    assert len(rest) == 18


def chunk(number: int, *, front_ns: int = 10 * MS, value: float = 0.5) -> ActionChunk:
    return ActionChunk(
        actions=np.full((4, 2), value, np.float32),
        joint_names=('a', 'b'),
        observation_stamp_ns=front_ns,
        dt_s=0.1,
        epoch=1,
        chunk_id=number,
        sample_stamps_ns={'front': front_ns, 'arm': front_ns - 2 * MS},
    )


def on_the_wire(made: ActionChunk) -> ActionChunkMessage:
    return chunk_message(made, session_id=1, now_ns=made.observation_stamp_ns + MS)


def test_a_chunk_is_the_same_only_byte_for_byte():
    made = chunk(1)
    assert difference_of_chunks(on_the_wire(made), made) == ''
    other = chunk(1, value=float(np.nextafter(np.float32(0.5), np.float32(1))))
    text = difference_of_chunks(on_the_wire(made), other)
    assert 'same snapshot, other values' in text
    text = difference_of_chunks(on_the_wire(made), chunk(1, front_ns=20 * MS))
    assert text == (
        'different snapshot (arm 0.008000000 instead of 0.018000000, '
        'front 0.010000000 instead of 0.020000000)'
    )
    shorter = on_the_wire(made)
    shorter.data = shorter.data[:6]
    assert difference_of_chunks(shorter, made) == '6 values instead of 8'
    later = on_the_wire(made)
    later.epoch = 2
    assert 'same actions, but' in difference_of_chunks(later, made)


def test_what_is_missing_or_too_much_is_a_difference_of_its_own():
    made = [chunk(1), chunk(2, front_ns=50 * MS)]
    offline = OfflineRun(chunks=tuple(made), commands={'arm': ((5, b'a'), (6, b'b'))})
    heard = Heard(chunks=[on_the_wire(made[0])], commands={'arm': [b'a', b'x', b'c']})
    found = compare(heard, offline)
    assert [(d.kind, d.index, d.text, d.is_heard) for d in found] == [
        ('chunk', 1, 'missing live', False),
        ('command', 1, 'arm has other bytes', True),
        ('command', 2, 'arm is not there offline', True),
    ]
    same = Heard(chunks=[on_the_wire(c) for c in made], commands={'arm': [b'a', b'b']})
    assert compare(same, offline) == []


def test_commands_that_were_overwritten_are_named_and_those_that_do_not_follow_are_not_excused():
    wanted = [(n, bytes([n])) for n in range(6)]
    found = list(differences_of_sequence('arm', [b'\1', b'\3', b'\5'], wanted))
    assert [d.index for d in found] == [0, 2, 4]
    assert all('overwritten' in d.cause and not d.is_heard for d in found)
    found = list(differences_of_sequence('arm', [b'\0', b'x', b'\1'], wanted[:2]))
    assert [(d.index, d.cause, d.is_heard) for d in found] == [(1, '', True)]


def test_the_cause_is_the_dropped_sample_or_else_what_was_dropped_last_before():
    drops = [
        DroppedMessage(topic='/front', stamp_ns=stamp_ns, node='policy node')
        for stamp_ns in (30, 10, 20)
    ]
    chunk_31 = Difference(kind='chunk', index=0, time_ns=31, text='', lacked_ns=(20,))
    command_15 = Difference(kind='command', index=0, time_ns=15, text='')
    chunk_5 = Difference(kind='chunk', index=0, time_ns=5, text='')
    causes = [item.cause for item in explain([chunk_31, command_15, chunk_5], drops)]
    assert causes == [
        f'dropped frame /front 0.{stamp_ns:09d} (policy node)' for stamp_ns in (20, 10, 10)
    ]


def result(**changes) -> LiveResult:
    values = {
        'bag': 'bag',
        'robot': 'r',
        'pacing': 'step by step',
        'receipt': {},
        'digest': '',
        'chunks': 3,
        'chunks_identical': 3,
        'commands': 9,
        'commands_identical': 9,
    }
    return LiveResult(**{**values, **changes})


def test_the_band_is_the_worst_of_what_was_found():
    difference = Difference(kind='chunk', index=0, time_ns=0, text='differs')
    named = Difference(kind='chunk', index=0, time_ns=0, text='differs', cause='dropped')
    drop = DroppedMessage(topic='/front', stamp_ns=1, node='policy node')
    assert result().band == 'pass'
    assert result(dropped=(drop,)).band == 'warn'
    assert result(differences=(named,)).band == 'warn'
    assert result(differences=(named, difference)).band == 'fail'
    assert result(chunks=0, chunks_identical=0).band == 'fail', 'nothing was compared'
    assert result().to_dict()['band'] == 'pass'
    many = result(differences=(difference,) * 50).lines(most=3)
    assert many[-1] == '... and 47 more'
    assert sum('NO CAUSE FOUND' in line for line in many) == 3


def test_nodes_that_do_not_come_are_named(ros_domain, tmp_path, monkeypatch):
    import yaml

    monkeypatch.setenv('ROS_DOMAIN_ID', str(ros_domain))
    path = tmp_path / 'robot.yaml'
    path.write_text(yaml.safe_dump(contract()))
    inputs = [
        Input(topic=TOPIC, type='sensor_msgs/msg/JointState', to_policy=('arm',), to_streamer=())
    ]
    checks = []
    with LocalDomain() as domain:
        ear = LiveEar(load_contract(str(path)), domain=domain.number, namespace='')
        player = LivePlayer(ear, inputs, period_ns=MS, check=lambda: checks.append(1))
        with pytest.raises(LiveStalled) as caught:
            player.wait_ready(limit_s=0.5)
        ear.close()
    text = str(caught.value)
    for part in ('/joint_states (0 of 1 readers)', 'policy node: no trace', '/clock'):
        assert part in text
    assert checks


def test_one_content_has_one_number_whichever_library_decoded_it(bag):
    from rclpy.serialization import deserialize_message
    from sensor_msgs.msg import Image, JointState

    kinds = {TOPIC: JointState, '/front_camera/image_raw': Image}
    numbers = set()
    for message in bag.messages(list(kinds)):
        decoded = deserialize_message(message.raw, kinds[message.topic])
        assert content_crc(decoded) == content_crc(message.message)
        numbers.add(content_crc(decoded))
    assert len(numbers) > 5
    assert content_crc(SimpleNamespace(data=b'')) == 0
    moved = joints(START_NS, value=1.0)
    assert moved.data != joints(START_NS, value=2.0).data

"""The thread that sends commands when they are due, with real publishers."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.publisher import Publisher
from rclpy.serialization import serialize_message
from ros_fixtures import TINY_ROBOT
from std_msgs.msg import Float64MultiArray
from streamer_rig import CONTRACT

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.command_sender import MAX_LOADS, CommandSender, Load, SendError
from sparkrt_ros.nodes.streamer_outlet import CommandOutlet

pytestmark = pytest.mark.ros

MS = 1_000_000
SOON_NS = 20 * MS
NEVER_NS = 3_600_000 * MS
LIMIT_S = 30.0


class Ear:
    """Two topics, heard on a thread; what came, with the source time stamps."""

    def __init__(self, node) -> None:
        self.heard: list[tuple[str, float]] = []
        self.stamps_ns: list[int] = []
        self.changed = threading.Condition()
        self.node = node
        self.publishers = {}
        for name in ('arm', 'gripper'):
            node.create_subscription(Float64MultiArray, name, self._take(name), 10)
            self.publishers[name] = node.create_publisher(Float64MultiArray, name, qos.COMMAND)

    def listen(self, topic: str) -> None:
        self.node.create_subscription(Float64MultiArray, topic, self._take(topic), 10)

    def _take(self, name: str):
        def take(message: Float64MultiArray, info) -> None:
            with self.changed:
                self.heard.append((name, message.data[0]))
                self.stamps_ns.append(info['source_timestamp'])
                self.changed.notify_all()

        return take

    def load(self, value: float, *names: str) -> Load:
        content = serialize_message(Float64MultiArray(data=[value]))
        return Load((self.publishers[name], content) for name in names or self.publishers)

    def wait(self, count: int) -> list[tuple[str, float]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= count, LIMIT_S), self.heard
            return list(self.heard)


@pytest.fixture
def ear(ros_domain):
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    node = rclpy.create_node('ear', context=context)
    made = Ear(node)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    deadline_s = time.monotonic() + LIMIT_S
    while not all(p.get_subscription_count() for p in made.publishers.values()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    made.context = context
    yield made
    executor.shutdown(timeout_sec=10.0)
    thread.join(LIMIT_S)
    node.destroy_node()
    context.try_shutdown()


@pytest.fixture
def sender():
    made = CommandSender()
    yield made
    made.close()


def test_a_load_is_sent_when_it_is_due_on_every_publisher(ear, sender):
    due_ns, wall_ns = time.monotonic_ns() + SOON_NS, time.time_ns()
    sender.load(ear.load(1.0), due_ns=due_ns)
    assert sorted(ear.wait(2)) == [('arm', 1.0), ('gripper', 1.0)]
    ((told_ns, sent_ns),) = sender.take()
    assert told_ns == due_ns
    assert sent_ns >= due_ns, 'not before'
    assert min(ear.stamps_ns) - wall_ns >= SOON_NS - MS
    assert sender.cancel() == 0, 'it has been sent'
    assert sender.take() == [], 'it was told'


def test_they_are_sent_while_another_thread_keeps_the_interpreter(ear, sender):
    """PyDLL calls do not let go of the interpreter; what is due is sent all the same."""
    busy = ctypes.PyDLL(None)
    begin_ns = time.monotonic_ns()
    for number, topic in enumerate(('arm', 'gripper', 'arm'), 1):  # each topic keeps the newest
        sender.load(ear.load(float(number), topic), due_ns=begin_ns + number * SOON_NS)
    busy.usleep(20 * SOON_NS // 1000)
    freed_ns = time.monotonic_ns()
    assert freed_ns - begin_ns >= 20 * SOON_NS, 'nobody else ran in Python meanwhile'
    records = sender.take()
    assert [due_ns for due_ns, _ in records] == [begin_ns + n * SOON_NS for n in (1, 2, 3)]
    assert all(due_ns <= sent_ns < freed_ns for due_ns, sent_ns in records)
    ear.wait(2)


def test_what_is_cancelled_is_never_sent_and_what_is_due_is_sent_at_once(ear, sender):
    for _ in range(3):
        sender.load(ear.load(3.0), due_ns=time.monotonic_ns() + NEVER_NS)
    assert sender.settle() == []
    assert sender.cancel() == 3
    assert sender.cancel() == 0, 'there is nothing any more'
    sender.load(ear.load(4.0, 'arm'), due_ns=time.monotonic_ns())
    assert len(sender.settle()) == 1, 'it has been sent by then'
    assert ear.wait(1) == [('arm', 4.0)]


def test_loads_are_sent_in_their_order_and_one_that_waits_holds_up_those_behind_it(ear, sender):
    begin_ns = time.monotonic_ns()
    sender.load(ear.load(5.0, 'arm'), due_ns=begin_ns + SOON_NS)
    sender.load(ear.load(6.0, 'gripper'), due_ns=0)
    assert ear.wait(2) == [('arm', 5.0), ('gripper', 6.0)]
    first, second = sender.take()
    assert first.at_ns <= second.at_ns
    assert second == (0, second.at_ns)


def test_a_load_too_many_is_an_error_and_those_before_it_are_sent(ear, sender):
    due_ns = time.monotonic_ns() + SOON_NS
    for round_number in range(3):  # the ring goes round
        for number in range(MAX_LOADS):
            sender.load(ear.load(float(number), 'arm'), due_ns=due_ns + NEVER_NS)
        with pytest.raises(SendError, match='8 loads are waiting already'):
            sender.load(ear.load(9.0, 'arm'), due_ns=due_ns)
        assert sender.cancel() == MAX_LOADS
        sender.load(ear.load(float(round_number), 'arm'), due_ns=0)
        assert ear.wait(round_number + 1)[-1] == ('arm', float(round_number))
        assert len(sender.take()) == 1


def test_records_that_nobody_takes_are_forgotten(ear, sender):
    many = 5 * MAX_LOADS
    while many:
        sender.load(ear.load(0.0, 'arm'), due_ns=0)
        time.sleep(100e-6)
        many -= sender.cancel() == 0  # it was sent before it could be taken back
    begin_ns = time.monotonic_ns()
    sender.load(ear.load(1.0, 'arm'), due_ns=0)
    records = sender.settle()
    assert len(records) == MAX_LOADS
    while more := sender.take():
        assert len(more) <= MAX_LOADS
        records += more
    assert MAX_LOADS < len(records) < 5 * MAX_LOADS
    assert records[-1].at_ns >= begin_ns
    assert records == sorted(records, key=lambda record: record.at_ns)


def test_nothing_is_sent_after_a_cancel_returned_however_close_to_its_moment(ear, sender):
    """Each load is either prevented or heard, never both and never neither."""
    expected = []
    for number in range(300):
        due_ns = time.monotonic_ns() + (number % 30) * 10_000
        sender.load(ear.load(float(number), 'arm'), due_ns=due_ns)
        time.sleep((number % 7) * 50e-6)
        if sender.cancel() == 0:
            expected.append(float(number))
            # The publisher keeps one message, which a slow reader would miss.
            ear.wait(len(expected))
    sender.load(ear.load(-1.0, 'arm'), due_ns=0)
    heard = [value for _, value in ear.wait(len(expected) + 1)]
    assert heard == [*expected, -1.0]
    assert 0 < len(expected) < 300, 'both happened'


def test_what_the_middleware_refuses_is_an_error_once(ear, sender):
    with pytest.raises(TypeError):
        Load([(ear.publishers['arm'], 'no bytes')])
    ear.context.try_shutdown()
    sender.load(ear.load(7.0, 'arm'), due_ns=0)
    with pytest.raises(SendError, match='publisher pointer is invalid'):
        sender.settle()
    assert len(sender.settle()) == 1, 'that was told; and this is what was tried'


def test_a_closed_sender_has_no_thread_and_sends_nothing(ear):
    sender = CommandSender()
    tasks = [Path(f'/proc/self/task/{number}') for number in sender.thread_ids]
    assert len(set(tasks)) == 2
    assert [(task / 'comm').read_text().strip() for task in tasks] == ['sender', 'sender']
    sender.load(ear.load(8.0, 'arm'), due_ns=time.monotonic_ns() + NEVER_NS)
    sender.close()
    assert not any(task.exists() for task in tasks)
    sender.close()
    with contextlib.closing(CommandSender()) as other:
        other.load(ear.load(9.0, 'arm'), due_ns=0)
        assert ear.wait(1) == [('arm', 9.0)]


SECOND_THREAD_FAILS = """
import resource
from sparkrt_ros.nodes.command_sender import CommandSender, SendError

first = CommandSender()  # everything is loaded, and no stack is left over
used = [line for line in open('/proc/self/status') if line.startswith('VmSize')][0].split()[1]
limit = int(used) * 1024 + ROOM
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    CommandSender()
except SendError as error:
    print(error)
first.close()
"""


@pytest.mark.parametrize('room', ['0', '12 << 20'])
def test_threads_that_cannot_be_started_are_an_error(room):
    code = SECOND_THREAD_FAILS.replace('ROOM', f'({room})')
    stacks_of_8_mb = ['sh', '-c', 'ulimit -s 8192 && exec "$@"', 'sh']
    done = subprocess.run(
        [*stacks_of_8_mb, sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert 'expected a thread that could be started' in done.stdout


def test_a_command_that_had_left_before_it_was_withdrawn_counts_as_published(ear):
    contract = load_contract(str(TINY_ROBOT))
    outlet = CommandOutlet(ear.node, contract, qos.QosEvents(ear.node))
    topics = [link.topic for link in outlet.links()]
    ear.listen(topics[0])
    deadline_s = time.monotonic() + LIMIT_S
    while topics[0] in outlet.unmatched():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    command = np.zeros(len(contract.action))
    for _ in range(2):
        outlet.prepare(command, now_ns=0)
        outlet.schedule(time.monotonic_ns() + NEVER_NS)
    assert outlet.cancel() == []
    assert outlet.published == 0
    for due_ns in (0, time.monotonic_ns() + NEVER_NS):
        outlet.prepare(command, now_ns=0)
        outlet.schedule(due_ns)
    ear.wait(1)
    assert [sent.due_ns for sent in outlet.cancel()] == [0]
    assert (outlet.published, outlet.undelivered) == (1, len(topics) > 1)
    outlet.enabled = False
    outlet.prepare(command, now_ns=0)
    outlet.publish()
    assert outlet.published == 1, 'a preview is none'
    outlet.enabled = True
    outlet.prepare(command, now_ns=0)
    outlet.publish()
    assert outlet.published == 2, 'and what was cancelled is not counted later'
    outlet.close()


def test_a_base_is_stopped_with_zeros_also_while_another_rate_is_taken(ear, tmp_path, monkeypatch):
    """The control thread may take the rate between the filling of the message and its sending."""
    path = tmp_path / 'robot.yaml'
    path.write_text(CONTRACT)
    contract = load_contract(str(path))
    outlet = CommandOutlet(ear.node, contract, qos.QosEvents(ear.node))
    sent = []

    def publish(publisher, message) -> None:
        outlet.set_period(0.02)
        sent.append((publisher.topic_name, message.linear.x))

    monkeypatch.setattr(Publisher, 'publish', publish)
    outlet.stop_velocities(np.zeros(len(contract.action)), now_ns=0)
    assert sent == [('/cmd_vel', 0.0)]
    monkeypatch.undo()
    outlet.close()

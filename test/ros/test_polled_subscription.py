"""Messages go to whoever may take them, each once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import rclpy
from contract_samples import GOOD_CONTRACT, write_contract
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from ros_harness import claim_domain
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from streamer_rig import CONTRACT

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.policy_inputs import PolicyInputs
from sparkrt_ros.nodes.polled import SLOWEST_POLL_HZ, PolledSubscription
from sparkrt_ros.nodes.streamer_pose import PoseSource

pytestmark = pytest.mark.ros

TURNS = 400


class Rig:
    """A node of its own domain, whose executor is turned by hand."""

    def __init__(self) -> None:
        self._domain, self._claim = claim_domain()
        self._context = Context()
        rclpy.init(context=self._context, domain_id=self._domain)
        self.node = rclpy.create_node('polls', context=self._context)
        self.executor = SingleThreadedExecutor(context=self._context)
        self.executor.add_node(self.node)
        self.called: list[str] = []
        self._polled: list[PolledSubscription] = []

    def poll(self, kind: type, topic: str, profile, **options) -> PolledSubscription:
        self._polled.append(PolledSubscription(self.node, kind, topic, profile, **options))
        return self._polled[-1]

    def close(self) -> None:
        for polled in self._polled:  # what listens to events outlives its node otherwise
            polled.destroy()
        self.executor.shutdown()
        self.node.destroy_node()
        self._context.shutdown()
        self._claim.close()

    def turn_until(self, condition) -> bool:
        for _ in range(TURNS):
            if condition():
                return True
            self.executor.spin_once(timeout_sec=0.02)
        return False

    def match(self, *publishers) -> None:
        """Wait until either side knows the other: what is sent before that may be lost."""
        (subscription,) = (s for s in self.node.subscriptions if s.topic == publishers[0].topic)
        assert self.turn_until(
            lambda: (
                subscription.get_publisher_count() == len(publishers)
                and all(publisher.get_subscription_count() == 1 for publisher in publishers)
            )
        )

    def take(self, polled: PolledSubscription, *, count: int) -> list[str]:
        found: list[str] = []
        assert self.turn_until(
            lambda: found.extend(m.data for m in polled.take()) or len(found) >= count
        )
        return found


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    made = Rig()
    yield made
    made.close()


def test_while_it_is_polled_the_executor_leaves_messages_alone(rig: Rig):
    polled = rig.poll(
        String, 'words', qos.CHUNKS_TAKEN, callback=lambda m: rig.called.append(m.data)
    )
    publisher = rig.node.create_publisher(String, 'words', qos.CHUNKS_TAKEN)
    rig.match(publisher)

    publisher.publish(String(data='a'))
    assert rig.turn_until(lambda: rig.called == ['a'])
    polled.polled = True
    for word in 'bcd':
        publisher.publish(String(data=word))
    assert rig.take(polled, count=3) == ['b', 'c', 'd']
    assert rig.called == ['a']

    publisher.publish(String(data='e'))
    polled.polled = False
    assert rig.turn_until(lambda: len(rig.called) == 2)
    assert rig.called == ['a', 'e']
    assert list(polled.take()) == []


def test_a_message_that_waits_does_not_wake_the_executor(rig: Rig, monkeypatch):
    """It would find nothing to do, again and again."""
    events = qos.QosEvents(rig.node)
    polled = rig.poll(
        String,
        'words',
        qos.CHUNKS_TAKEN,
        callback=lambda m: rig.called.append(m.data),
        events=events.for_subscription('words'),
    )
    publisher = rig.node.create_publisher(String, 'words', qos.CHUNKS_TAKEN)
    rig.match(publisher)
    polled.polled = True
    publisher.publish(String(data='a'))
    publisher.wait_for_all_acked()
    rig.executor.spin_once(timeout_sec=0.0)  # takes note of what has changed
    looks = []
    may_run = rig.executor.can_execute
    monkeypatch.setattr(
        rig.executor, 'can_execute', lambda entity: looks.append(entity) or may_run(entity)
    )
    rig.executor.spin_once(timeout_sec=0.3)
    assert looks.count(polled.subscription) == 1
    assert [message.data for message in polled.take()] == ['a']


def test_without_a_callback_it_is_always_polled(rig: Rig):
    polled = rig.poll(String, 'words', qos.STATE)
    publisher = rig.node.create_publisher(String, 'words', qos.STATE)
    rig.match(publisher)
    publisher.publish(String(data='a'))
    assert rig.take(polled, count=1) == ['a']
    assert polled.get_publisher_count() == 1
    assert polled.topic_name == '/words'


def test_the_newest_come_first_on_request_and_the_rest_is_gone(rig: Rig):
    polled = rig.poll(String, 'words', qos.CHUNKS_TAKEN)
    publisher = rig.node.create_publisher(String, 'words', qos.CHUNKS_TAKEN)
    rig.match(publisher)
    for word in 'abc':
        publisher.publish(String(data=word))
    assert rig.turn_until(publisher.wait_for_all_acked)
    assert next(polled.newest_first()).data == 'c'
    assert list(polled.take()) == []


@pytest.mark.parametrize('while_polled', [True, False])
def test_what_does_not_fit_is_told(rig: Rig, while_polled: bool):
    events = qos.QosEvents(rig.node)
    polled = rig.poll(
        Float64MultiArray,
        'numbers',
        qos.CHUNKS_TAKEN,
        callback=rig.called.append,
        events=events.for_subscription('numbers'),
    )
    polled.polled = while_polled
    rig.node.create_publisher(Float64MultiArray, 'numbers', qos.STATE)
    assert rig.turn_until(lambda: polled.look_for_events() or events.count > 0)
    assert list(events.incompatible) == ['/numbers']
    polled.destroy()
    rig.executor.spin_once(timeout_sec=0.0)
    assert list(rig.node.subscriptions) == []


def test_a_fast_driver_does_not_crowd_out_a_slow_one_on_the_same_topic(rig: Rig, tmp_path):
    """An arm at 1 kHz, and a gripper that reports only when it moves."""
    path = tmp_path / 'robot.yaml'
    path.write_text(CONTRACT)
    poses: list = []
    task = SimpleNamespace(rate_hz=0.0, cancel=lambda: None)
    source = PoseSource(
        rig.node,
        load_contract(path),
        poses.append,
        beat=SimpleNamespace(every=lambda *_, **__: task),
        trace=SimpleNamespace(enabled=False, joints=lambda *_, **__: None, publish=lambda: None),
    )
    arm, gripper = (rig.node.create_publisher(JointState, 'joint_states', 10) for _ in range(2))
    rig.match(arm, gripper)

    def report(publisher, name: str, position: float) -> None:
        message = JointState(name=[name], position=[position])
        message.header.stamp = rig.node.get_clock().now().to_msg()
        publisher.publish(message)

    report(gripper, 'lift', 5.0)
    fast = round(1000.0 / SLOWEST_POLL_HZ)
    for number in range(fast):
        report(arm, 'pan', float(number))
    newest = fast - 1.0
    assert rig.turn_until(lambda: source.poll() or (poses and poses[-1].values[0] == newest))
    assert poses[-1].values[:2].tolist() == [newest, 5.0]
    source.close()


def test_what_a_joint_reports_once_outlasts_a_busy_policy_node(rig: Rig, tmp_path):
    """The gripper's only word, and then an arm on the same topic, while the executor is away."""
    contract = load_contract(write_contract(tmp_path, GOOD_CONTRACT))
    stream = contract.state_streams[0]
    held = replace(stream, timing=replace(stream.timing, align='hold'))
    stored: list[str] = []

    def store(_: str, message: JointState, *, now_ns: int) -> bool:
        stored.extend(message.name)
        return True

    intake = SimpleNamespace(cameras={}, state_streams={stream.name: held}, joints=store)
    events = qos.QosEvents(rig.node)
    inputs = PolicyInputs(rig.node, intake, events, arrived=lambda *_: None)
    publisher = rig.node.create_publisher(JointState, stream.topic, 10)
    rig.match(publisher)
    for name in ('gripper', *['arm'] * 200):
        publisher.publish(JointState(name=[name], position=[0.0]))
    assert rig.turn_until(lambda: len(stored) == 201)
    assert stored[0] == 'gripper'
    inputs.destroy()

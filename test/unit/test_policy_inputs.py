"""When the policy node looks at joint states: before the pictures they are read with."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy')

from contract_samples import GOOD_CONTRACT, write_contract

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes import policy_inputs, qos
from sparkrt_ros.nodes.policy_inputs import PolicyInputs
from sparkrt_ros.nodes.polled import POLLS_PER_AGE

MS = 1_000_000


class FakeNode:
    """A clock that each look moves by 1 ms; subscriptions and timers as their callbacks."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.called: dict[str, object] = {}
        self.polled: dict[str, list] = {}
        self.timer: SimpleNamespace | None = None

    def get_logger(self) -> SimpleNamespace:
        return SimpleNamespace(error=print, warning=print, info=print)

    def get_clock(self) -> SimpleNamespace:
        return SimpleNamespace(now=self._look)

    def _look(self) -> SimpleNamespace:
        self.now_ns += MS
        return SimpleNamespace(nanoseconds=self.now_ns)

    def create_subscription(self, kind, topic, callback, profile, **options) -> SimpleNamespace:
        self.called[topic] = callback
        return SimpleNamespace(topic_name=topic, get_publisher_count=lambda: 0)

    def create_timer(self, period_s: float, callback, *, clock) -> SimpleNamespace:
        self.timer = SimpleNamespace(timer_period_ns=round(period_s * 1e9), run=callback)
        return self.timer


class FakePolled:
    """Yields what the test put into ``node.polled`` under its topic."""

    def __init__(self, node: FakeNode, kind, topic: str, profile) -> None:
        self._waiting = node.polled.setdefault(topic, [])
        self.subscription = SimpleNamespace(topic_name=topic, get_publisher_count=lambda: 0)

    def take(self):
        while self._waiting:
            yield self._waiting.pop(0)


class NotedIntake:
    """Notes what is stored and when it is said to have arrived."""

    def __init__(self, cameras, streams) -> None:
        self.cameras = {camera.name: camera for camera in cameras}
        self.state_streams = {stream.name: stream for stream in streams}
        self.stored: list[tuple[str, object, int]] = []

    def image(self, name: str, message, *, now_ns: int) -> bool:
        self.stored.append((name, message, now_ns))
        return True

    joints = image


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(policy_inputs, 'PolledSubscription', FakePolled)
    contract = load_contract(write_contract(tmp_path, GOOD_CONTRACT))

    def made(*, cameras: int = 1, **timing):
        streams = [replace(s, timing=replace(s.timing, **timing)) for s in contract.state_streams]
        node = FakeNode()
        intake = NotedIntake(contract.cameras[:cameras], streams[:1])
        hurried = []
        inputs = PolicyInputs(
            node, intake, qos.QosEvents(node), arrived=lambda *_: None, hurry=lambda: bool(hurried)
        )
        return SimpleNamespace(
            node=node,
            intake=intake,
            inputs=inputs,
            hurried=hurried,
            camera=intake.cameras and next(iter(intake.cameras.values())),
            stream=next(iter(intake.state_streams.values())),
        )

    return made


def test_joints_that_have_arrived_are_stored_before_the_picture_with_its_time_of_arrival(make):
    """Whatever looking at them takes is no time on which the policy had all it needed."""
    rig = make()
    rig.node.polled[rig.stream.topic] += ['first', 'second']
    rig.node.called[rig.camera.topic]('picture')
    assert rig.intake.stored == [
        (rig.stream.name, 'first', MS),
        (rig.stream.name, 'second', MS),
        (rig.camera.name, 'picture', MS),
    ]


def test_between_pictures_a_timer_looks_and_hurries_while_somebody_waits(make):
    rig = make()
    timer = rig.node.timer
    calm_ns = timer.timer_period_ns
    rig.node.polled[rig.stream.topic].append('joints')
    timer.run()
    assert [what for _, what, _ in rig.intake.stored] == ['joints']
    assert timer.timer_period_ns == calm_ns == round(100 * MS / POLLS_PER_AGE)
    rig.hurried.append(True)
    timer.run()
    assert timer.timer_period_ns == 2 * MS
    rig.hurried.clear()
    timer.run()
    assert timer.timer_period_ns == calm_ns


@pytest.mark.parametrize(
    'changes',
    [
        {'clock': 'receive'},
        {'zero_stamp': 'receive'},
        {'align': 'latest'},
        {'align': 'hold'},
        {'cameras': 0},
    ],
)
def test_where_the_moment_matters_each_joint_message_is_stored_as_it_comes(make, changes):
    rig = make(**changes)
    assert rig.node.polled == {}
    assert rig.node.timer is None
    rig.node.called[rig.stream.topic]('joints')
    assert rig.intake.stored == [(rig.stream.name, 'joints', MS)]

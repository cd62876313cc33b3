"""Command messages: every output type, reuse of messages, and what real ROS makes of them."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import yaml
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import RobotContract, load_contract

MOBILE = """
name: mobile
policy_rate_hz: 10
control_rate_hz: 50
hold_s: 1
joints:
  - {name: lift, unit: mm, limits: [0, 1], max_velocity: 0.2}
  - {name: grip, unit: range_0_100, range: [0.8, 0.0], limits: [0, 0.8], max_velocity: 2}
  - {name: forward, unit: m/s, limits: [-0.5, 0.5], max_acceleration: 1.0}
  - {name: turn, unit: deg/s, limits: [-1, 1]}
  - {name: wheel, unit: rad/s, limits: [-5, 5]}
action:
  vector: [forward, lift, turn, grip, wheel]
  outputs:
    - {name: base, type: twist, topic: cmd_vel, joints: {turn: angular.z, forward: linear.x}}
    - {name: lift, type: joint_trajectory, topic: lift, joints: [lift], time_from_start_s: 0.5}
    - {name: grip, type: joint_state, topic: grip, joints: {grip: finger_joint}}
    - {name: wheels, type: joint_state, topic: wheels, joints: [wheel]}
"""


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


@pytest.fixture
def mobile(tmp_path: Path) -> RobotContract:
    path = tmp_path / 'mobile.yaml'
    path.write_text(MOBILE)
    return load_contract(path)


def stamped_mobile(folder: Path) -> RobotContract:
    content = yaml.safe_load(MOBILE)
    content['action']['outputs'][0] |= {'type': 'twist_stamped', 'frame_id': 'base_link'}
    path = folder / 'stamped.yaml'
    path.write_text(yaml.safe_dump(content))
    return load_contract(path)


def test_every_output_gets_its_columns(messages: Messages, mobile: RobotContract) -> None:
    commands = CommandSet(mobile, messages.classes)
    policy = np.array([0.3, 250.0, 90.0, 25.0, 2.0])
    base, lift, grip, wheels = commands.fill(mobile.action_to_si(policy), stamp_ns=1_500_000_000)
    assert base.linear.x == pytest.approx(0.3)
    assert base.angular.z == pytest.approx(np.pi / 2)
    others = (base.linear.y, base.linear.z, base.angular.x, base.angular.y)
    assert others == (0.0, 0.0, 0.0, 0.0)
    assert list(lift.points[0].positions) == pytest.approx([0.25])
    assert lift.points[0].time_from_start.nanosec == 500_000_000
    assert (list(grip.name), list(grip.position)) == (['finger_joint'], pytest.approx([0.6]))
    assert list(grip.velocity) == []
    assert (list(wheels.velocity), list(wheels.position)) == ([2.0], [])
    for msg in (grip, wheels):
        assert (msg.header.stamp.sec, msg.header.stamp.nanosec) == (1, 500_000_000)


def test_a_stamped_twist(messages: Messages, tmp_path: Path) -> None:
    commands = CommandSet(stamped_mobile(tmp_path), messages.classes)
    base, *_ = commands.fill([0.3, 0.1, 0.5, 0.2, 0.0], stamp_ns=2_000_000_001)
    assert (base.twist.linear.x, base.twist.angular.z) == (0.3, 0.5)
    assert (base.header.stamp.sec, base.header.stamp.nanosec) == (2, 1)
    assert base.header.frame_id == 'base_link'


def test_messages_are_refilled_not_rebuilt(messages: Messages, mobile: RobotContract) -> None:
    commands = CommandSet(mobile, messages.classes)
    first = commands.fill(np.zeros(5))
    second = commands.fill(np.full(5, 0.2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert second[0].linear.x == 0.2
    assert list(second[2].position) == [0.2]


def test_memory_does_not_grow_with_the_ticks(messages: Messages, mobile: RobotContract) -> None:
    commands = CommandSet(mobile, messages.classes)
    command = np.zeros(5)
    sizes = []
    tracemalloc.start()
    try:
        for i in range(3000):
            commands.fill(command, stamp_ns=i)
            if i in (999, 2999):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 4096


def test_the_caller_keeps_its_command(messages: Messages, mobile: RobotContract) -> None:
    commands = CommandSet(mobile, messages.classes)
    command = np.arange(5) / 10
    commands.fill(command)
    np.testing.assert_array_equal(command, np.arange(5) / 10)


@pytest.mark.parametrize('name', ['embedded', 'so101', 'aloha', 'franka', 'ur'])
def test_shipped_robots(messages: Messages, name: str) -> None:
    contract = load_contract(name)
    assert set(needed_message_types(contract)) <= set(messages.classes)
    commands = CommandSet(contract, messages.classes)
    command = np.linspace(0.0, 1.0, len(contract.action))
    filled = dict(zip(contract.outputs, commands.fill(command), strict=True))
    by_joint = dict(zip(contract.action, command, strict=True))
    for group, msg in filled.items():
        values = msg.points[0].positions if group.type == 'joint_trajectory' else msg.data
        assert list(values) == [by_joint[joint] for joint in group.joints]


@pytest.mark.skipif(not os.environ.get('AMENT_PREFIX_PATH'), reason='needs a sourced ROS 2')
def test_filled_messages_survive_the_wire(mobile: RobotContract, tmp_path: Path) -> None:
    serialization = pytest.importorskip('rclpy.serialization')
    classes = message_kind('ros').classes
    for contract in (mobile, stamped_mobile(tmp_path)):
        commands = CommandSet(contract, classes)
        commands.fill([0.1, 0.2, 0.3, 0.4, 0.5], stamp_ns=5)
        for msg in commands.fill([0.2, 0.3, 0.4, 0.5, 0.6], stamp_ns=7):
            again = serialization.deserialize_message(
                serialization.serialize_message(msg), type(msg)
            )
            assert again == msg

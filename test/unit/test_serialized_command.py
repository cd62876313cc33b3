"""Commands written into serialized messages are those that serializing each anew would give."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy')

from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState

from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes.serialized_command import SerializedCommand
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.runtime.errors import ActionError

ROBOTS = sorted((Path(__file__).parents[2] / 'config' / 'robots').glob('*.yaml'))
# Joints that no output names in their order, and parts of messages that do not lie side by side.
MIXED = """
name: mixed
policy_rate_hz: 50.0
control_rate_hz: 100.0
hold_s: 0.5
joints:
  - {name: 'a', unit: rad, limits: [-9.0, 9.0], max_velocity: 2.0}
  - {name: 'bb', unit: rad, limits: [-9.0, 9.0], max_velocity: 2.0}
  - {name: 'ccc', unit: rad, limits: [-9.0, 9.0], max_velocity: 2.0}
  - {name: x, unit: m/s, limits: [-9.0, 9.0]}
  - {name: turn, unit: rad/s, limits: [-9.0, 9.0]}
action:
  vector: [bb, x, a, turn, ccc]
  outputs:
    - {name: arm, type: TYPE, topic: arm, joints: [ccc, a, bb]}
    - {name: base, type: TWIST, topic: base, joints: {turn: angular.z, x: linear.y}}
"""
CASES = [
    *((robot.stem, robot.read_text()) for robot in ROBOTS),
    *(
        (f'{kind}-{twist}', MIXED.replace('TYPE', kind).replace('TWIST', twist))
        for kind in ('float64_multi_array', 'joint_state', 'joint_trajectory')
        for twist in ('twist', 'twist_stamped')
    ),
]


class Outputs:
    """The messages of a contract, and the same as bytes."""

    def __init__(self, path: Path) -> None:
        contract = load_contract(str(path))
        classes = {name: message_class(name) for name in needed_message_types(contract)}
        self.size = len(contract.action)
        self.commands = CommandSet(contract, classes)
        self.serialize()

    def serialize(self) -> None:
        count = len(self.commands.groups)
        self.forms = [
            SerializedCommand(partial(self._fill, i), size=self.size) for i in range(count)
        ]

    def _fill(self, index: int, command, stamp_ns: int):
        return self.commands.fill(command, stamp_ns=stamp_ns)[index]

    def check(self, command, *, stamp_ns: int) -> None:
        for form in self.forms:
            form.write(command, stamp_ns=stamp_ns)
        messages = self.commands.fill(command, stamp_ns=stamp_ns)
        found = [
            deserialize_message(form.content.tobytes(), type(message))
            for form, message in zip(self.forms, messages, strict=True)
        ]
        assert found == list(messages)


@pytest.fixture(params=[text for _, text in CASES], ids=[name for name, _ in CASES])
def outputs(request, tmp_path):
    path = tmp_path / 'robot.yaml'
    path.write_text(request.param)
    return Outputs(path)


def test_values_and_stamps_are_those_of_the_messages(outputs):
    rng = np.random.default_rng(0)
    addresses = [form.content.ctypes.data for form in outputs.forms]
    for stamp_ns in (0, 1, 1_764_500_000_123_456_789, 2**31 * 10**9 - 1):
        outputs.check(rng.normal(size=outputs.size), stamp_ns=stamp_ns)
    outputs.check(np.zeros(outputs.size), stamp_ns=5)
    outputs.check(np.full(outputs.size, -1e300), stamp_ns=5)
    assert [form.content.ctypes.data for form in outputs.forms] == addresses


def test_another_period_is_in_them_when_they_are_made_anew(outputs):
    outputs.commands.set_period(0.125)
    outputs.serialize()
    outputs.check(np.arange(outputs.size) + 0.5, stamp_ns=7)


def test_values_lie_where_they_can_be_written_without_a_copy(outputs):
    for form in outputs.forms:
        assert sum(values.size for values, _ in form._runs) > 0
        assert all(values.flags.aligned for values, _ in form._runs)


def growing(command, stamp_ns: int) -> JointState:
    return JointState(name=['x' * (1 + int(10 * abs(command[0])))], position=list(command))


def remembering(command, stamp_ns: int) -> JointState:
    return JointState(position=list(command), effort=[float(command.sum())])


@pytest.mark.parametrize('fill', [growing, remembering])
def test_a_message_that_changes_elsewhere_is_refused(fill):
    with pytest.raises(ActionError, match='changes with its values elsewhere'):
        SerializedCommand(fill, size=2)

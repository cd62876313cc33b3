"""Cases from public bug reports about commands that should not have left the node."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import RobotContract, load_contract
from sparkrt_ros.runtime.errors import ActionError

JOINTS = [f'j{i}' for i in range(1, 7)]
CONTROLLER_ORDER = ['j3', 'j1', 'j2', 'j6', 'j5', 'j4']
KINDS_OF_OUTPUT = ['float64_multi_array', 'joint_trajectory', 'joint_state']


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


def contract_with(folder: Path, outputs: list[dict[str, Any]]) -> RobotContract:
    joints = [
        {'name': name, 'unit': 'rad', 'limits': [-9, 9], 'max_velocity': 2.0} for name in JOINTS
    ]
    content = {
        'name': 'test',
        'policy_rate_hz': 10,
        'control_rate_hz': 50,
        'hold_s': 1,
        'joints': joints,
        'action': {'vector': JOINTS, 'outputs': outputs},
    }
    path = folder / 'robot.yaml'
    path.write_text(yaml.safe_dump(content))
    return load_contract(path)


def one_output(folder: Path, kind: str) -> RobotContract:
    output = {'name': 'arm', 'type': kind, 'topic': 'arm', 'joints': CONTROLLER_ORDER}
    return contract_with(folder, [output])


def numbers_in(msg: Any) -> list[float]:
    if hasattr(msg, 'points'):
        return [v for point in msg.points for v in point.positions]
    return list(getattr(msg, 'data', None) or msg.position)


@pytest.mark.parametrize('kind', KINDS_OF_OUTPUT)
class TestBadCommands:
    """ros2_controllers#1815, #902; abb_libegm#68; moveit2#287."""

    @pytest.mark.parametrize(
        'command',
        [
            [1, 2, math.nan, 4, 5, 6],
            [1, 2, 3, 4, 5, math.inf],
            [-math.inf, 2, 3, 4, 5, 6],
            [1, 2, 3, 4, 5, 6, 7],
            [1, 2, 3, 4, 5],
            [],
            np.zeros((0, 6)),
            np.zeros((1, 7)),
            np.zeros((1, 1, 6)),
            3.0,
            [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, math.nan]],
        ],
        ids=str,
    )
    def test_nothing_is_built_and_the_last_message_is_untouched(
        self, messages: Messages, tmp_path: Path, kind: str, command: Any
    ) -> None:
        commands = CommandSet(one_output(tmp_path, kind), messages.classes)
        (message,) = commands.fill([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        before = copy.deepcopy(numbers_in(message))
        with pytest.raises(ActionError, match='nothing is sent'):
            commands.fill(command, dt_s=0.1)
        assert numbers_in(message) == before
        assert np.isfinite(numbers_in(message)).all()

    def test_values_follow_the_order_of_the_controller(
        self, messages: Messages, tmp_path: Path, kind: str
    ) -> None:
        commands = CommandSet(one_output(tmp_path, kind), messages.classes)
        (message,) = commands.fill([1, 2, 3, 4, 5, 6])
        assert numbers_in(message) == [3, 1, 2, 6, 5, 4]
        names = getattr(message, 'joint_names', None) or getattr(message, 'name', None)
        if names is not None:
            assert list(names) == CONTROLLER_ORDER


def test_a_bad_value_for_one_output_leaves_the_others_untouched(
    messages: Messages, tmp_path: Path
) -> None:
    outputs = [
        {'name': name, 'type': 'float64_multi_array', 'topic': name, 'joints': joints}
        for name, joints in (('left', JOINTS[:3]), ('right', JOINTS[3:]))
    ]
    commands = CommandSet(contract_with(tmp_path, outputs), messages.classes)
    left, _right = commands.fill([1, 2, 3, 4, 5, 6])
    with pytest.raises(ActionError):
        commands.fill([9, 9, 9, 9, 9, math.nan])
    assert numbers_in(left) == [1, 2, 3]


class TestTrajectoryTimes:
    """A point stamped now and due at once is in the past when it arrives, and is dropped."""

    @pytest.mark.parametrize('stamp_ns', [0, 1_700_000_000_000_000_000])
    @pytest.mark.parametrize('rows', [1, 2, 7])
    def test_stamp_is_zero_and_times_rise_from_above_zero(
        self, messages: Messages, tmp_path: Path, rows: int, stamp_ns: int
    ) -> None:
        contract = one_output(tmp_path, 'joint_trajectory')
        commands = CommandSet(contract, messages.classes)
        chunk = np.arange(6 * rows, dtype=float).reshape(rows, 6)
        (message,) = commands.fill(chunk, stamp_ns=stamp_ns, dt_s=0.1)
        assert (message.header.stamp.sec, message.header.stamp.nanosec) == (0, 0)
        times = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in message.points]
        assert times[0] == pytest.approx(1 / contract.control_rate_hz)
        np.testing.assert_allclose(np.diff(times), 0.1, atol=1e-9)
        assert [list(p.positions) for p in message.points] == [
            [row[JOINTS.index(name)] for name in CONTROLLER_ORDER] for row in chunk
        ]

    @pytest.mark.parametrize('dt_s', [None, 0.0, -0.1, math.nan])
    def test_rows_that_would_not_rise_are_refused(
        self, messages: Messages, tmp_path: Path, dt_s: float | None
    ) -> None:
        commands = CommandSet(one_output(tmp_path, 'joint_trajectory'), messages.classes)
        with pytest.raises(ActionError, match='dt_s'):
            commands.fill(np.zeros((2, 6)), dt_s=dt_s)

    def test_a_single_row_is_due_when_the_next_command_comes(
        self, messages: Messages, tmp_path: Path
    ) -> None:
        """At twice the rate in half the time: else it would move at half or twice the speed."""
        contract = one_output(tmp_path, 'joint_trajectory')
        commands = CommandSet(contract, messages.classes)
        due = commands.fill(np.zeros(6))[0].points[0].time_from_start
        assert due.nanosec == round(1e9 / contract.control_rate_hz)
        commands.set_period(0.004)
        assert commands.fill(np.zeros(6))[0].points[0].time_from_start.nanosec == 4_000_000

    def test_fewer_rows_after_more_leave_no_old_points(
        self, messages: Messages, tmp_path: Path
    ) -> None:
        commands = CommandSet(one_output(tmp_path, 'joint_trajectory'), messages.classes)
        commands.fill(np.ones((5, 6)), dt_s=0.1)
        (message,) = commands.fill(np.zeros((2, 6)), dt_s=0.1)
        assert numbers_in(message) == [0.0] * 12

    def test_outputs_without_rows_refuse_several(self, messages: Messages, tmp_path: Path) -> None:
        commands = CommandSet(one_output(tmp_path, 'float64_multi_array'), messages.classes)
        with pytest.raises(ActionError, match='only a joint_trajectory'):
            commands.fill(np.zeros((2, 6)), dt_s=0.1)


def test_classes_that_are_needed_are_named(tmp_path: Path) -> None:
    assert needed_message_types(one_output(tmp_path, 'joint_trajectory')) == (
        'trajectory_msgs/msg/JointTrajectory',
        'trajectory_msgs/msg/JointTrajectoryPoint',
    )

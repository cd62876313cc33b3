"""The contracts that come with the package, against the robots they describe."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from sparkrt_ros.convert.contract import RobotContract, load_contract, shipped_contracts
from sparkrt_ros.convert.contract_types import (
    ALIGNMENTS,
    CAMERA_TYPES,
    INTERPOLATIONS,
    OUTPUT_TYPES,
    STATE_TYPES,
)
from sparkrt_ros.convert.frame import crop_and_resize
from sparkrt_ros.convert.units import RANGE_UNITS, UNITS

NAMES = ('aloha', 'embedded', 'franka', 'so101', 'ur')


@pytest.fixture(params=NAMES)
def contract(request: pytest.FixtureRequest) -> RobotContract:
    return load_contract(request.param)


def test_these_are_shipped() -> None:
    assert tuple(shipped_contracts()) == NAMES
    for name in NAMES:
        assert load_contract(name).name == name


def test_no_two_are_alike() -> None:
    assert len({load_contract(name).digest for name in NAMES}) == len(NAMES)


def test_topics_are_relative_so_that_a_namespace_moves_them(contract: RobotContract) -> None:
    topics = [
        *(camera.topic for camera in contract.cameras),
        *(stream.topic for stream in contract.state_streams),
        *(group.topic for group in contract.outputs),
    ]
    assert not [topic for topic in topics if topic.startswith('/')]


def test_every_commanded_joint_is_measured_and_limited(contract: RobotContract) -> None:
    measured = {entry.joint for entry in contract.state}
    assert set(contract.action) <= measured
    limits = contract.action_limits
    for values in (limits.low, limits.high, limits.max_rate):
        assert np.isfinite(values).all()


def test_ends_of_ranges_lie_within_the_limits(contract: RobotContract) -> None:
    """Else the policy's 0 or 100 could never be reached."""
    for joint in contract.joints:
        if joint.unit in RANGE_UNITS:
            assert joint.range is not None
            assert joint.min <= min(joint.range)
            assert max(joint.range) <= joint.max


def test_keys_are_those_of_lerobot_datasets(contract: RobotContract) -> None:
    for camera in contract.cameras:
        assert re.fullmatch(r'observation\.images\.[a-z_]+', camera.key)


def test_every_file_says_what_to_check() -> None:
    for path in shipped_contracts().values():
        lines = path.read_text().splitlines()
        assert sum(line.lstrip().startswith('#') for line in lines) >= 6, path


class TestEmbedded:
    """Limits of the embedded robot stand in its simulation too: they must be equal."""

    def test_joints_and_limits_are_those_of_the_simulated_arm(self) -> None:
        arm = pytest.importorskip('sparkrt_ros.sim.arm')
        spec = arm.ArmSpec()
        contract = load_contract('embedded')
        assert contract.action == arm.JOINT_NAMES
        assert tuple(entry.joint for entry in contract.state) == arm.JOINT_NAMES
        limits = contract.action_limits
        assert tuple(limits.low) == spec.lower_rad
        assert tuple(limits.high) == spec.upper_rad
        assert tuple(limits.max_rate) == spec.max_velocity_rad_s
        assert tuple(limits.max_rate_change) == spec.max_acceleration_rad_s2
        arm_group, gripper_group = contract.outputs
        assert arm_group.joints == arm.JOINT_NAMES[: arm.ARM_JOINTS]
        assert gripper_group.joints == arm.JOINT_NAMES[arm.ARM_JOINTS :]

    def test_pictures_are_those_of_the_training_demonstrations(self) -> None:
        demos = pytest.importorskip('sparkrt_ros.sim.demos')
        spec = demos.DemoSpec()
        source = np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8)
        for camera in load_contract('embedded').cameras:
            assert camera.source_size == source.shape[1::-1]
            np.testing.assert_array_equal(
                crop_and_resize(source, camera), demos.shrink(source, spec.width, spec.height)
            )

    def test_rate_is_that_of_the_demonstrations(self) -> None:
        task = pytest.importorskip('sparkrt_ros.sim.task')
        assert load_contract('embedded').policy_rate_hz == task.TaskSpec().policy_rate_hz


class TestSo101:
    def test_policy_values_are_lerobots(self) -> None:
        """Degrees from mid-range for the arm, 0 (closed) to 100 (open) for the gripper."""
        contract = load_contract('so101')
        middle = contract.action_to_si([0, 0, 0, 0, 0, 0])
        np.testing.assert_allclose(middle[:5], 0.0, atol=1e-12)
        gripper = contract.joints_by_name['gripper']
        assert middle[5] == pytest.approx(gripper.min)
        moved = contract.action_to_si([90, -45, 30, 10, 180, 100])
        np.testing.assert_allclose(moved[:5], np.radians([90, -45, 30, 10, 180]))
        assert moved[5] == pytest.approx(gripper.max)


class TestAloha:
    def test_order_is_left_arm_left_gripper_right_arm_right_gripper(self) -> None:
        contract = load_contract('aloha')
        sides = [name.split('_', 1)[0] for name in contract.action]
        assert sides == ['left'] * 7 + ['right'] * 7
        assert (contract.action[6], contract.action[13]) == ('left_gripper', 'right_gripper')
        assert tuple(entry.joint for entry in contract.state) == contract.action

    def test_both_arms_are_alike(self) -> None:
        limits = load_contract('aloha').action_limits
        for values in (limits.low, limits.high, limits.max_rate):
            np.testing.assert_array_equal(values[:7], values[7:])

    def test_limits_are_those_of_the_arm_in_degrees(self) -> None:
        contract = load_contract('aloha')
        for name, low, high in (('shoulder', -106, 72), ('elbow', -101, 92),
                                ('wrist_angle', -107, 128)):  # fmt: skip
            joint = contract.joints_by_name[f'left_{name}']
            assert math.degrees(joint.min) == pytest.approx(low, abs=0.01)
            assert math.degrees(joint.max) == pytest.approx(high, abs=0.01)


@pytest.mark.parametrize(('name', 'arm_joints'), [('franka', 7), ('ur', 6)])
def test_arms_are_commanded_apart_from_their_grippers(name: str, arm_joints: int) -> None:
    arm, gripper = load_contract(name).outputs
    assert (len(arm.joints), len(gripper.joints)) == (arm_joints, 1)


def test_the_example_of_the_documentation_is_a_contract(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / 'docs/robot_contract.md').read_text()
    (example,) = re.findall(r'```yaml\n(.*?)```', text, flags=re.DOTALL)
    path = tmp_path / 'mobile.yaml'
    path.write_text(example)
    contract = load_contract(path)
    assert contract.velocity_mask.tolist() == [True, True, False, False]
    assert contract.cameras[0].output_size == (224, 224)


def test_the_documentation_names_every_unit_type_and_encoding() -> None:
    text = (Path(__file__).parents[2] / 'docs/robot_contract.md').read_text()
    words = {*UNITS, *CAMERA_TYPES, *STATE_TYPES, *OUTPUT_TYPES, *ALIGNMENTS, *INTERPOLATIONS}
    assert not [word for word in words if f'`{word}`' not in text]

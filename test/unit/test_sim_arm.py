"""Kinematics, limits and dynamics of the embedded arm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkrt_ros.runtime.errors import ActionError
from sparkrt_ros.sim.arm import ArmDynamics, ArmSpec, TipPose, forward, inverse

SPEC = ArmSpec()
HOME = np.append(inverse(SPEC, TipPose(pan_rad=0.0, reach_m=0.19, height_m=0.17)), 0.8)
STEP_S = 0.005


def run(arm, seconds):
    for _ in range(round(seconds / STEP_S)):
        arm.step(STEP_S)


def test_the_upright_arm_stands_over_its_base():
    pose = forward(SPEC, np.zeros(5))
    total = SPEC.shoulder_height_m + SPEC.upper_arm_m + SPEC.forearm_m + SPEC.hand_m
    assert pose.height_m == pytest.approx(total)
    assert pose.reach_m == pytest.approx(0.0, abs=1e-12)
    assert pose.pitch_rad == pytest.approx(math.pi / 2)


@given(
    pan=st.floats(-1.5, 1.5),
    reach=st.floats(0.15, 0.30),
    height=st.floats(0.005, 0.19),
)
def test_inverse_then_forward_returns_the_pose_with_the_hand_down(pan, reach, height):
    joints = inverse(SPEC, TipPose(pan_rad=pan, reach_m=reach, height_m=height))
    pose = forward(SPEC, np.append(joints, 0.0))
    assert pose.pan_rad == pytest.approx(pan, abs=1e-9)
    assert pose.reach_m == pytest.approx(reach, abs=1e-9)
    assert pose.height_m == pytest.approx(height, abs=1e-9)
    assert pose.pitch_rad == pytest.approx(-math.pi / 2, abs=1e-9)


@given(pan=st.floats(-9, 9), reach=st.floats(-2, 2), height=st.floats(-2, 2))
def test_inverse_of_any_pose_is_finite_and_within_limits(pan, reach, height):
    joints = inverse(SPEC, TipPose(pan_rad=pan, reach_m=reach, height_m=height))
    assert np.isfinite(joints).all()
    assert (joints >= np.array(SPEC.lower_rad[:4]) - 1e-12).all()
    assert (joints <= np.array(SPEC.upper_rad[:4]) + 1e-12).all()


def test_joints_settle_on_the_command_without_overshoot():
    arm = ArmDynamics(SPEC, HOME)
    target = HOME + np.array([0.4, 0.1, -0.1, 0.1, 0.15])
    arm.command(target)
    highest = arm.positions_rad.copy()
    for _ in range(400):
        arm.step(STEP_S)
        highest = np.maximum(highest, arm.positions_rad)
    np.testing.assert_allclose(arm.positions_rad, target, atol=1e-4)
    assert (highest <= np.maximum(target, HOME) + 2e-3).all()


@given(st.lists(st.floats(-50, 50), min_size=5, max_size=5), st.integers(0, 2**31))
def test_limits_hold_under_wild_commands(command, seed):
    arm = ArmDynamics(SPEC, HOME)
    random = np.random.default_rng(seed)
    for _ in range(60):
        arm.command(np.array(command) * random.uniform(-1, 1, 5))
        before = arm.velocities_rad_s
        arm.step(STEP_S)
        assert (arm.positions_rad >= SPEC.lower_rad).all()
        assert (arm.positions_rad <= SPEC.upper_rad).all()
        assert (np.abs(arm.velocities_rad_s) <= SPEC.max_velocity_rad_s).all()
        stopped = arm.velocities_rad_s == 0.0  # a limit or the table stops a joint at once
        change = np.abs(arm.velocities_rad_s - before)[~stopped]
        most = np.array(SPEC.max_acceleration_rad_s2)[~stopped] * STEP_S
        assert (change <= most + 1e-9).all()


def test_the_tip_does_not_go_through_the_table():
    arm = ArmDynamics(SPEC, HOME)
    arm.command(HOME + np.array([0, 1.0, 0.3, 0, 0]))
    lowest = math.inf
    for _ in range(400):
        arm.step(STEP_S)
        lowest = min(lowest, arm.tip.height_m)
    assert -1e-9 <= lowest < 0.03


def test_the_last_command_holds():
    arm = ArmDynamics(SPEC, HOME)
    arm.command(HOME + np.array([0.2, 0, 0, 0, 0]))
    run(arm, 1.0)
    settled = arm.positions_rad
    run(arm, 2.0)
    np.testing.assert_allclose(arm.positions_rad, settled, atol=1e-6)


@pytest.mark.parametrize(
    'command', [np.zeros(4), np.zeros((1, 5)), [0, 0, math.nan, 0, 0], [math.inf, 0, 0, 0, 0]]
)
def test_a_bad_command_is_refused_and_the_old_one_stays(command):
    arm = ArmDynamics(SPEC, HOME)
    with pytest.raises(ActionError, match='5 finite joint positions'):
        arm.command(command)
    np.testing.assert_array_equal(arm.commands_rad, HOME)


def test_something_between_the_fingers_blocks_them():
    arm = ArmDynamics(SPEC, HOME)
    arm.command(np.append(HOME[:4], 0.0))
    for _ in range(200):
        arm.step(STEP_S, least_gripper_rad=0.4)
    assert arm.positions_rad[-1] == pytest.approx(0.4)

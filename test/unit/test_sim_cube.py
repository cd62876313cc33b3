"""Grasping, pushing and dropping the cube."""

import itertools
import math

import numpy as np
import pytest

from sparkrt_ros.sim.arm import ArmDynamics, TipPose, inverse
from sparkrt_ros.sim.cube import Cube, CubeSpec, TraySpec, fold_quarter
from sparkrt_ros.sim.task import PickPlace

SIDE = CubeSpec().side_m
TRAY_M = np.array([0.15, -0.17])


def task_with(*, cube_m=(0.22, 0.0), yaw=0.0, tip=(0.0, 0.22, 0.010), gripper=1.0):
    """A task whose cube and hand are where the test wants them."""
    task = PickPlace(seed=0)
    place = np.array([*cube_m, SIDE / 2])
    task.cube = Cube(CubeSpec(), TraySpec(), position_m=place, yaw_rad=yaw, tray_m=TRAY_M)
    pan, reach, height = tip
    pose = TipPose(pan_rad=pan, reach_m=reach, height_m=height)
    task.arm = ArmDynamics(task.spec.arm, np.append(inverse(task.spec.arm, pose), gripper))
    return task


def move(task, *, tip=None, gripper=None, seconds=1.0):
    command = task.arm.commands_rad.copy()
    if tip is not None:
        pan, reach, height = tip
        pose = TipPose(pan_rad=pan, reach_m=reach, height_m=height)
        command[:4] = inverse(task.spec.arm, pose)
    if gripper is not None:
        command[4] = gripper
    task.arm.command(command)
    task.advance(seconds)


@pytest.mark.parametrize('yaw', [0.0, 0.3, 0.78, -0.6])
def test_closing_fingers_centre_turn_and_hold_the_cube(yaw):
    task = task_with(cube_m=(0.22, 0.009), yaw=yaw)
    move(task, gripper=0.0)
    assert task.cube.held
    assert task.arm.opening_m == pytest.approx(SIDE, abs=1e-3)
    assert task.cube.position_m[1] == pytest.approx(0.0, abs=1e-3)
    assert abs(fold_quarter(task.cube.yaw_rad)) < 0.05


def test_a_held_cube_goes_where_the_hand_goes():
    task = task_with()
    move(task, gripper=0.0)
    move(task, tip=(0.7, 0.25, 0.10), seconds=2.0)
    np.testing.assert_allclose(task.cube.position_m[:2], task.arm.tip.position_m[:2], atol=5e-3)
    assert task.cube.position_m[2] > 0.09
    assert not task.cube.resting


def test_a_missed_grasp_leaves_the_cube():
    task = task_with(cube_m=(0.26, 0.0), tip=(0.0, 0.20, 0.010))
    before = task.cube.position_m.copy()
    move(task, gripper=0.0)
    move(task, tip=(0.0, 0.20, 0.12), seconds=1.5)
    assert not task.cube.held
    np.testing.assert_array_equal(task.cube.position_m, before)


def test_closing_above_the_cube_grips_nothing():
    task = task_with(tip=(0.0, 0.22, 0.040))
    before = task.cube.position_m.copy()
    move(task, gripper=0.0)
    assert not task.cube.held
    np.testing.assert_array_equal(task.cube.position_m, before)


def test_a_closed_hand_pushes_the_cube_aside():
    task = task_with(cube_m=(0.22, 0.06), gripper=0.0)
    move(task, tip=(0.35, 0.22, 0.010), seconds=1.5)
    assert not task.cube.held
    assert math.hypot(*(task.cube.position_m[:2] - [0.22, 0.06])) > 0.01


def test_a_cube_let_go_in_the_air_falls_on_the_table():
    task = task_with()
    move(task, gripper=0.0)
    move(task, tip=(0.3, 0.22, 0.15), seconds=1.5)
    heights = []
    task.arm.command(np.append(task.arm.commands_rad[:4], 1.0))
    for _ in range(200):
        task.substep()
        heights.append(float(task.cube.position_m[2]))
    falling = heights[heights.index(max(heights)) :]
    assert all(a >= b for a, b in itertools.pairwise(falling))
    assert task.cube.resting
    assert heights[-1] == pytest.approx(SIDE / 2)
    assert not task.success


def test_a_cube_let_go_over_the_tray_is_a_success_only_at_rest():
    tip = (math.atan2(TRAY_M[1], TRAY_M[0]), math.hypot(*TRAY_M), 0.06)
    task = task_with(cube_m=TRAY_M, tip=tip, gripper=SIDE / 0.075)
    task.cube.position_m = task.arm.tip.position_m
    task.cube.take(task.arm.tip)
    task.advance(0.2)
    assert task.cube.in_tray
    assert not task.success
    move(task, gripper=1.0)
    assert task.success
    assert task.cube.position_m[2] == pytest.approx(SIDE / 2 + TraySpec().floor_height_m)


@pytest.mark.parametrize(('off', 'inside'), [(0.038, True), (0.052, False)])
def test_a_cube_that_lands_on_a_wall_slides_to_the_side_of_its_centre(off, inside):
    place = np.array([TRAY_M[0] + off, TRAY_M[1], 0.08])
    cube = Cube(CubeSpec(), TraySpec(), position_m=place, yaw_rad=0.2, tray_m=TRAY_M)
    far = TipPose(pan_rad=1.0, reach_m=0.2, height_m=0.2)
    for _ in range(200):
        cube.step(0.005, tip=far, opening_m=0.07)
    assert cube.resting
    assert cube.in_tray == inside


def test_a_held_cube_pressed_on_the_table_stays_above_it():
    task = task_with(tip=(0.0, 0.22, 0.020))
    move(task, gripper=0.0)
    move(task, tip=(0.0, 0.22, 0.002), seconds=1.0)
    assert task.cube.held
    assert task.cube.position_m[2] >= SIDE / 2 - 1e-9

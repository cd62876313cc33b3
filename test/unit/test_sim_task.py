"""The task and its scripted expert."""

import numpy as np
import pytest

from sparkrt_ros.sim.demos import FIRST_TRAINING_SEED, DemoSpec, displace, record
from sparkrt_ros.sim.episode import Episode
from sparkrt_ros.sim.expert import Expert
from sparkrt_ros.sim.task import PickPlace


def solve(task, *, most_s=20.0):
    expert = Expert()
    while not task.success and task.elapsed_s < most_s:
        task.step(expert.command(task))
    return task.success


@pytest.mark.parametrize('seed', range(20))
def test_the_expert_succeeds(seed):
    task = PickPlace(seed=seed)
    assert solve(task, most_s=8.0)
    assert task.cube.resting
    assert not task.cube.held


@pytest.mark.parametrize('seed', range(10))
@pytest.mark.parametrize('holding', [False, True])
def test_the_expert_succeeds_from_anywhere(seed, holding):
    task = PickPlace(seed=seed)
    displace(task, np.random.default_rng(seed), holding=holding)
    assert solve(task)


def test_without_commands_nothing_happens():
    task = PickPlace(seed=3)
    cube, joints = task.cube.position_m.copy(), task.arm.positions_rad.copy()
    task.advance(2.0)
    np.testing.assert_array_equal(task.cube.position_m, cube)
    np.testing.assert_allclose(task.arm.positions_rad, joints, atol=1e-9)
    assert not task.success


def test_seeds_place_cube_and_tray_apart_within_their_ranges():
    spec = PickPlace().spec
    tasks = [PickPlace(seed=seed) for seed in range(200)]
    for task in tasks:
        place, tray = task.cube.position_m[:2], task.cube.tray_m
        assert np.hypot(*(place - tray)) >= spec.apart_m
        assert spec.cube_reach_m[0] <= np.hypot(*place) <= spec.cube_reach_m[1]
        assert spec.tray_angle_rad[0] <= np.arctan2(tray[1], tray[0]) <= spec.tray_angle_rad[1]
    assert np.std([task.cube.position_m[1] for task in tasks]) > 0.05
    assert np.std([task.cube.yaw_rad for task in tasks]) > 0.3


def test_the_same_seed_and_commands_give_the_same_states():
    def states():
        task, expert = PickPlace(seed=9), Expert()
        for _ in range(60):
            task.step(expert.command(task))
        return np.concatenate((task.arm.positions_rad, task.cube.position_m))

    np.testing.assert_array_equal(states(), states())


def test_an_episode_times_out():
    task = PickPlace(seed=0)
    task.advance(task.spec.time_limit_s - 0.1)
    assert not task.timed_out
    task.advance(0.2)
    assert task.timed_out


def test_a_demonstration_holds_the_experts_command_for_every_frame():
    demo = record(FIRST_TRAINING_SEED + 3, DemoSpec(displaced_share=0.0, noise_rad=0.0))
    length = len(demo.states)
    assert demo.success
    assert demo.actions.shape == demo.states.shape == (length, 5)
    assert {frames.shape for frames in demo.images.values()} == {(length, 96, 128, 3)}
    fresh = PickPlace(seed=FIRST_TRAINING_SEED + 3)
    np.testing.assert_allclose(demo.states[0], fresh.arm.positions_rad, atol=1e-6)
    np.testing.assert_allclose(demo.actions[0], Expert().command(fresh), atol=1e-6)


def test_the_clock_of_an_episode_starts_with_the_first_command():
    task = PickPlace(seed=0)
    episode = Episode(task, time_limit_s=1.0)
    task.advance(5.0)
    assert not episode.update()
    assert episode.report()['elapsed_s'] == 0.0
    episode.commanded()
    task.advance(0.5)
    assert not episode.update()
    task.advance(0.6)
    assert episode.update()
    assert episode.report()['done']
    assert not episode.report()['success']


def test_an_episode_stays_as_it_ended():
    task, expert = PickPlace(seed=0), Expert()
    episode = Episode(task, time_limit_s=20.0)
    episode.commanded()
    while not episode.update():
        task.step(expert.command(task))
    ended = episode.report()
    assert ended['success']
    task.advance(3.0)
    assert not episode.update()
    assert episode.report()['elapsed_s'] == ended['elapsed_s'] == pytest.approx(3.0, abs=2.5)

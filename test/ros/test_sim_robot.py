"""The embedded robot as a process, seen through its topics and services."""

import json
import math
import signal

import numpy as np
import pytest
from ros_harness import executable
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from sparkrt_ros.nodes import qos
from sparkrt_ros.sim.arm import JOINT_NAMES
from sparkrt_ros.sim.expert import Expert
from sparkrt_ros.sim.task import PickPlace

pytestmark = pytest.mark.ros

SEED = 5


class Robot:
    """The process, and whoever commands it: again and again, as controllers are.

    A single message is lost where the robot does not know its publisher yet, which does know the
    robot.
    """

    def __init__(self, spawn, peer, *, seed=SEED, **parameters):
        self.images = {
            camera: peer.subscribe(Image, f'{camera}_camera/image_raw', qos.CAMERA)
            for camera in ('front', 'wrist')
        }
        self.joints = peer.subscribe(JointState, 'joint_states', qos.STATE)
        self.episodes = peer.subscribe(String, 'sim_robot/episode', qos.LATCHED)
        self._arm = peer.publisher(
            Float64MultiArray, 'forward_position_controller/commands', qos.COMMAND
        )
        self._gripper = peer.publisher(
            Float64MultiArray, 'gripper_controller/commands', qos.COMMAND
        )
        command = [executable('sim_robot'), '--ros-args', '-p', f'seed:={seed}']
        for name, value in parameters.items():
            command += ['-p', f'{name}:={value}']
        self.process = spawn(command)
        self._arm.wait_matched()
        self._gripper.wait_matched()
        self._newest = {}
        peer.every(0.05, self._repeat)

    def send_arm(self, values):
        self._send(self._arm, values)

    def send_gripper(self, values):
        self._send(self._gripper, values)

    def _send(self, outlet, values):
        message = Float64MultiArray(data=[float(value) for value in values])
        self._newest[outlet] = message
        outlet.publish(message)

    def _repeat(self):
        for outlet, message in list(self._newest.items()):
            outlet.publish(message)

    def wait_near(self, target, *, tolerance=0.01):
        def near(message):
            return bool(np.allclose(message.position, target, atol=tolerance))

        return self.joints.wait_for(near, what=f'joints near {target}')

    def wait_episode(self, accept, **options):
        message = self.episodes.wait_for(lambda m: accept(json.loads(m.data)), **options)
        return json.loads(message.data)


@pytest.fixture
def robot(spawn, peer):
    return Robot(spawn, peer)


def test_pictures_are_those_of_the_seed(robot):
    expected = PickPlace(seed=SEED).render()
    for camera, inbox in robot.images.items():
        message = inbox.wait_for()
        assert (message.height, message.width, message.step) == (240, 320, 960)
        assert message.encoding == 'rgb8'
        assert message.header.frame_id == f'{camera}_camera_optical'
        pixels = np.frombuffer(message.data, np.uint8).reshape(240, 320, 3)
        np.testing.assert_array_equal(pixels, expected[camera])


def test_pictures_are_stamped_with_now_and_both_cameras_alike(robot, peer):
    front = robot.images['front'].wait_for()
    stamp_ns = front.header.stamp.sec * 10**9 + front.header.stamp.nanosec
    assert 0 <= peer.now_ns - stamp_ns < 1e9
    robot.images['wrist'].wait_for(count=2)
    stamps = [
        {(m.header.stamp.sec, m.header.stamp.nanosec) for m in inbox.messages}
        for inbox in robot.images.values()
    ]
    assert stamps[0] & stamps[1]


def test_joint_states_name_the_joints_and_carry_no_effort(robot):
    message = robot.joints.wait_for()
    assert tuple(message.name) == JOINT_NAMES
    assert len(message.position) == len(message.velocity) == 5
    assert list(message.effort) == []
    np.testing.assert_allclose(message.position, PickPlace(seed=SEED).arm.positions_rad, atol=1e-6)


def test_the_arm_follows_commands_and_holds_the_last(robot):
    start = np.array(robot.joints.wait_for().position)
    target = start + np.array([0.3, 0.1, -0.1, 0.0, 0.0])
    robot.send_arm(target[:4])
    robot.send_gripper([0.9])
    target[4] = 0.9
    robot.wait_near(target)
    robot.joints.wait_for(count=50)
    np.testing.assert_allclose(robot.joints.last.position, target, atol=1e-2)


@pytest.mark.parametrize('bad', [[0.1, 0.2], [0.1] * 5, [], [0.1, math.nan, 0.1, 0.1]])
def test_a_bad_command_is_ignored_and_named(robot, bad):
    start = np.array(robot.joints.wait_for().position)
    robot.send_arm(bad)
    robot.process.wait_for_log('forward_position_controller/commands: command ignored.*expected 4')
    robot.send_gripper([0.95])
    start[4] = 0.95
    robot.wait_near(start)


def test_reset_begins_the_next_seed(robot, peer):
    robot.wait_episode(lambda episode: episode['seed'] == SEED)
    response = peer.call(Trigger, 'sim_robot/reset')
    assert response.success
    assert str(SEED + 1) in response.message
    episode = robot.wait_episode(lambda e: e['seed'] == SEED + 1)
    fresh = PickPlace(seed=SEED + 1)
    np.testing.assert_allclose(episode['cube_m'], fresh.cube.position_m, atol=1e-4)
    np.testing.assert_allclose(episode['target_m'], fresh.cube.tray_m, atol=1e-4)
    robot.wait_near(fresh.arm.positions_rad, tolerance=1e-6)


def test_the_experts_commands_solve_the_episode_through_topics(robot, peer):
    task, expert = PickPlace(seed=SEED), Expert()
    commands = []
    while not task.success:
        commands.append(expert.command(task))
        task.step(commands[-1])
    left = iter([*commands, *commands[-1:] * 20])

    def send():
        command = next(left, None)
        if command is not None:
            robot.send_arm(command[:4])
            robot.send_gripper(command[4:])

    timer = peer.every(0.05, send)
    episode = robot.wait_episode(lambda e: e['done'], what='end of the episode')
    timer.cancel()
    assert episode['success']
    assert episode['elapsed_s'] < 10.0
    robot.process.wait_for_log(f'episode of seed {SEED}: success')


def test_an_episode_fails_at_its_time_limit(spawn, peer):
    robot = Robot(spawn, peer, time_limit_s=1.0)
    waiting = robot.wait_episode(lambda e: True)
    assert waiting['elapsed_s'] == 0.0
    robot.send_gripper([0.9])
    episode = robot.wait_episode(lambda e: e['done'])
    assert not episode['success']
    assert episode['elapsed_s'] == pytest.approx(1.0, abs=0.3)


def test_a_wrong_parameter_ends_the_process_with_its_name(spawn):
    process = spawn([executable('sim_robot'), '--ros-args', '-p', 'image_rate_hz:=-3.0'])
    assert process.wait() == 1
    assert "parameter 'image_rate_hz'" in process.log


def test_an_interrupt_ends_the_process_in_order(robot):
    robot.joints.wait_for()
    robot.process.signal(signal.SIGINT)
    assert robot.process.wait() == 0
    assert 'Traceback' not in robot.process.log

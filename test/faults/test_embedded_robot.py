"""The embedded robot and its trained policy: the robot dies in mid-motion and comes back."""

from __future__ import annotations

import signal
import sys

import pytest
from fault_rig import Stack
from ros_harness import ROOT, parameter_file

pytestmark = [pytest.mark.ros, pytest.mark.slow]

POLICY = ROOT / 'checkpoints' / 'embedded_pick_place'
ROBOT = ROOT / 'config' / 'robots' / 'embedded.yaml'


@pytest.fixture
def embedded(spawn, peer, tmp_path):
    made = Stack(spawn, peer, tmp_path, POLICY, robot=ROBOT)
    yield made
    made.assert_commands_are_sound()


@pytest.fixture
def start_robot(spawn, tmp_path):
    def start():
        path = parameter_file(tmp_path, 'sim_robot', {'seed': 1})
        module = ['-m', 'sparkrt_ros.sim.sim_robot']
        return spawn([sys.executable, *module, '--ros-args', '--params-file', str(path)])

    return start


def test_a_robot_that_dies_and_comes_back(embedded, start_robot):
    robot = start_robot()
    embedded.start()
    begin_ns = embedded.wait_streaming()
    robot.signal(signal.SIGKILL)
    robot.wait()
    embedded.wait_policy_reason('joint_states', 'at most 0.1 s')
    embedded.wait_reason('stopped', 'joint_states', 'expected at most 0.100 s')
    embedded.pause_after(begin_ns)
    embedded.assert_resumes(start_robot)


def test_a_policy_that_dies_while_the_robot_works(embedded, start_robot):
    start_robot()
    embedded.start()
    begin_ns = embedded.wait_streaming()
    embedded.policy.process.signal(signal.SIGKILL)
    embedded.policy.process.wait()
    embedded.wait_reason('stopped', 'the actions ran out', 'silent for')
    embedded.pause_after(begin_ns)
    since_ns = embedded.now_ns
    embedded.start_policy()
    embedded.wait_streaming(after_ns=since_ns)

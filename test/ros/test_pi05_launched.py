"""The tiny Pi0.5 through both nodes, with the parameters that the launch file gives them."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from pi_folder import write_pi_folder
from ros_fixtures import SensorFeed
from ros_harness import ROOT, executable, parameter_file
from sensor_msgs.msg import JointState
from streamer_rig import EVERY
from vla_rig import PI_JOINTS, TASK, TINY_PI_ROBOT

from sparkrt.msg import PolicyStatus, StreamerStatus
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

NAMESPACE = 'left_arm'


def overrides(name: str) -> tuple[str, ...]:
    """The parameters that policy.launch.py passes on from its arguments."""
    tree = ast.parse((ROOT / 'launch' / 'policy.launch.py').read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f'no {name}')


@pytest.fixture
def launch(spawn, tmp_path):
    """``launch(checkpoint=..., ...)`` starts both nodes as policy.launch.py does."""

    def start(**arguments):
        processes = []
        for name, node, allowed in (
            ('policy_node', 'sparkrt', overrides('POLICY_OVERRIDES')),
            ('action_streamer', 'action_streamer', overrides('STREAMER_OVERRIDES')),
        ):
            given = {key: value for key, value in arguments.items() if key in allowed}
            path = parameter_file(tmp_path, node, {**given, 'autostart': True})
            config = ROOT / 'config' / 'policy.yaml'
            options = ['-r', f'__ns:=/{NAMESPACE}', '-r', f'__node:={node}']
            files = ['--params-file', str(config), '--params-file', str(path)]
            processes.append(spawn([executable(name), '--ros-args', *options, *files]))
        return processes

    return start


@pytest.fixture
def robot(peer, monkeypatch):
    """The cameras and joints of the robot in its namespace."""
    publisher = peer.publisher
    monkeypatch.setattr(
        peer,
        'publisher',
        lambda kind, topic, profile: publisher(kind, f'/{NAMESPACE}/{topic}', profile),
    )
    made = SensorFeed(peer)
    made.positions = dict.fromkeys(PI_JOINTS, 0.25)
    return made


def test_frames_and_a_prompt_become_commands(launch, robot, peer, tmp_path):
    status = peer.subscribe(PolicyStatus, f'/{NAMESPACE}/sparkrt/status', qos.STATUS)
    streamed = peer.subscribe(StreamerStatus, f'/{NAMESPACE}/action_streamer/status', qos.STATUS)
    commands = peer.subscribe(JointState, f'/{NAMESPACE}/arm_commands', EVERY)
    policy, streamer = launch(
        checkpoint=str(write_pi_folder('pi05', tmp_path / 'policy')),
        robot=str(TINY_PI_ROBOT),
        device='cpu',
        prompt=TASK,
    )
    robot.start()
    seen = status.wait_for(lambda m: m.chunks >= 3, timeout_s=120.0, what='chunks')
    assert (seen.model, seen.mode, seen.prompt) == ('pi05', 'queue', TASK)
    assert seen.failures == 0
    streamed.wait_for(lambda m: m.state == 'streaming')
    commands.wait_for(count=50)
    positions = np.array([message.position for message in commands.messages])
    assert positions.shape[1] == len(PI_JOINTS)
    assert np.isfinite(positions).all()
    assert np.ptp(positions, axis=0).max() > 0.0
    for process in (policy, streamer):
        assert 'unknown parameter' not in process.log
        assert 'Traceback' not in process.log

"""A tiny Pi0.5 in the real nodes, for tests with ROS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pi_folder import write_pi_folder
from ros_fixtures import PolicyUnderTest
from ros_harness import ROOT, Peer, parameter_file
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from streamer_rig import EVERY

from sparkrt.msg import StreamerProgress, StreamerStatus
from sparkrt_ros.nodes import qos

NODE = '/sparkrt'
TINY_PI_ROBOT = ROOT / 'test' / 'ros' / 'robots' / 'tiny_pi.yaml'
PI_JOINTS = (
    'shoulder_pan',
    'shoulder_lift',
    'elbow_flex',
    'wrist_flex',
    'wrist_roll',
    'slide',
    'gripper',
)
TASK = 'pick up the red cube'
# The policy needs no more than that to be itself, and the machine less time.
QUICK = {'num_steps': 2, 'vla__state_prompt__mode': 'fixed', 'backend': 'eager', 'device': 'cpu'}


def long_pi_folder(folder: Path) -> Path:
    """A Pi0.5 whose chunks last 2 s, of which half a second is used."""
    return write_pi_folder('pi05', folder, chunk_size=40, n_action_steps=10)


def serve_pi(start_policy: Any, feed: Any, folder: Path, **options: Any) -> PolicyUnderTest:
    """A policy node with the tiny Pi0.5 and a robot that reports to it; it may lack a prompt."""
    feed.positions = dict.fromkeys(PI_JOINTS, 0.25)
    values = {**QUICK, 'robot': str(TINY_PI_ROBOT), 'checkpoint': str(folder), **options}
    policy: PolicyUnderTest = start_policy(**values)
    # Observations are not always as far from a row of the chunk that plays.
    feed.start(camera_hz=27.0)
    return policy


class PiStreamer:
    """A streamer process for the robot of the tiny Pi0.5, and all it says."""

    def __init__(self, spawn: Any, peer: Peer, folder: Path, **parameters: Any) -> None:
        self.commands = peer.subscribe(JointState, '/arm_commands', EVERY)
        self.status = peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS)
        self.progress = peer.subscribe(StreamerProgress, '/action_streamer/progress', EVERY)
        values = {
            'robot': str(TINY_PI_ROBOT),
            'autostart': True,
            'control.hold_s': 120.0,
            **{name.replace('__', '.'): value for name, value in parameters.items()},
        }
        path = parameter_file(folder, 'action_streamer', values)
        module = ['-m', 'sparkrt_ros.nodes.action_streamer']
        self.process = spawn([sys.executable, *module, '--ros-args', '--params-file', str(path)])


class PromptSender:
    """Publishes on ``~/prompt``."""

    def __init__(self, peer: Peer) -> None:
        self._outlet = peer.publisher(String, f'{NODE}/prompt', qos.PROMPT)

    def send(self, text: str) -> None:
        self._outlet.wait_matched()
        self._outlet.publish(String(data=text))

    def send_bytes(self, content: bytes) -> None:
        """Any bytes, as a program in another language could."""
        self._outlet.wait_matched()
        length = (len(content) + 1).to_bytes(4, 'little')
        self._outlet.publish(b'\x00\x01\x00\x00' + length + content + b'\x00')

"""E1: cameras and joints at full rate: every picture arrives or is reported, nothing piles up.

How fast and how evenly is measured over minutes by bench/control_jitter.py; here the work is done,
with both real nodes, and the memory of a process does not grow with the pictures it received.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from act_folder_factory import feature, features, tiny_config
from ros_fixtures import TINY_ROBOT
from ros_harness import ROOT, parameter_file

from sparkrt.msg import StreamerStatus
from sparkrt_ros.nodes import qos

pytestmark = [pytest.mark.ros, pytest.mark.slow]

CAMERAS = ('front', 'wrist', 'side')
PICTURE_MB = 640 * 480 * 3 / 1e6
LOAD = """
import array, sys
import rclpy
from sensor_msgs.msg import Image, JointState

rclpy.init()
node = rclpy.create_node('load')
image = Image(height=480, width=640, encoding='rgb8', step=1920)
image.data = array.array('B', bytes(480 * 1920))
joints = JointState(name=sys.argv[1].split(','), position=[0.5] * 5)

def stamped(publisher, message):
    message.header.stamp = node.get_clock().now().to_msg()
    publisher.publish(message)

for name in sys.argv[2].split(','):
    camera = node.create_publisher(Image, f'{name}_camera/image_raw', 5)
    node.create_timer(1 / 30, lambda camera=camera: stamped(camera, image))
states = node.create_publisher(JointState, 'joint_states', 20)
node.create_timer(1 / 500, lambda: stamped(states, joints))
rclpy.spin(node)
"""


def resident_mb(pid: int) -> float:
    """Without what the middleware shares with other processes."""
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith('RssAnon')) / 1e3


def robot(folder: Path) -> Path:
    """The tiny robot with a third camera."""
    text = TINY_ROBOT.read_text()
    wrist = next(line for line in text.splitlines() if 'wrist_camera' in line)
    path = folder / 'three.yaml'
    path.write_text(text.replace(wrist, f'{wrist}\n{wrist.replace("wrist", "side")}'))
    return path


def test_three_cameras_and_fast_joints(
    start_policy, spawn, make_act_folder, peer, tmp_path
) -> None:
    inputs = features(
        *(feature(f'observation.images.{name}', 'VISUAL', 3, 64, 64) for name in CAMERAS),
        feature('observation.state', 'STATE', 5),
    )
    folder = make_act_folder('three_cameras', config=tiny_config(input_features=inputs))
    contract = robot(tmp_path)
    status = peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS)
    policy = start_policy(checkpoint=str(folder), robot=str(contract))
    values = {'robot': str(contract), 'autostart': True, 'control.rate_hz': 50.0}
    path = parameter_file(tmp_path, 'action_streamer', values)
    module = ['-m', 'sparkrt_ros.nodes.action_streamer', '--ros-args', '--params-file', str(path)]
    streamer = spawn([sys.executable, *module])
    joints = 'shoulder_pan,shoulder_lift,elbow_flex,wrist_flex,gripper'
    spawn([sys.executable, '-c', LOAD, joints, ','.join(CAMERAS)])

    status.wait_for(lambda m: m.state == 'streaming', timeout_s=60.0)
    begin = policy.status.wait_for(lambda m: min(m.stream_received[:3]) >= 60, timeout_s=60.0)
    commands, memory = status.last.commands, resident_mb(policy.process.pid)
    streamer_memory = resident_mb(streamer.pid)
    wanted = [count + 150 for count in begin.stream_received[:3]]
    end = policy.status.wait_for(
        lambda m: all(n >= w for n, w in zip(m.stream_received[:3], wanted, strict=True)),
        timeout_s=90.0,
    )
    assert end.bad_messages == 0
    assert end.failures == 0
    assert end.chunks > begin.chunks
    received_mb = PICTURE_MB * 3 * 150
    assert resident_mb(policy.process.pid) - memory < received_mb / 10
    assert resident_mb(streamer.pid) - streamer_memory < 10.0
    assert status.last.commands > commands
    assert (ROOT / 'bench' / 'control_jitter.py').is_file()

"""A process that publishes three 640x480 rgb8 cameras at 30 Hz and joint states at 500 Hz.

python bench/camera_load.py --joints joint_1 joint_2
"""

from __future__ import annotations

import argparse
import array
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.utilities import remove_ros_args
from ros_bench import BEST_EFFORT
from sensor_msgs.msg import Image, JointState

CAMERAS = ('front', 'wrist', 'side')
CAMERA_HZ = 30.0
JOINT_HZ = 500.0
HEIGHT, WIDTH = 480, 640


def publish(joint_names: list[str]) -> None:
    """Until a signal; all three pictures have one stamp, as of cameras that are triggered."""
    node = rclpy.create_node('camera_load')
    pixels = np.random.default_rng(0).integers(0, 256, HEIGHT * WIDTH * 3, dtype=np.uint8)
    image = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
    image.data = array.array('B', pixels.tobytes())
    joints = JointState(name=joint_names, position=[0.1] * len(joint_names))
    cameras = [
        node.create_publisher(Image, f'{name}_camera/image_raw', BEST_EFFORT) for name in CAMERAS
    ]
    states = node.create_publisher(JointState, 'joint_states', BEST_EFFORT)

    def stamped(message: Any) -> Any:
        message.header.stamp = node.get_clock().now().to_msg()
        return message

    def publish_pictures() -> None:
        picture = stamped(image)
        for camera in cameras:
            camera.publish(picture)

    node.create_timer(1.0 / CAMERA_HZ, publish_pictures)
    node.create_timer(1.0 / JOINT_HZ, lambda: states.publish(stamped(joints)))
    rclpy.spin(node)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--joints', nargs='+', required=True, metavar='NAME')
    options = parser.parse_args(remove_ros_args(sys.argv)[1:])
    rclpy.init(args=sys.argv)
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        publish(options.joints)
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""The cameras and joints of the tiny robot as a process of its own, so that it can be killed."""

import array
import sys

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from sensor_msgs.msg import Image, JointState

from sparkrt_ros.nodes import qos

JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'gripper')
SIZE = (48, 64, 3)


def main():
    rclpy.init()
    node = rclpy.create_node('sensors')
    random = np.random.default_rng()
    cameras = [
        node.create_publisher(Image, f'{name}_camera/image_raw', qos.CAMERA)
        for name in ('front', 'wrist')
    ]
    joints = node.create_publisher(JointState, 'joint_states', qos.STATE)

    def publish_pictures():
        image = Image(height=SIZE[0], width=SIZE[1], encoding='rgb8', step=SIZE[1] * SIZE[2])
        image.data = array.array('B', random.bytes(np.prod(SIZE)))
        image.header.stamp = node.get_clock().now().to_msg()
        for camera in cameras:
            camera.publish(image)

    def publish_joints():
        message = JointState(name=list(JOINTS), position=[0.25] * len(JOINTS))
        message.header.stamp = node.get_clock().now().to_msg()
        joints.publish(message)

    node.create_timer(1 / 30, publish_pictures)
    node.create_timer(1 / 50, publish_joints)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0


if __name__ == '__main__':
    sys.exit(main())

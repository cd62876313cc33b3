"""Whether two messages hold the same, whatever lies between their fields on the wire."""

import array

import numpy as np
import pytest
from message_factory import message_kind

from sparkrt_ros.replay.message_bytes import message_bytes

pytest.importorskip('trajectory_msgs', reason='needs ROS messages')


def trajectory(second: float = 0.2):
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

    message = JointTrajectory(joint_names=['a', 'b'])
    message.header.frame_id = 'base'
    message.points = [JointTrajectoryPoint(positions=array.array('d', [0.1, second]))]
    return message


def test_equal_messages_have_equal_bytes():
    assert message_bytes(trajectory()) == message_bytes(trajectory())


def test_every_field_counts():
    base = message_bytes(trajectory())
    assert message_bytes(trajectory(np.nextafter(0.2, 1.0))) != base
    changed = trajectory()
    changed.header.stamp.nanosec = 1
    assert message_bytes(changed) != base
    changed = trajectory()
    changed.joint_names = ['ab', '']
    assert message_bytes(changed) != base
    changed = trajectory()
    changed.points = []
    assert message_bytes(changed) != base


def test_texts_and_lists_do_not_run_into_each_other():
    first, second = trajectory(), trajectory()
    first.joint_names, second.joint_names = ['a', 'bc'], ['ab', 'c']
    assert message_bytes(first) != message_bytes(second)


def test_kinds_of_content():
    joint_state = message_kind('ros').joint_state(['a'], [float('nan')], stamp_ns=5)
    assert message_bytes(joint_state) == message_bytes(joint_state), 'NaN equals itself in bytes'

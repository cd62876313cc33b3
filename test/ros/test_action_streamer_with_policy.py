"""Both real nodes together: the policy paces itself by the streamer, and may die."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest
from ros_fixtures import TINY_ROBOT
from ros_harness import parameter_file
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import StreamerProgress, StreamerStatus
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros


class Streamer:
    def __init__(self, spawn, peer, folder) -> None:
        self.arm = peer.subscribe(
            Float64MultiArray, '/forward_position_controller/commands', qos.COMMAND
        )
        self.gripper = peer.subscribe(
            Float64MultiArray, '/gripper_controller/commands', qos.COMMAND
        )
        self.status = peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS)
        self.progress = peer.subscribe(StreamerProgress, '/action_streamer/progress', qos.PROGRESS)
        parameters = {'robot': str(TINY_ROBOT), 'autostart': True, 'control.hold_s': 120.0}
        path = parameter_file(folder, 'action_streamer', parameters)
        module = ['-m', 'sparkrt_ros.nodes.action_streamer']
        self.process = spawn([sys.executable, *module, '--ros-args', '--params-file', str(path)])


@pytest.fixture
def streamer(spawn, peer, tmp_path):
    return Streamer(spawn, peer, tmp_path)


def test_chunk_after_chunk_is_played_without_running_out(streamer, start_policy, feed):
    feed.start()
    start_policy()
    streamer.status.wait_for(lambda m: m.state == 'streaming')
    begin = streamer.status.last
    end = streamer.status.wait_for(lambda m: m.chunks_taken >= begin.chunks_taken + 12)
    assert end.chunks_dropped == begin.chunks_dropped, streamer.process.log
    assert end.underruns - begin.underruns <= 1, 'infers ahead of the end of its actions'
    assert np.isfinite([message.data for message in streamer.arm.messages]).all()


def test_a_policy_killed_in_mid_motion_is_held_for_and_its_successor_taken(
    streamer, start_policy, feed
):
    feed.start()
    policy = start_policy()
    first = streamer.progress.wait_for(lambda m: m.played > 0.5)
    policy.process.signal(signal.SIGKILL)
    policy.process.wait()
    held = streamer.status.wait_for(
        lambda m: m.state == 'holding' and 'the policy process has been silent' in m.reason
    )
    assert held.reason.startswith('the actions ran out; last chunk')
    last = list(streamer.arm.last.data)
    assert list(streamer.arm.wait_for(count=10).data) == last
    start_policy()
    resumed = streamer.progress.wait_for(lambda m: m.state == 'streaming', timeout_s=60.0)
    assert resumed.session_id != first.session_id
    streamer.process.wait_for_log('holding: the actions ran out')

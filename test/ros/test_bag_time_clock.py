"""T2 and its kind: /clock that begins late, stands still, jumps; both real nodes follow it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from rclpy.qos import QoSProfile
from ros_fixtures import TINY_ROBOT, PolicyUnderTest, SensorFeed
from ros_harness import parameter_file
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import StreamerStatus
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

START_NS = 1_700_000_000_000_000_000
STEP_NS = 20_000_000


class SimulatedWorld:
    """Cameras, joints and /clock in made-up time, moved on by hand; the real nodes in between."""

    def __init__(self, feed: SensorFeed, start_policy, spawn, folder) -> None:
        self.now_ns = START_NS
        self.feed, peer = feed, feed.peer
        self._clock = peer.publisher(Clock, '/clock', QoSProfile(depth=10))
        self.commands = peer.subscribe(
            Float64MultiArray, '/forward_position_controller/commands', QoSProfile(depth=100)
        )
        self.status = peer.subscribe(StreamerStatus, '/action_streamer/status', qos.STATUS)
        self.policy: PolicyUnderTest = start_policy(use_sim_time=True)
        parameters = {
            'robot': str(TINY_ROBOT),
            'autostart': True,
            'use_sim_time': True,
            'control.hold_s': 3600.0,
        }
        path = parameter_file(folder, 'action_streamer', parameters)
        module = ['-m', 'sparkrt_ros.nodes.action_streamer']
        self.streamer = spawn([sys.executable, *module, '--ros-args', '--params-file', str(path)])
        feed.wait_matched()
        self._clock.wait_matched(2)
        self.status.wait_for()

    def sense(self) -> None:
        """What the sensors say at this time."""
        for name in ('front', 'wrist'):
            self.feed.send_image(name, stamp_ns=self.now_ns)
        self.feed.send_joints(stamp_ns=self.now_ns)

    def tell_time(self, now_ns: int) -> None:
        self.now_ns = now_ns
        message = Clock()
        fill_stamp(message.clock, now_ns)
        self._clock.publish(message)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass, sensors included, until the nodes have come to ``condition``."""
        for _ in range(200):
            if condition():
                return
            for _ in range(5):
                self.tell_time(self.now_ns + STEP_NS)
                self.sense()
            self.status.wait_for()
        raise AssertionError(
            f'not reached: {self.policy.status.last}, {self.status.last}\n'
            f'{self.policy.process.log}\n{self.streamer.log}'
        )

    def streaming(self) -> bool:
        return len(self.policy.chunks) > 0 and self.status.last.state == 'streaming'


@pytest.fixture
def world(feed, start_policy, spawn, tmp_path) -> SimulatedWorld:
    return SimulatedWorld(feed, start_policy, spawn, tmp_path)


def test_a_clock_that_begins_late_is_waited_for_and_counts_as_no_delay(world: SimulatedWorld):
    sensing = world.feed.peer.every(0.05, world.sense)
    line = world.policy.process.wait_for_log('message dropped: front_camera/image_raw.*use_sim')
    assert '1700000000.000 s' in line
    assert 'node clock 0.000 s' in line
    status = world.policy.wait_status('waiting')
    sensing.cancel()
    assert 'front_camera/image_raw' in status.reason
    assert 'e+09' not in status.reason
    assert len(world.policy.chunks) == 0
    world.run_until(world.streaming)
    status = world.status.wait_for()
    assert status.overruns < 100, 'the time before it began was not missed'
    assert status.period_max < 60.0
    assert max(world.policy.status.wait_for().stream_ages) < 60.0
    assert 'e+09' not in world.policy.process.log + world.streamer.log


def test_a_clock_that_stands_still_stops_everything_and_going_on_is_enough(world: SimulatedWorld):
    world.run_until(world.streaming)
    world.status.wait_for(count=3)
    commands = world.status.wait_for().commands
    chunks, epoch = len(world.policy.chunks), world.policy.chunks.last.epoch
    still = world.status.wait_for(count=10)
    assert (still.commands, still.state) == (commands, 'streaming')
    assert len(world.policy.chunks) == chunks
    assert max(world.policy.status.wait_for().stream_ages) < 1.0, 'nothing grows old'
    world.run_until(lambda: len(world.policy.chunks) >= chunks + 2)
    assert world.status.wait_for().commands > commands
    assert world.policy.chunks.last.epoch == epoch


def test_a_jump_forward_makes_everything_stale_until_it_comes_anew(world: SimulatedWorld):
    world.run_until(world.streaming)
    epoch, overruns = world.policy.chunks.last.epoch, world.status.wait_for().overruns
    world.tell_time(world.now_ns + 100 * 1_000_000_000)
    status = world.policy.status.wait_for(lambda m: m.state == 'waiting' and 's old' in m.reason)
    assert 'front_camera/image_raw' in status.reason
    assert '100.' in status.reason
    world.status.wait_for(lambda m: m.state == 'holding')
    chunks = len(world.policy.chunks)
    world.run_until(lambda: len(world.policy.chunks) > chunks and world.streaming())
    assert world.policy.chunks.last.epoch == epoch
    status = world.status.wait_for()
    assert status.overruns < overruns + 100
    assert status.period_max < 60.0
    assert 'went back' not in world.policy.process.log + world.streamer.log


def test_a_jump_back_begins_anew_with_one_line_of_each_node(world: SimulatedWorld):
    world.run_until(world.streaming)
    before = world.policy.chunks.last
    world.tell_time(START_NS - 30 * 1_000_000_000)
    world.status.wait_for(lambda m: m.state == 'holding')
    world.run_until(lambda: world.policy.chunks.last.epoch > before.epoch and world.streaming())
    chunk = world.policy.chunks.last
    assert chunk.epoch == before.epoch + 1
    assert chunk.observation_stamp.sec < before.observation_stamp.sec
    assert world.policy.process.count('time went back by') == 1
    assert world.streamer.count('time went backwards: chunks') == 1

"""The streamer under simulated time: it follows /clock, stands with it, survives its jumps."""

from __future__ import annotations

import numpy as np
import pytest
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from streamer_rig import StreamerRig, open_rig, pan_lift, still

from sparkrt_ros.convert.time import fill_stamp

pytestmark = pytest.mark.ros

START_NS = 50_000_000_000
TICK_NS = 10_000_000


class SimulatedWorld:
    """Moves /clock by hand, a control period at a time, and keeps the joints fresh."""

    def __init__(self, rig: StreamerRig) -> None:
        self.rig = rig
        rig.simulated_ns = START_NS
        self._clock = rig.peer.publisher(Clock, '/clock', QoSProfile(depth=10))

    def start(self, **parameters):
        process = self.rig.start(wait=False, use_sim_time=True, **parameters)
        self._clock.wait_matched()
        self.rig.wait_matched()
        self.advance_until('waiting', reason='no action chunk yet')
        return process

    def jump(self, now_ns: int) -> None:
        self.rig.simulated_ns = now_ns
        message = Clock()
        fill_stamp(message.clock, now_ns)
        self._clock.publish(message)
        self.rig.publish_pose()

    def advance(self, periods: int) -> list[tuple[float, float]]:
        """Let simulated time pass; the arm commands of it, one awaited at each period."""
        begin = len(self.rig.arm)
        for number in range(1, periods + 1):
            self.jump(self.rig.simulated_ns + TICK_NS)
            self.rig.arm.wait_until(lambda n=number: len(self.rig.arm) >= begin + n)
        return [pan_lift(message) for message in self.rig.arm.messages[begin:]]

    def advance_until(self, state: str, *, reason: str = '') -> None:
        def step() -> bool:
            status = self.rig.status.wait_for()
            return status.state == state and reason in status.reason

        for _ in range(100):
            self.jump(self.rig.simulated_ns + TICK_NS)
            if step():
                return
        raise AssertionError(f'not {state}: {self.rig.status.last}')


@pytest.fixture
def world(tmp_path):
    with open_rig(tmp_path, simulated=True) as rig:
        yield SimulatedWorld(rig)


def ramp(rows: int) -> np.ndarray:
    return np.arange(rows)[:, None] * np.array([0.002, 0.0, 0.0])


def test_commands_follow_the_clock_and_stop_with_it(world: SimulatedWorld):
    world.start()
    world.rig.publish(ramp(200))
    world.rig.progress.wait_for(lambda m: m.state == 'waiting')
    world.advance_until('streaming')
    pan = [command[0] for command in world.advance(20)]
    np.testing.assert_allclose(np.diff(pan), 0.001, atol=1e-12)
    commands = world.rig.now_status().commands
    assert world.rig.now_status().commands == commands, 'time stands still, and so do commands'
    assert world.rig.status.last.state == 'streaming'


def test_a_backward_jump_holds_until_a_chunk_of_the_new_time(world: SimulatedWorld):
    process = world.start()
    world.rig.publish(ramp(500))
    world.advance_until('streaming')
    last = world.advance(5)[-1]
    world.jump(START_NS - 40_000_000_000)
    world.advance_until('holding', reason='time went backwards')
    assert set(world.advance(3)) == {last}
    world.rig.publish(still(100, pan=last[0]))
    world.advance_until('streaming')
    assert process.count('time went backwards: chunks') == 1


def test_a_chunk_stamped_by_the_system_clock_is_refused_with_the_remedy(world: SimulatedWorld):
    process = world.start()
    world.rig.simulated_ns, simulated_ns = world.rig.peer.now_ns, world.rig.simulated_ns
    message = world.rig.chunk(still(50))
    world.rig.simulated_ns = simulated_ns
    world.rig.chunks.publish(message)
    for _ in range(5):
        world.jump(world.rig.simulated_ns + TICK_NS)
    process.wait_for_log('in the future.*use_sim_time')
    assert len(world.rig.arm) == 0

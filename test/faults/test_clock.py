"""Simulated time that jumps or stands still, with both nodes on it."""

from __future__ import annotations

import threading

import pytest
from rosgraph_msgs.msg import Clock

from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros

STEP_NS = 10_000_000
BEGIN_NS = 1_000_000_000_000
FAR_NS = 60_000_000_000


class SimulatedWorld:
    """/clock at 100 Hz, and with it the pictures and joints of that time."""

    def __init__(self, stack) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._now_ns = BEGIN_NS
        self._steps = 0
        self._clock = stack.peer.publisher(Clock, '/clock', qos.DIAGNOSTICS)
        self.stands = False
        self.shows = True
        stack.peer.every(STEP_NS / 1e9, self._tick)

    @property
    def now_ns(self) -> int:
        with self._lock:
            return self._now_ns

    def jump(self, by_ns: int) -> int:
        """The time before the jump."""
        with self._lock:
            before_ns = self._now_ns
            self._now_ns += by_ns
            return before_ns

    def _tick(self) -> None:
        if self.stands:
            return
        with self._lock:
            self._now_ns += STEP_NS
            now_ns = self._now_ns
        self._steps += 1
        message = Clock()
        fill_stamp(message.clock, now_ns)
        self._clock.publish(message)
        self._stack.feed.send_joints(stamp_ns=now_ns)
        if self.shows and self._steps % 3 == 0:
            for name in ('front', 'wrist'):
                self._stack.feed.send_image(name, stamp_ns=now_ns)


@pytest.fixture
def world(stack):
    made = SimulatedWorld(stack)
    stack.start(sim_time=True)
    stack.wait_streaming()
    return made


def observed_ns(chunk) -> int:
    return stamp_to_ns(chunk.observation_stamp)


def test_a_jump_back_voids_everything_and_it_goes_on_by_itself(stack, world):
    epoch = stack.policy.chunks.wait_for().epoch
    # A busy streamer may get a chunk of the new time with its clock: none is made before it held.
    world.shows = False
    before_ns = world.jump(-FAR_NS)
    after_ns, middle_ns = before_ns - FAR_NS, before_ns - FAR_NS // 2
    held_ns = stack.ticks.wait_for('holding', after_ns=after_ns, before_ns=middle_ns)
    world.shows = True

    def is_later_epoch(chunk) -> bool:
        return chunk.epoch > epoch

    chunk = stack.policy.chunks.wait_for(is_later_epoch, what='chunk of a new epoch')
    assert after_ns <= observed_ns(chunk) < before_ns, 'made of nothing from before the jump'
    stack.ticks.wait_for('streaming', after_ns=held_ns, before_ns=middle_ns)
    jumped = [t for t in stack.ticks.all if after_ns < t.time_ns < middle_ns]
    assert jumped[0].state == 'holding', 'it waits for a chunk of the new time'
    stack.streamer.wait_for_log('time went backwards: chunks, history and measured pose')
    stack.policy.process.wait_for_log('time went back by .*observations cleared')
    assert all(process.running for process in stack.processes)


def test_a_jump_ahead_ends_the_actions_and_it_goes_on_by_itself(stack, world):
    stack.policy.chunks.wait_for()
    world.shows = False
    before_ns = world.jump(FAR_NS)
    ahead_ns = before_ns + FAR_NS
    first_ns = stack.ticks.wait_for('holding', after_ns=ahead_ns)
    world.shows = True
    stack.wait_streaming(after_ns=first_ns)
    late = [t for t in stack.ticks.all if t.time_ns >= ahead_ns]
    assert late[0].state == 'holding', 'nothing from before the jump is played'
    chunk = stack.policy.chunks.wait_for(lambda m: observed_ns(m) >= ahead_ns)
    assert chunk.rows > 0
    assert all(process.running for process in stack.processes)


def test_time_that_stands_still_sends_nothing_and_loses_nothing(stack, world):
    world.stands = True
    settled = stack.status.wait_for(count=3)
    assert settled.state == 'streaming', 'time is what the hold is counted in'
    again = stack.status.wait_for(count=5)
    assert again.commands == settled.commands
    world.stands = False
    stack.status.wait_for(lambda m: m.commands > settled.commands + 20)
    assert stack.status.last.state == 'streaming'

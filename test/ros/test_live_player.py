"""The player of bags against a peer that stands in for both nodes, over real topics."""

from __future__ import annotations

import math
import threading

import pytest
import yaml
from parity_bags import contract
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import Trace, TraceEntry
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes import qos
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.replay.live_nodes import LocalDomain
from sparkrt_ros.replay.live_player import LivePlayer, Timed

pytestmark = pytest.mark.ros

MS = 1_000_000
PERIOD_NS = 20 * MS
START_NS = 1_700_000_000 * 1000 * MS
END_NS = START_NS + 2 * PERIOD_NS
# How late the last trace is, unless the player has gone by then.
LATE_S = 0.5


class SlowToTell:
    """Sends a command when time begins and two when it ends, and tells of the last long after.

    On a busy machine the thread that sends traces may run long after the one that sends commands.
    """

    def __init__(self, ear: LiveEar) -> None:
        self._ear = ear
        self.returned = threading.Event()
        self._sent = self._told = 0
        # On the participant of the ear, so that nothing has to be discovered but topics.
        self.node = Node('slow', context=ear.node.context, use_global_arguments=False)
        self._policy = self.node.create_publisher(Trace, '/sparkrt/trace', qos.TRACE)
        self._streamer = self.node.create_publisher(Trace, '/action_streamer/trace', qos.TRACE)
        self._commands = self.node.create_publisher(Float64MultiArray, '/commands', 1)
        self._told_of: set[int] = set()
        self.node.create_subscription(Clock, '/clock', self._take_clock, 10)
        self._executor = SingleThreadedExecutor(context=ear.node.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def _take_clock(self, message: Clock) -> None:
        now_ns = stamp_to_ns(message.clock)
        if now_ns in self._told_of or now_ns not in (START_NS, END_NS):
            return
        self._told_of.add(now_ns)
        if now_ns == START_NS:
            self._command()
            self._tell(now_ns)
            return
        self._command()
        self._command()
        self._tell_policy(now_ns)
        self._tell(now_ns - PERIOD_NS)
        self.returned.wait(LATE_S)
        self._tell(now_ns)

    def _command(self) -> None:
        self._sent += 1
        self._commands.publish(Float64MultiArray(data=[float(self._sent)] * 5))
        with self._ear.changed:
            came = self._ear.changed.wait_for(self._heard_all, timeout=30.0)
        assert came, 'the command did not arrive'

    def _heard_all(self) -> bool:
        return len(self._ear.commands['arm']) >= self._sent

    def _tell(self, now_ns: int) -> None:
        self._told += 1
        entry = TraceEntry(kind=TraceEntry.TICK, name='streaming', count=self._told)
        fill_stamp(entry.clock, now_ns)
        self._streamer.publish(
            Trace(first=self._told - 1, entries=[entry], idle=True, wait=math.inf)
        )

    def _tell_policy(self, now_ns: int) -> None:
        trace = Trace(idle=True, wait=math.inf)
        fill_stamp(trace.header.stamp, now_ns)
        self._policy.publish(trace)

    def close(self) -> None:
        self._executor.shutdown(timeout_sec=5.0)
        self._thread.join()
        self.node.destroy_node()


def test_a_replay_at_a_rate_ends_with_every_command_that_was_heard_in_the_trace(
    ros_domain, tmp_path, monkeypatch
):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(ros_domain))
    path = tmp_path / 'robot.yaml'
    path.write_text(yaml.safe_dump(contract()))
    with LocalDomain() as domain:
        ear = LiveEar(load_contract(str(path)), domain=domain.number, namespace='')
        peer = SlowToTell(ear)
        try:
            player = LivePlayer(ear, [], period_ns=PERIOD_NS, check=lambda: None)
            times_ns = (START_NS, START_NS + PERIOD_NS, END_NS)
            player.play_at([Timed(time_ns=t, message=None) for t in times_ns], rate=1.0)
            peer.returned.set()
            with ear.changed:
                tick, heard = ear.streamer.last[TraceEntry.TICK], len(ear.commands['arm'])
            assert (heard, tick.count, stamp_to_ns(tick.clock)) == (3, 3, END_NS)
        finally:
            peer.close()
            ear.close()

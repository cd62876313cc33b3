"""Both real nodes around the tiny robot, and what they say while something goes wrong.

Times are read from the streamer's own trace: every control tick with its time and its state. So a
busy machine changes when things happen, never whether they are right.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros_fixtures import TINY_ROBOT, PolicyUnderTest, SensorFeed, Spawner, policy_command
from ros_harness import LIMIT_S, ROOT, Inbox, NodeProcess, Peer, parameter_file
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import StreamerProgress, StreamerStatus, Trace, TraceEntry
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos

EVERY = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
# Rounding of seconds in messages to nanoseconds, and of a chunk's rows to its end.
ROUNDING_NS = 2_000
FAULTY_POLICY_NODE = ROOT / 'test' / 'faults' / 'faulty_policy_node.py'
NOTHING: Mapping[str, str] = MappingProxyType({})
MOVING = 'streaming'


class Tick(NamedTuple):
    """One control tick: when, the state after it, and how many commands were sent so far."""

    time_ns: int
    state: str
    sent: int


class Pause(NamedTuple):
    """A hold that ended in a stop: the ticks with which each began."""

    last_moving_ns: int
    hold_ns: int
    stop_ns: int


class TickLog(Inbox):
    """The control ticks of a streamer, in order, taken out of its trace."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks: list[Tick] = []

    def put(self, message: Trace) -> None:
        ticks = [
            Tick(stamp_to_ns(entry.clock), entry.name, entry.count)
            for entry in message.entries
            if entry.kind == TraceEntry.TICK
        ]
        with self._changed:
            self._ticks += ticks
            self._changed.notify_all()

    @property
    def all(self) -> list[Tick]:
        with self._changed:
            return list(self._ticks)

    def wait_for(self, state: str, *, after_ns: int = 0, before_ns: int = sys.maxsize) -> int:
        """Time of the first tick between these times that ended in ``state``."""
        deadline = time.monotonic() + LIMIT_S
        seen = 0
        with self._changed:
            while True:
                for tick in self._ticks[seen:]:
                    if after_ns < tick.time_ns < before_ns and tick.state == state:
                        return tick.time_ns
                seen = len(self._ticks)
                left = deadline - time.monotonic()
                if left <= 0.0 or not self._changed.wait(left):
                    raise AssertionError(f'no tick {state}; the last: {self._ticks[-3:]}')


class NoisyFeed(SensorFeed):
    """Cameras whose every picture differs a little, as those of real ones do."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.pixels_change = True

    def send_image(self, name: str, **options: Any) -> Any:
        if self.pixels_change:
            self.pixels[0, 0, 0] = (int(self.pixels[0, 0, 0]) + 1) % 256
        return super().send_image(name, **options)


class Stack:
    """The two processes, their topics, and the contract of a robot like the tiny one.

    Every command that was ever sent is checked when the test ends. output: where the processes
    print to; '': into their logs here.
    """

    def __init__(
        self,
        spawn: Spawner,
        peer: Peer,
        scratch: Path,
        policy_folder: Path,
        *,
        robot: Path = TINY_ROBOT,
    ) -> None:
        self._spawn = spawn
        self._scratch = scratch
        self._folder = policy_folder
        self.peer = peer
        self.feed = NoisyFeed(peer)
        self.contract_path = robot
        self.contract = load_contract(str(robot))
        self.arm = peer.subscribe(
            Float64MultiArray, '/forward_position_controller/commands', EVERY
        )
        self.gripper = peer.subscribe(Float64MultiArray, '/gripper_controller/commands', EVERY)
        self.status = peer.subscribe(StreamerStatus, '/action_streamer/status', EVERY)
        self.progress = peer.subscribe(StreamerProgress, '/action_streamer/progress', EVERY)
        self.ticks = TickLog()
        peer.subscribe(Trace, '/action_streamer/trace', qos.TRACE, inbox=self.ticks)
        self._fault = scratch / 'fault.txt'
        self.inferences('')
        self.output = ''
        self.policy: PolicyUnderTest | None = None
        self.streamer: NodeProcess | None = None

    def change_contract(self, *changes: tuple[str, str]) -> None:
        """Replace (old, new) texts of the robot's contract, before anything is started."""
        text = self.contract_path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.contract_path = self._scratch / 'robot.yaml'
        self.contract_path.write_text(text)
        self.contract = load_contract(str(self.contract_path))

    def inferences(self, fault: str) -> None:
        """What the inferences do from now on; see faulty_policy_node.py."""
        # At once or not at all: the node may read it at any time.
        new = self._fault.with_suffix('.new')
        new.write_text(fault)
        new.replace(self._fault)

    def start(self, *, sim_time: bool = False, **policy: Any) -> None:
        """Start both nodes; ``policy``: parameters of the policy node."""
        extra = {'use_sim_time': True} if sim_time else {}
        self.start_streamer(**extra)
        self.start_policy(**policy, **extra)

    def start_streamer(self, **parameters: Any) -> NodeProcess:
        values = {
            'robot': str(self.contract_path),
            'autostart': True,
            'trace': True,
            **{name.replace('__', '.'): value for name, value in parameters.items()},
        }
        path = parameter_file(self._scratch, 'action_streamer', values)
        module = ['-m', 'sparkrt_ros.nodes.action_streamer']
        command = [sys.executable, *module, '--ros-args', '--params-file', str(path)]
        self.peer.forget_clients()
        self.streamer = self._spawn(self._into_output(command))
        return self.streamer

    def start_policy(
        self, *, script: Path = FAULTY_POLICY_NODE, environ: Mapping[str, str] = NOTHING, **values
    ) -> PolicyUnderTest:
        """``script``: the policy node, or one that takes its place."""
        values.setdefault('robot', str(self.contract_path))
        command = policy_command(self._folder, self._scratch, altered=True, **values)
        command[1] = str(script)
        self.peer.forget_clients()
        process = self._spawn(self._into_output(command), FAULT=str(self._fault), **environ)
        self.policy = PolicyUnderTest(process, self.peer)
        return self.policy

    def _into_output(self, command: list[str]) -> list[str]:
        """The command that writes what it prints into the file ``output``, where there is one."""
        if not self.output:
            return command
        return ['sh', '-c', f'exec "$@" > {self.output} 2>&1', 'sh', *command]

    def set_policy(self, **values: Any) -> None:
        """Set parameters of the running policy node; ``__`` stands for a dot."""
        assert all(r.successful for r in self.peer.set_parameters('/sparkrt', **values))

    @property
    def processes(self) -> tuple[NodeProcess, ...]:
        assert self.policy is not None
        assert self.streamer is not None
        return self.policy.process, self.streamer

    @property
    def now_ns(self) -> int:
        """Time of the newest control tick; 0 before the first."""
        ticks = self.ticks.all
        return ticks[-1].time_ns if ticks else 0

    def wait_streaming(self, *, after_ns: int = 0) -> int:
        """Time of the first tick that plays actions."""
        return self.ticks.wait_for(MOVING, after_ns=after_ns)

    def wait_reason(self, state: str, *texts: str) -> StreamerStatus:
        """A status of the streamer from now on in ``state`` whose reason holds all ``texts``."""
        return self.status.wait_for(
            lambda m: m.state == state and all(text in m.reason for text in texts),
            what=f'status {state} with {texts}',
        )

    def wait_policy_reason(self, *texts: str) -> Any:
        assert self.policy is not None
        return self.policy.status.wait_for(
            lambda m: all(text in m.reason for text in texts), what=f'policy reason {texts}'
        )

    def pause_after(self, begin_ns: int) -> Pause:
        """The first stop after ``begin_ns``, with the hold before it.

        Checks that it lasted for ``hold_s`` to the tick, and that nothing was sent after it.
        """
        stop_ns = self.ticks.wait_for('stopped', after_ns=begin_ns)
        ticks = self.ticks.all
        # A busy machine may have held for a moment before that.
        moved_ns = max(t.time_ns for t in ticks if t.time_ns < stop_ns and t.state == MOVING)
        hold_ns = min(t.time_ns for t in ticks if t.time_ns > moved_ns and t.state == 'holding')
        hold_s = self.contract.hold_s
        for tick in ticks:
            if hold_ns <= tick.time_ns <= stop_ns:
                held = tick.time_ns - hold_ns < round(hold_s * 1e9)
                assert (tick.state == 'holding') == held, (tick, hold_ns)
        sent = {tick.sent for tick in ticks if stop_ns <= tick.time_ns}
        assert len(sent) == 1 or MOVING in {t.state for t in ticks if t.time_ns > stop_ns}
        before = [t.time_ns for t in ticks if t.time_ns < hold_ns and t.state == MOVING]
        return Pause(max(before), hold_ns, stop_ns)

    def assert_ended_with_its_actions(self, pause: Pause) -> None:
        """It held from the first tick after the last action on, as its progress had foretold."""
        told = [
            m
            for m in self.progress.messages
            if m.state == MOVING and stamp_to_ns(m.tick) <= pause.last_moving_ns
        ]
        end_ns = stamp_to_ns(told[-1].tick) + round(told[-1].remaining * 1e9)
        assert pause.last_moving_ns <= end_ns + ROUNDING_NS
        assert pause.hold_ns >= end_ns - ROUNDING_NS

    def assert_resumes(self, repair: Callable[[], object]) -> None:
        """After ``repair`` commands flow again from the same processes."""
        pids = [process.pid for process in self.processes]
        since_ns = self.now_ns
        repair()
        self.wait_streaming(after_ns=since_ns)
        streaming = self.wait_reason(MOVING)
        assert streaming.reason == ''
        assert [process.pid for process in self.processes] == pids
        for process in self.processes:
            assert process.running, process.log

    def assert_commands_are_sound(self) -> None:
        """Everything that was sent is finite and inside the limits of the contract."""
        limits = self.contract.action_limits
        for inbox, columns in ((self.arm, slice(0, 4)), (self.gripper, slice(4, 5))):
            for message in inbox.messages:
                values = np.array(message.data)
                assert np.isfinite(values).all(), values
                assert (values >= limits.low[columns] - 1e-9).all(), values
                assert (values <= limits.high[columns] + 1e-9).all(), values

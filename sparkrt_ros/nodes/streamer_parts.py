"""Everything an action streamer consists of for one robot, between configure and cleanup."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.node import Node

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt_ros.convert.contract import RobotContract, load_contract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.convert.urdf import narrow_contract
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.beat import Beat
from sparkrt_ros.nodes.control_loop import ControlLoop, MonotonicPacer, Pacer, RosClockPacer
from sparkrt_ros.nodes.message_pacer import MessagePacer
from sparkrt_ros.nodes.message_signal import SignalError
from sparkrt_ros.nodes.polled import PolledSubscription
from sparkrt_ros.nodes.pose_merger import FOREVER_NS
from sparkrt_ros.nodes.scheduling import (
    SENDER_TIME_SLICE_S,
    set_realtime,
    set_time_slice,
    spread_threads,
)
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_outlet import CommandOutlet
from sparkrt_ros.nodes.streamer_pose import PoseSource
from sparkrt_ros.nodes.streamer_trace import StreamerTrace
from sparkrt_ros.nodes.streamer_values import Sent
from sparkrt_ros.runtime.chunking.timeline import MAX_COEFF, MODES
from sparkrt_ros.runtime.errors import MessageError
from sparkrt_ros.runtime.types import ActionChunk

# Simulated time that moves further than this at once was not let pass: it began, or jumped.
CLOCK_JUMP_NS = 1_000_000_000
# Commands are worked out so long before they are due. That takes half a millisecond, and on a busy
# machine up to some more until all of it has been let run; to send what is ready takes little.
AHEAD_NS = 5_000_000
# So many may be worked out and wait. More would make no difference to how steadily commands come,
# but what arrives has to wait for the next that is not.
MOST_AHEAD = 2
# So long after a command is due it has left, and the ROS thread may work.
AFTER_NS = 300_000

Values = Mapping[str, Any]


class StreamerParts:
    """One robot's core, control loop, command publishers and joint subscriptions.

    beat: of the ROS thread; told when the control thread rests, which then polls the joint states.
    trace: told what arrives and what is done while it is enabled.
    poll: called from the control thread before each tick in real time, to take the chunks that
        arrived; one of them may bring the tick forward.
    notify: called from the control thread when a chunk was taken or the state changed.
    on_error: called from the control thread with what a tick raised; the loop has ended then.
    """

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        values: Values,
        events: qos.QosEvents,
        *,
        beat: Beat,
        trace: StreamerTrace,
        chunks: PolledSubscription,
        poll: Callable[[], None],
        notify: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.contract = contract
        self.policy_mode = ''
        self.policy_coeff = 0.0
        self._node = node
        self._on_error = on_error
        self._notify = notify
        self._news = False
        self._trace = trace
        self._chunks = chunks
        self._poll = poll
        self._beat = beat
        self._values = values
        self._priority = 0
        self.outlet = CommandOutlet(node, contract, events)
        self.outlet.enabled = bool(values['control.enabled'])
        self._period_s = 1.0 / self.rate_hz
        self._early_ns = 0
        self.outlet.set_period(self._period_s)
        self.core = StreamerCore.for_robot(
            contract,
            period_s=1.0 / self.rate_hz,
            outlet=self.outlet,
            notify=self._notice,
            settled=self._note_sent,
        )
        self.core.watch(trace if trace.enabled else None)
        self.core.set_options(self._options())
        self.pose = PoseSource(node, contract, self._deliver, beat=beat, trace=trace)
        self._pacer = self._make_pacer()
        self.loop = self._make_loop()

    @property
    def simulated(self) -> bool:
        """Whether /clock tells the time."""
        return isinstance(self._pacer, RosClockPacer)

    @property
    def rate_hz(self) -> float:
        return float(self._values['control.rate_hz']) or self.contract.control_rate_hz

    @property
    def hold_s(self) -> float:
        hold_s = float(self._values['control.hold_s'])
        return hold_s if hold_s >= 0.0 else self.contract.hold_s

    @property
    def mode(self) -> str:
        """The mode that plays: the parameter, or with ``auto`` what the policy node reports."""
        mode = str(self._values['chunking.mode'])
        if mode != 'auto':
            return mode
        return self.policy_mode if self.policy_mode in MODES else 'queue'

    def now_ns(self) -> int:
        """By the node's clock, which is the system's unless it is simulated."""
        if self.simulated:
            return int(self._node.get_clock().now().nanoseconds)
        return time.time_ns()

    def apply(self, values: Values, *, contract: RobotContract | None = None) -> None:
        """Take changed live parameters between two ticks.

        contract: go on with the limits of this one; it passed ``check_only_limits_differ``.
        """
        self._values = values
        if contract is not None:
            self.contract = contract
        self._set_priority()
        spread_threads(self.outlet.thread_ids)  # what may be used may have changed
        self.loop.lead.most_ahead = self._most_ahead  # before a tick is watched
        self.core.watch(self._trace if self._trace.enabled else None)
        self.pose.set_rate()
        limits = None if contract is None else contract.action_limits
        self.core.set_options(self._options(), limits=limits)
        self.loop.rate_hz = self.rate_hz
        if isinstance(self._pacer, MessagePacer):
            self._pacer.at_once = bool(values['control.at_once'])
        enabled = bool(values['control.enabled'])
        if enabled != self.outlet.enabled:
            self.core.rearm(self.now_ns(), lambda: setattr(self.outlet, 'enabled', enabled))

    @property
    def ensemble_coeff(self) -> float:
        """The coefficient that plays; with ``auto`` the policy's, where that can be played."""
        follows = self._values['chunking.mode'] == 'auto' and self.policy_mode == 'ensemble'
        if follows and abs(self.policy_coeff) <= MAX_COEFF:
            return self.policy_coeff
        return float(self._values['chunking.temporal_ensemble_coeff'])

    def follow_policy(self, mode: str, coeff: float) -> bool:
        """Note the policy node's mode and coefficient; whether that changed what plays."""
        before = self.mode, self.ensemble_coeff
        self.policy_mode, self.policy_coeff = mode, coeff
        if (self.mode, self.ensemble_coeff) == before:
            return False
        self.core.set_options(self._options())
        return True

    def start(self) -> None:
        """Begin streaming on a fresh control thread, after :meth:`apply`. By the ROS thread."""
        self._pacer.close()
        self._pacer = self._make_pacer()
        self.loop = self._make_loop()
        self.outlet.reset_counters()
        if not self.pose.merger.needed:
            nothing = np.full(len(self.contract.action), np.nan)
            self._deliver(Pose(values=nothing, fresh_until_ns=FOREVER_NS, number=1))
        self.core.activate(self.now_ns())
        set_time_slice()  # of this thread, which holds the interpreter at times
        for thread_id in self.outlet.thread_ids:
            set_time_slice(SENDER_TIME_SLICE_S, thread_id=thread_id)
        self.loop.start()
        self._set_priority()

    def stop(self, *, timeout_s: float = 1.0) -> bool:
        """Nothing is sent once this returns; whether the control thread has ended too."""
        if self._priority:
            self._give_priority(0)
        self.core.deactivate(self.now_ns())
        ended = self.loop.stop(timeout_s=timeout_s)
        self._beat.let_go()
        return ended

    def _set_priority(self) -> None:
        """Of the control thread, of the sending ones, and of this one.

        This one holds the interpreter at times.
        """
        priority = int(self._values['control.realtime_priority'])
        if self.loop.running and priority != self._priority:
            self.loop.priority = priority
            self._give_priority(priority)

    def _give_priority(self, priority: int) -> None:
        for thread_id in self.outlet.thread_ids:
            set_realtime(priority, thread_id=thread_id, slice_s=SENDER_TIME_SLICE_S)
        set_realtime(max(1, priority - 1) if priority else 0)
        self._priority = priority

    def close(self) -> None:
        self.stop()
        self._pacer.close()
        self.pose.close()
        self.outlet.close()

    def _tick(self) -> None:
        self.core.period_s = self.loop.elapsed_s
        if self._period_s != self.loop.period_s:  # with the first command at the new rate
            self._period_s = self.loop.period_s
            self.outlet.set_period(self._period_s)
        if self.simulated:
            now_ns = self.now_ns()
            self._keep_pose(now_ns)
            self.core.tick(now_ns)
            return
        if not isinstance(self._pacer, MessagePacer) or self._pacer.messages_wait():
            self._poll()
        due_ns = self.loop.due_ns
        if self.loop.early:
            self._early_ns = due_ns
        now_ns = self.now_ns() + due_ns - time.monotonic_ns()
        self._keep_pose(now_ns)
        self.core.prepare(now_ns, due_ns=due_ns)
        if time.monotonic_ns() >= due_ns:
            self.core.settle()  # nobody need be woken for it
        self._let_others(due_ns)

    def _keep_pose(self, now_ns: int) -> None:
        """Look for joint states before the tick would find the pose too old.

        Where a trace has to tell of each in turn, the ROS thread looks often enough.
        """
        pose = self.core.pose
        if pose is not None and now_ns >= pose.fresh_until_ns and not self._trace.enabled:
            self.pose.poll()

    def _note_sent(self, sent: Sent | None) -> None:
        """Tell the loop when a command left, which is what its ticks lead to."""
        if sent is None:
            self.loop.note(None)
            return
        # What a chunk brought forward takes as long as it takes.
        late_ns = 0 if sent.due_ns == self._early_ns else sent.at_ns - sent.due_ns
        self.loop.note(sent.at_ns, late_ns=late_ns)

    @property
    def _most_ahead(self) -> int:
        """Not before the one ahead has been sent where a trace has to tell of each in turn."""
        return 1 if self._trace.enabled else MOST_AHEAD

    def _let_others(self, due_ns: int) -> None:
        """Do the small tasks that wait, and let the ROS thread do the others, once the next
        command has been sent: before that, they could hold a lock of the middleware at the wrong
        moment.
        """
        # A trace is told of every message at once, which is more than there is time for here.
        waits = not self._trace.enabled and self._beat.waits(self.loop.period_s)
        if not waits and not self._news:
            return
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > 0:
            until_next_ns = left_ns % round(1e9 * self.loop.period_s)
            time.sleep((until_next_ns + AFTER_NS) / 1e9)
        if self._news:
            self._news = False
            self._notify()
        if waits:
            self._beat.at_rest()

    def _notice(self) -> None:
        """Of the core: a chunk was taken, or the state changed."""
        if self.simulated or threading.current_thread() is not self.loop.thread:
            self._notify()
        else:
            self._news = True

    def _deliver(self, pose: Pose) -> None:
        self.core.pose = pose
        self._trace.posed(pose)

    def _make_pacer(self) -> Pacer:
        if self._node.get_parameter('use_sim_time').value:
            return RosClockPacer(self._node.get_clock())
        try:
            pacer = MessagePacer(self._chunks)
        except SignalError as error:
            self._node.get_logger().warning(f'no chunk is answered at once: {error}')
            return MonotonicPacer()
        pacer.at_once = bool(self._values['control.at_once'])
        return pacer

    def _make_loop(self) -> ControlLoop:
        return ControlLoop(
            self._tick,
            ahead_ns=0 if self.simulated else AHEAD_NS,
            most_ahead=self._most_ahead,
            rate_hz=self.rate_hz,
            pacer=self._pacer,
            on_error=self._on_error,
            on_warning=lambda text: self._node.get_logger().warning(text),
            priority=int(self._values['control.realtime_priority']),
            jump_ns=CLOCK_JUMP_NS if self.simulated else None,
        )

    def _options(self) -> Options:
        return Options(
            mode=self.mode,
            temporal_ensemble_coeff=self.ensemble_coeff,
            hold_s=self.hold_s,
            velocity_scale=float(self._values['guard.velocity_scale']),
            start_max_error=float(self._values['guard.start_max_error']),
            interpolation=str(self._values['chunking.interpolation']),
            blend_s=float(self._values['chunking.blend_s']),
            blend_in_s=float(self._values['guard.blend_in_s']),
        )


def read_contract(values: Values) -> RobotContract:
    """The contract of these parameters, narrowed by ``robot_description`` where there is one."""
    contract = load_contract(str(values['robot']))
    urdf = str(values['robot_description'])
    return narrow_contract(contract, urdf) if urdf else contract


def read_chunk(message: ActionChunkMessage) -> ActionChunk:
    """The chunk of a message; its rows are a view of the message's data, (T, A) float64.

    Raises MessageError where ``data`` is not ``rows`` by ``joint_names``.
    """
    data = np.frombuffer(message.data, dtype=np.float64)
    rows, columns = int(message.rows), len(message.joint_names)
    if rows * columns != data.size:
        raise MessageError(
            f'action chunk {message.chunk_id}',
            found=f'{data.size} values',
            expected=f'{rows} rows of {columns} joints',
            remedy='correct the node that publishes it',
        )
    return ActionChunk(
        actions=data.reshape(rows, columns),  # type: ignore[arg-type]
        joint_names=tuple(message.joint_names),
        observation_stamp_ns=stamp_to_ns(message.observation_stamp),
        dt_s=message.dt,
        epoch=message.epoch,
        chunk_id=message.chunk_id,
        inference_time_s=message.inference_time,
        frozen_rows=message.frozen_rows,
    )

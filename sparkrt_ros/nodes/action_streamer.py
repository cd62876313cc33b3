"""The streamer process: action chunks in, guarded commands out. A managed lifecycle node.

It needs no torch, so that it starts fast, stays small and outlives the policy process. The ROS
thread stores what arrives and reports; the control thread alone plays chunks and sends commands
(see StreamerCore for its states). While it runs in real time it takes the chunks itself, right
before each tick, and the joint states while it rests.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from std_srvs.srv import Trigger

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import PolicyStatus, StreamerProgress, StreamerStatus
from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.convert.contract_change import check_only_limits_differ
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.beat import Beat, Task
from sparkrt_ros.nodes.control_loop import check_rate
from sparkrt_ros.nodes.diagnostics import Diagnostics
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.polled import PolledSubscription
from sparkrt_ros.nodes.scheduling import settle_process
from sparkrt_ros.nodes.shutdown import StopToken, run_node
from sparkrt_ros.nodes.streamer_parameters import STREAMER_PARAMETERS, check_values
from sparkrt_ros.nodes.streamer_parts import StreamerParts, read_chunk, read_contract
from sparkrt_ros.nodes.streamer_report import StreamerReport
from sparkrt_ros.nodes.streamer_status import (
    progress_message,
    status_message,
    unconfigured_status,
)
from sparkrt_ros.nodes.streamer_trace import StreamerTrace
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.nodes.transitions import ManagedNode
from sparkrt_ros.runtime.errors import MessageError

# Relative, so that a namespace moves both nodes together; remap for a policy of another name.
CHUNK_TOPIC = 'sparkrt/action_chunk'
POLICY_STATUS_TOPIC = 'sparkrt/status'
# How often to look whether a publisher of chunks does not fit, and what the policy node says.
EVENTS_HZ = 1.0
POLICY_STATUS_HZ = 5.0
# How often to tell what is played where nothing changes: whoever paces by it counts on from there.
PROGRESS_HZ = 10.0


class ActionStreamer(ManagedNode):
    """``settle`` is called before the control thread starts; see ``settle_process``."""

    def __init__(self, token: StopToken, *, settle: Callable[[], None] = lambda: None) -> None:
        super().__init__('action_streamer', STREAMER_PARAMETERS, token, check=check_values)
        self._settle = settle
        self._parts: StreamerParts | None = None
        self._events = qos.QosEvents(self)
        self._log = ThrottledLog(self.get_logger(), period_s=5.0)
        create = partial(qos.create_report_publisher, self)
        self._progress = create(StreamerProgress, '~/progress', qos.PROGRESS)
        self._status = create(StreamerStatus, '~/status', qos.STATUS)
        self._beat = Beat(self, shield=self._shielded)
        status_hz = self.parameters['status.rate_hz']
        self._policy = PolledSubscription(self, PolicyStatus, POLICY_STATUS_TOPIC, qos.STATUS)
        self._beat.every(POLICY_STATUS_HZ, self._poll_policy_status)
        self._status_task = self._beat.every(status_hz, self.publish_status)
        self._progress_task: Task | None = None
        self._news = self.create_guard_condition(self._shielded(self._tell_news))
        self._trace = StreamerTrace(self, notify=self._news.trigger)
        self._trace.enabled = self.parameters['trace']
        self._trace.unmatched = self._unmatched
        self._chunks = PolledSubscription(
            self,
            ActionChunkMessage,
            CHUNK_TOPIC,
            qos.CHUNKS_TAKEN,
            callback=self._shielded(self._take_chunk),
            events=self._events.for_subscription(CHUNK_TOPIC),
        )
        self._beat.every(EVENTS_HZ, self._chunks.look_for_events)
        self._report = StreamerReport(self, self._chunks, self._events)
        self._diagnostics = Diagnostics(
            self,
            [lambda row=row: row(self._parts) for row in self._report.rows],  # type: ignore[misc]
            hardware_id='no robot',
            every=self._beat.every,
        )
        for name, act in (('reset', self.reset), ('pause', self.pause), ('resume', self.resume)):
            self.create_service(Trigger, f'~/{name}', self._answer(act))
        self._next_contract: RobotContract | None = None
        self.parameters.veto = self._veto
        self.parameters.on_change(self._parameters_changed)

    # Lifecycle

    def configure(self) -> None:
        contract = read_contract(self.parameters.values)
        self._parts = StreamerParts(
            self,
            contract,
            self.parameters.values,
            self._events,
            beat=self._beat,
            trace=self._trace,
            chunks=self._chunks,
            poll=self._shielded(self._poll_chunks),
            notify=self._news.trigger,
            on_error=self._control_failed,
        )
        self._diagnostics.hardware_id = contract.name
        self._progress_task = self._beat.every(
            min(contract.policy_rate_hz, PROGRESS_HZ), self._publish_progress, shared=True
        )
        self.get_logger().info(
            f'robot {contract.name}: {len(contract.action)} joints at {self._parts.rate_hz:g} Hz'
        )

    def activate(self) -> None:
        parts = self._configured()
        self._report.begin()
        parts.apply(self.parameters.values)
        self._settle()
        parts.start()
        # Simulated time may stand still, and chunks are noted then too.
        self._chunks.polled = not parts.simulated

    def deactivate(self) -> None:
        self._chunks.polled = False
        if self._parts is not None:
            self._parts.stop()

    def cleanup(self) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            return
        parts.close()
        if self._progress_task is not None:
            self._progress_task.cancel()
        self._events.forget()
        self._diagnostics.hardware_id = 'no robot'

    def release(self, *, timeout_s: float) -> bool:
        return self._parts is None or self._parts.stop(timeout_s=timeout_s)

    # Services

    def reset(self) -> str:
        """Drop all chunks, those on their way included; a moving robot holds until newer ones."""
        self._configured().core.reset(self._now_ns())
        return 'chunks observed before now are dropped'

    def pause(self) -> str:
        """Send nothing from now on."""
        self._configured().core.pause(self._now_ns())
        return 'nothing is sent until resume'

    def resume(self) -> str:
        """Go on with new chunks, from the measured pose."""
        self._configured().core.resume(self._now_ns())
        return 'waiting for a new chunk'

    def _answer(self, act: Callable[[], str]) -> Callable[..., Trigger.Response]:
        def answer(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            defect = self._parts.core.defect if self._parts is not None else ''
            response.success = self.phase == 'active' and not defect
            if response.success:
                response.message = act()
            else:
                response.message = defect or f'the node is {self.phase}'
            self.get_logger().info(f'{act.__name__}: {response.message}')
            return response

        return answer

    # What arrives

    def _take_chunk(self, message: ActionChunkMessage) -> None:
        self._accept_chunk(message)
        self._trace.publish()

    def _poll_chunks(self) -> None:
        """Called by the control thread; the ROS thread would add the time it takes to wake."""
        for message in self._chunks.take():
            self._accept_chunk(message)

    def _accept_chunk(self, message: ActionChunkMessage) -> None:
        self._report.chunk_arrived()
        if self._parts is not None and self.phase == 'active':
            self._offer_chunk(self._parts, message)
        self._trace.chunk(message.chunk_id, session_id=message.session_id)

    def _offer_chunk(self, parts: StreamerParts, message: ActionChunkMessage) -> None:
        try:
            chunk = read_chunk(message)
        except MessageError as error:
            parts.core.malformed += 1
            self._log.warning('malformed', f'chunk refused: {error}')
            return
        published_ns = stamp_to_ns(message.header.stamp) if parts.simulated else 0
        parts.core.offer(chunk, session_id=message.session_id, published_ns=published_ns)

    def _poll_policy_status(self) -> None:
        newest = next(self._policy.newest_first(), None)
        if newest is not None:
            self._take_policy_status(newest)

    def _take_policy_status(self, message: PolicyStatus) -> None:
        self._report.policy_reported(message)
        if self._parts is None:
            return
        if self._parts.follow_policy(message.mode, message.temporal_ensemble_coeff):
            plays = self._parts.mode
            if plays == 'ensemble':
                plays += f' (coefficient {self._parts.ensemble_coeff:g})'
            self.get_logger().info(f'chunks are played in mode {plays}, as the policy node says')

    def _parameters_changed(self, values: Mapping[str, Value], changed: frozenset[str]) -> None:
        if 'status.rate_hz' in changed:
            self._status_task.rate_hz = self.parameters['status.rate_hz']
        self._trace.enabled = self.parameters['trace']
        if self._parts is None:
            return
        contract = self._next_contract if 'robot' in changed else None
        self._parts.apply(values, contract=contract)
        if contract is not None:
            self._diagnostics.hardware_id = contract.name
            self.get_logger().info(f'limits of {contract.name} ({contract.source}) from now on')

    def _veto(self, values: Mapping[str, Value], changed: frozenset[str]) -> None:
        """Refuse a contract of another robot than the one that is configured."""
        self._next_contract = None
        if 'robot' in changed and self._parts is not None:
            contract = read_contract(values)
            check_only_limits_differ(self._parts.contract, contract)
            check_rate(contract.control_rate_hz)
            self._next_contract = contract

    def _control_failed(self, error: Exception) -> None:
        """On the control thread, which ends after this."""
        self._chunks.polled = False
        self._beat.let_go()
        self.get_logger().error(
            f'the control loop failed; nothing more is sent:\n{"".join(_lines(error))}'
        )
        try:
            self._configured().core.fail(self._now_ns(), f'{type(error).__name__}: {error}')
        except Exception as second:
            self.get_logger().error(f'while stopping:\n{"".join(_lines(second))}')

    # What leaves

    def _unmatched(self) -> tuple[str, ...]:
        """Topics of which the other side is missing."""
        names = [] if self._chunks.get_publisher_count() else [self._chunks.topic_name]
        if self._parts is not None:
            names += [*self._parts.pose.unmatched(), *self._parts.outlet.unmatched()]
        return tuple(names)

    def publish_status(self) -> None:
        """Publish ~/status now, and log what happened since the last time."""
        stamp = self.get_clock().now().to_msg()
        parts = self._parts
        if parts is None:
            self._status.publish(unconfigured_status(stamp))
            return
        snapshot = parts.core.snapshot
        why = self._report.why(parts, snapshot)
        self._report.log_news(parts, snapshot, why)
        self._status.publish(
            status_message(parts, snapshot=snapshot, why=why, now_ns=self._now_ns(), stamp=stamp)
        )

    def _tell_news(self) -> None:
        """A chunk was taken or the state changed; while tracing, after every tick."""
        if self._parts is None:
            return
        self._publish_progress()
        self._report.chunk_taken(self._parts)
        self._trace.publish()
        if self._report.is_news(self._parts.core.snapshot):
            self.publish_status()

    def _publish_progress(self) -> None:
        if self._parts is not None:
            stamp = self.get_clock().now().to_msg()
            self._progress.publish(progress_message(self._parts.core.snapshot, stamp))

    def _shielded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Log what ``callback`` raises: a defect in a report, or a message that surprises, must
        not end the process that holds the arm.
        """

        @wraps(callback)
        def run(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                name = callback.__name__.strip('_')
                self._log.error(name, f'{name} failed:\n{"".join(_lines(error))}')

        return run

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _configured(self) -> StreamerParts:
        assert self._parts is not None
        return self._parts


def _lines(error: Exception) -> list[str]:
    return traceback.format_exception(type(error), error, error.__traceback__)


def main() -> int:
    return run_node(lambda token: ActionStreamer(token, settle=settle_process))


if __name__ == '__main__':
    sys.exit(main())

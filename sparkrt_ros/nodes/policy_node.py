"""The policy process: observations in, action chunks out. A managed lifecycle node.

configure loads the checkpoint, compares it with the robot and warms it up; activate infers;
deactivate sends nothing from then on; cleanup frees everything. The ROS thread only stores
messages; PolicyWorker is the thread that thinks.
"""

from __future__ import annotations

import secrets
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.exceptions import InvalidHandle
from std_srvs.srv import Trigger

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import PolicyStatus, StreamerProgress
from sparkrt_ros.convert.contract import RobotContract, load_contract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.control_loop import wake_with_clock
from sparkrt_ros.nodes.debug_images import DebugImages
from sparkrt_ros.nodes.diagnostics import Diagnostics, Health
from sparkrt_ros.nodes.foresight import Foresight
from sparkrt_ros.nodes.inference_thread import InferenceThread, ThreadEnded, is_sticky
from sparkrt_ros.nodes.input_watch import InputWatch
from sparkrt_ros.nodes.loaded_policy import (
    LoadPolicy,
    free_leftovers,
    load_from_folder,
    load_libraries,
    prepare,
)
from sparkrt_ros.nodes.observation_intake import with_zero_stamps
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_changeover import Changeover
from sparkrt_ros.nodes.policy_health import HEALTH_ROWS, PolicyFacts
from sparkrt_ros.nodes.policy_messages import chunk_message, read_progress, status_message
from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS, PolicySettings, check_values
from sparkrt_ros.nodes.policy_serving import Serving, Situation, gather_facts
from sparkrt_ros.nodes.policy_swaps import PolicySwaps
from sparkrt_ros.nodes.policy_trace import PolicyTrace
from sparkrt_ros.nodes.policy_worker import PolicyWorker
from sparkrt_ros.nodes.prompt_topic import PromptTopic
from sparkrt_ros.nodes.rising_clock import RisingClock
from sparkrt_ros.nodes.scheduling import (
    LONG_TIME_SLICE_S,
    SWITCH_INTERVAL_S,
    set_time_slice,
    settle_process,
)
from sparkrt_ros.nodes.shutdown import StopToken, run_node
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.runtime.types import ActionChunk

# Exit code after a fault that only a new process can cure.
FAULT = 3
# What a process that ends by itself waits at most for its last status to arrive.
LAST_STATUS = Duration(seconds=1.0)
# The ROS thread waits this long at most for the inference thread to look at what arrived.
HAND_OVER_S = 0.002
NOTHING_LOADED = 'no policy loaded'
# Simulated time reaches two processes at two moments, but no further apart than this.
CLOCK_LAG_NS = 1_000_000_000


class PolicyNode(Changeover):
    """load: makes a policy of a folder, like ``load_policy``; called in the inference thread.

    settle: called there once all libraries are loaded; see ``settle_process``.
    """

    def __init__(
        self,
        token: StopToken,
        *,
        load: LoadPolicy = load_from_folder,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__('sparkrt', POLICY_PARAMETERS, token, check=check_values)
        self._load = load
        self._gate = ChunkGate()
        self._events = qos.QosEvents(self)
        self._log = ThrottledLog(self.get_logger())
        self._session_id = secrets.randbits(63) | 1
        self._contract: RobotContract | None = None
        self._serving: Serving | None = None
        self._worker: PolicyWorker | None = None
        self._next_chunk_id = 1
        self._fault = ''
        self._abandoned: Serving | None = None
        self._device_lost = False
        self._clock_handle: Any = None
        self._early: StreamerProgress | None = None
        self._thread = InferenceThread(on_failure=self._inference_failed)
        chosen = (self.parameters['device'], self.parameters['precision'])
        self._thread.submit(partial(load_libraries, *chosen))
        self._thread.submit(settle)
        self._swap_news = self.create_guard_condition(lambda: self._swaps.advance())
        self._swaps = PolicySwaps(
            self,
            self.parameters.values,
            prepare=self._build,
            tidy=free_leftovers,
            news=self._swap_news.trigger,
            on_failure=self._inference_failed,
        )
        self._foresight = Foresight()
        self.parameters.veto = self._veto
        self._open_interfaces()
        self.parameters.on_change(self._parameters_changed)

    def _open_interfaces(self) -> None:
        self._debug = DebugImages(self, self._last_reading)
        self._watch = InputWatch(self)
        self._chunks = self.create_lifecycle_publisher(
            ActionChunkMessage,
            '~/action_chunk',
            qos.CHUNK,
            event_callbacks=self._events.for_publisher('~/action_chunk'),
        )
        self._status = qos.create_report_publisher(self, PolicyStatus, '~/status', qos.STATUS)
        self._status_timer = self.create_timer(
            1.0 / self.parameters['status.rate_hz'],
            self._report,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self._trace = PolicyTrace(self, unmatched=self._unmatched)
        self._trace.enabled = self.parameters['trace']
        rows = [partial(self._health, row) for row in HEALTH_ROWS]
        self._diagnostics = Diagnostics(self, rows, hardware_id=NOTHING_LOADED)
        self._progress = self.create_subscription(
            StreamerProgress, 'action_streamer/progress', self._take_progress, qos.PROGRESS
        )
        self._prompt = PromptTopic(self)
        for name, act in (('reset', self.reset), ('pause', self.pause), ('resume', self.resume)):
            self.create_service(Trigger, f'~/{name}', partial(self._answer, act))

    # Lifecycle

    def configure(self) -> None:
        choice = self.parameters['observation.on_zero_stamp']
        self._contract = with_zero_stamps(load_contract(self.parameters['robot']), choice)
        self._serve(PolicySettings.of(self.parameters.values))

    def activate(self) -> None:
        assert self._serving is not None
        settings = PolicySettings.of(self.parameters.values)
        if settings.to_load != self._serving.loaded.settings.to_load:
            self._serve(settings)
        self._swaps.begin(self.parameters.values)
        self._worker = worker = self._make_worker(self._serving)
        self._thread.submit(worker.begin_episode)
        self._gate.open()
        self._thread.repeat(partial(self._trace.step, worker))
        if self.get_parameter('use_sim_time').value:
            # What waits for a time must be told when simulated time moves.
            self._clock_handle = wake_with_clock(self.get_clock(), self._clock_moved)

    def deactivate(self) -> None:
        self._gate.close()
        self._swaps.stop()
        self._thread.repeat(None)
        if self._clock_handle is not None:
            self._clock_handle.unregister()
            self._clock_handle = None
        if self._worker is not None:
            self._next_chunk_id = self._worker.next_chunk_id
            self._worker = None

    def cleanup(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        serving.inputs.destroy()
        self._debug.follow({})
        self._events.forget()
        self._diagnostics.hardware_id = NOTHING_LOADED
        # Where the thread has ended, it freed the policy itself.
        with suppress(ThreadEnded, CancelledError):
            self.token.wait_for(self._thread.submit(serving.loaded.policy.close))

    def release(self, *, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        if self._device_lost:
            # Freeing device memory after such an error can abort the process in place of its
            # exit code; kept and left to the system, it cannot.
            self._abandoned = self._serving
            self._thread.end()
            return False
        last = None if self._serving is None else self._serving.loaded.policy.close
        self._thread.end(last=last)
        ended = self._thread.join(timeout_s=timeout_s)
        return self._swaps.join(timeout_s=max(0.0, until_s - time.monotonic())) and ended

    def _serve(self, settings: PolicySettings) -> None:
        """Load a policy and connect it; if loading fails, what served before stays."""
        contract = self._contract
        assert contract is not None
        self._thread.submit(self._swaps.wait_until_freed)
        options = {'load': self._load, 'prompt': self.parameters['prompt']}
        loading = self._thread.submit(partial(prepare, settings, contract, **options))
        loaded = self.token.wait_for(loading)
        self.cleanup()
        self._serving = self.connect(loaded, self.arrived)
        self._introduce(self._serving)

    # Services

    def reset(self) -> str:
        """Begin a new episode, from observations newer than this request."""
        return f'epoch {self._begin_episode()}'

    def pause(self) -> str:
        """Let no chunk leave until resume."""
        self._gate.pause()
        return 'paused'

    def resume(self) -> str:
        """Begin a new episode after a pause."""
        epoch = self._begin_episode()
        self._gate.resume()
        return f'epoch {epoch}'

    def _answer(
        self, act: Callable[[], str], _: Trigger.Request, response: Trigger.Response
    ) -> Trigger.Response:
        response.success = self.phase == 'active'
        response.message = act() if response.success else f'the node is {self.phase}'
        self.get_logger().info(f'{act.__name__}: {response.message}')
        return response

    def _begin_episode(self) -> int:
        # The epoch last: a step that sees it comes after everything else.
        for serving in (self._serving, self._swaps.coming):
            if serving is not None:
                serving.intake.buffer.reset()
        return self._raise_epoch()

    def _raise_epoch(self) -> int:
        # A worker that is handing over leaves this to the next; see take_over.
        if self._worker is not None and not self._swaps.handing:
            self._thread.submit(self._worker.begin_episode)
        return self._gate.raise_epoch()

    # What arrives

    def arrived(self, stream: str, message: Any, now_ns: int, stored: bool) -> None:  # type: ignore[override] # noqa: FBT001
        tracing = self._trace.enabled
        if tracing:
            self._trace.message(stream, message, now_ns=now_ns)
        worker = self._worker
        if stored and worker is not None and worker.arrived():
            self._thread.wake()
            # It needs the interpreter, which this thread would otherwise keep for a while.
            worker.wait_until_looked(timeout_s=HAND_OVER_S)
        elif tracing:
            self._thread.wake()

    def _unmatched(self) -> list[str]:
        """Topics of which the other side is missing: while tracing, chunks have two readers."""
        names = []
        with suppress(InvalidHandle):  # the inputs may just be taken down
            names += [] if self._serving is None else self._serving.inputs.unmatched()
            names += [self._progress.topic_name] * (self._progress.get_publisher_count() == 0)
            names += [self._chunks.topic_name] * (self._chunks.get_subscription_count() < 2)
        return names

    def _take_progress(self, message: StreamerProgress) -> None:
        worker = self._worker
        if worker is None:
            return
        at_s, pacing_s = worker.clocks.pacing_s(), worker.clocks.pacing_s
        if isinstance(pacing_s, RisingClock):
            tick_ns, now_ns = stamp_to_ns(message.tick), self._now_ns()
            if 0 < tick_ns - now_ns < CLOCK_LAG_NS:
                self._early = message  # /clock reached the streamer first
                return
            if 0 < now_ns - tick_ns < CLOCK_LAG_NS:
                at_s = pacing_s.at(tick_ns)
        worker.follow(read_progress(message, at_s=at_s))
        self._thread.wake()

    def _clock_moved(self) -> None:
        """Simulated time went on, or jumped."""
        early, self._early = self._early, None
        if early is not None:
            self._take_progress(early)
        self._thread.wake()

    def _parameters_changed(self, values: Mapping[str, Value], changed: frozenset[str]) -> None:
        self._swaps.changed(values, changed)
        self._apply(self._swaps.values)

    def _report(self) -> None:
        self._swaps.advance()
        self._debug.publish()
        self._watch.look(self._serving, now_ns=self._now_ns())
        self.publish_status()

    # What leaves; the first two also from the inference thread

    def _publish_chunk(self, chunk: ActionChunk) -> None:
        now_ns = self._now_ns()
        self._chunks.publish(chunk_message(chunk, session_id=self._session_id, now_ns=now_ns))
        self._debug.inferred()

    def _inference_failed(self, error: BaseException) -> None:
        worker = self._worker
        if worker is None and not is_sticky(error):
            return  # deactivated meanwhile: nobody waits for this inference
        in_a_row = 1 if worker is None else worker.failed(error)
        text = ''.join(traceback.format_exception(error)).rstrip()
        self._log.error('failed', f'inference failed, {in_a_row} in a row:\n{text}')
        limit = self.parameters['inference.max_failures']
        if not is_sticky(error) and in_a_row < limit:
            return
        self._device_lost = is_sticky(error)
        self._give_up(f'inference given up after {in_a_row} failures in a row: {error}')

    def publish_status(self) -> None:
        """Publish ~/status now; a jump of an idle clock is noticed here too."""
        now_ns = self._now_ns()
        if self._serving is not None:
            self._serving.intake.buffer.advance(now_ns)
        self._end_if_stuck()
        self._status.publish(status_message(self._facts(), now_ns=now_ns))

    def _end_if_stuck(self) -> None:
        limit_s, worker = self.parameters['inference.timeout_s'], self._worker
        if worker is None or self._fault or not 0.0 < limit_s < worker.busy_s:
            return
        # Where it is stuck may be the device, which must not be touched any more then.
        self._device_lost = True
        self._give_up(f'inference given up: it has taken {worker.busy_s:.1f} s so far')

    def _give_up(self, fault: str) -> None:
        """End the process with a last status; only a new one can cure this."""
        self._gate.close()
        self._thread.repeat(None)
        self._fault = fault
        self.publish_status()
        # The message lies in memory that goes with the process.
        self._status.wait_for_all_acked(LAST_STATUS)
        self.fail(fault, exit_code=FAULT)

    def _health(self, row: Callable[[PolicyFacts], Health]) -> Health:
        return row(self._facts())

    def _facts(self) -> PolicyFacts:
        return gather_facts(
            self._situation(), self._serving, self._worker, self._events, now_ns=self._now_ns()
        )

    def _situation(self) -> Situation:
        state, reason, worker = self.phase, self.last_error, self._worker
        if self._fault:
            state, reason = 'error', self._fault
        elif self._gate.is_paused:
            state, reason = 'paused', 'paused by request'
        elif state == 'active' and worker is not None:
            reason = worker.reason
            state = 'waiting' if worker.figures.reason else 'active'
            if state == 'waiting':
                reason = '; '.join((reason, *self._watch.silent.values()))
        return Situation(
            state=state,
            reason=reason,
            epoch=self._gate.epoch,
            swap=self._swaps.report,
            prompt=str(self._swaps.values['prompt']),
            prompt_refused=self._prompt.refused,
            rates_hz=self._watch.rates_hz,
            silent=self._watch.silent,
        )


def main() -> None:
    """Run the policy node; the entry point of the executable ``policy_node``."""
    set_time_slice(LONG_TIME_SLICE_S)  # who moves the robot may break in at any time
    # Between receiving pictures and inferring from them, waiting for the interpreter is lost.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sys.exit(run_node(lambda token: PolicyNode(token, settle=settle_process)))


if __name__ == '__main__':
    main()

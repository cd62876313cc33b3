"""The part of the policy node that lets one policy take over from another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.debug_images import DebugImages
from sparkrt_ros.nodes.diagnostics import Diagnostics
from sparkrt_ros.nodes.foresight import Foresight
from sparkrt_ros.nodes.inference_thread import InferenceThread
from sparkrt_ros.nodes.input_watch import InputWatch
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy, LoadPolicy, prepare, rehearse
from sparkrt_ros.nodes.observation_reader import Reading
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import (
    SWAP_PARAMETERS,
    PolicySettings,
    choices_of,
    pacing_config,
)
from sparkrt_ros.nodes.policy_serving import Serving
from sparkrt_ros.nodes.policy_swaps import Candidate, PolicySwaps
from sparkrt_ros.nodes.policy_trace import PolicyTrace
from sparkrt_ros.nodes.policy_worker import Handover, PolicyWorker, WorkerClocks
from sparkrt_ros.nodes.prompt_rules import check_prompt_fits
from sparkrt_ros.nodes.qos import QosEvents
from sparkrt_ros.nodes.rising_clock import RisingClock
from sparkrt_ros.nodes.swap_rules import is_another_policy
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.nodes.transitions import ManagedNode
from sparkrt_ros.runtime.build_watch import BuildWatch
from sparkrt_ros.runtime.types import ActionChunk

Values = Mapping[str, Value]


class Changeover(ManagedNode):
    """A ``policy_swaps.Host``. ROS thread only, but for ``_build``."""

    _load: LoadPolicy
    _gate: ChunkGate
    _events: QosEvents
    _log: ThrottledLog
    _trace: PolicyTrace
    _diagnostics: Diagnostics
    _thread: InferenceThread
    _contract: RobotContract | None
    _serving: Serving | None
    _worker: PolicyWorker | None
    _swaps: PolicySwaps
    _foresight: Foresight
    _debug: DebugImages
    _watch: InputWatch
    _session_id: int
    _next_chunk_id: int
    _status_timer: Any
    _handed_epoch = 0

    @property
    def thread(self) -> InferenceThread:
        """The thread of the policy that serves."""
        return self._thread

    @property
    def serving(self) -> Serving:
        """The policy that serves."""
        assert self._serving is not None
        return self._serving

    def hand_over(self) -> Future[Handover]:
        """See Host."""
        assert self._worker is not None
        self._handed_epoch = self._gate.epoch
        self._thread.repeat(None)
        return self._thread.submit(self._worker.hand_over)

    def connect(self, loaded: LoadedPolicy, arrived: Callable[..., None]) -> Serving:
        """See Host."""
        return Serving.connect(
            self,
            loaded,
            self._events,
            max_skew_s=self._swaps.values['observation.max_skew_s'],  # type: ignore[arg-type]
            warn=self._log.warning,
            arrived=arrived,
            hurry=lambda: self._trace.enabled,
            on_jump=self._time_jumped,
        )

    def missing(self, serving: Serving) -> tuple[str, ...]:
        """See Host."""
        buffer = serving.intake.buffer
        return buffer.stale(self._now_ns())

    def explain(self, serving: Serving) -> str:
        """See Host."""
        return self._watch.explain(serving)

    def take_over(self, thread: InferenceThread, serving: Serving, handover: Handover) -> None:
        """See Host."""
        old, self._serving, self._thread = self.serving, serving, thread
        begun_anew = self._gate.epoch != self._handed_epoch
        if is_another_policy(old.loaded.receipt, serving.loaded.receipt):
            # Nothing is on its way; what plays does so until the first chunk of the new epoch.
            self._gate.raise_epoch()
        self._worker = worker = self._make_worker(serving, handover)
        if begun_anew:
            thread.submit(worker.begin_episode)
        self._apply(self._swaps.values)
        # The streamer learns how chunks are to be played before the first of them comes.
        self.publish_status()
        thread.repeat(partial(self._trace.step, worker))
        if old.inputs is not serving.inputs:
            old.inputs.destroy()
        self._introduce(serving)

    def put_back(self, values: Values) -> None:
        """See Host."""
        self.parameters.put_back(values)

    def tell(self, text: str, *, failed: bool = False) -> None:
        """See Host."""
        if failed:
            self.get_logger().warning(text)
        else:
            self.get_logger().info(text)
        self.publish_status()

    def _build(self, settings: PolicySettings, watch: BuildWatch) -> Candidate:
        """Make a policy ready to take over; in a thread of its own."""
        assert self._contract is not None
        loaded = prepare(
            settings,
            self._contract,
            load=self._load,
            watch=watch,
            prompt=str(self.parameters['prompt']),
        )
        try:
            times_s = rehearse(loaded)
            watch.stage('warming')
        except BaseException:
            loaded.policy.close()
            raise
        return Candidate(loaded=loaded, rehearsed_s=times_s)

    def _veto(self, values: Values, changed: frozenset[str]) -> None:
        """Refuse at once what can be known at once."""
        serving, contract = self._serving, self._contract
        if serving is None or contract is None:
            return
        if not changed & SWAP_PARAMETERS:
            soon = {**self._swaps.values, **{name: values[name] for name in changed}}
            serving.with_settings(PolicySettings.of(soon))
            self._judge_prompt(values, changed, serving)
            return
        settings = PolicySettings.of(values)
        if settings.to_load == serving.loaded.settings.to_load:
            serving.with_settings(settings)
            self._judge_prompt(values, changed, serving)
        else:
            self._foresight.check(settings, contract, serving=serving.loaded)

    def _judge_prompt(self, values: Values, changed: frozenset[str], serving: Serving) -> None:
        if 'prompt' in changed:
            check_prompt_fits(str(values['prompt']), serving.loaded)

    def _make_worker(self, serving: Serving, handover: Handover | None = None) -> PolicyWorker:
        values = self._swaps.values
        simulated = self.get_parameter('use_sim_time').value
        return PolicyWorker(
            serving.loaded,
            serving.reader,
            self._gate,
            session_id=self._session_id,
            pacing=pacing_config(values, serving.loaded),
            task=str(values['prompt']),
            choices=choices_of(values, serving.loaded),
            clocks=WorkerClocks(
                now_ns=self._now_ns,
                pacing_s=RisingClock(self._now_ns) if simulated else time.monotonic,
            ),
            publish=self._publish_chunk,
            first_chunk_id=self._next_chunk_id,
            handover=handover,
        )

    def _apply(self, values: Mapping[str, Any]) -> None:
        """Let these parameters be in effect; another policy is not their business."""
        self._status_timer.timer_period_ns = round(1e9 / values['status.rate_hz'])
        self._trace.enabled = values['trace']
        if self._serving is None:
            return
        self._serving = serving = self._serving.with_settings(PolicySettings.of(values))
        max_skew_s = values['observation.max_skew_s'] or serving.contract.max_skew_s
        serving.intake.buffer.max_skew_s = max_skew_s
        worker = self._worker
        if worker is None:
            return
        worker.task = values['prompt']
        worker.set_pacing(pacing_config(values, serving.loaded))
        worker.set_choices(choices_of(values, serving.loaded))
        self._thread.wake()

    def _introduce(self, serving: Serving) -> None:
        """Say who serves."""
        receipt = serving.loaded.receipt
        self._diagnostics.hardware_id = f'{receipt["policy"]} {receipt["digest"]}'
        cameras = serving.intake.cameras.values()
        self._debug.follow({camera.name: camera.key for camera in cameras})
        for warning in receipt['warnings']:
            self.get_logger().warning(warning)
        for line in serving.describe():
            self.get_logger().info(line)

    def _last_reading(self) -> Reading | None:
        return None if self._worker is None else self._worker.reading

    def arrived(self, *message: Any) -> None:
        """See Host."""
        raise NotImplementedError

    def publish_status(self) -> None:
        """Publish ~/status now."""
        raise NotImplementedError

    def _time_jumped(self, before_ns: int, after_ns: int) -> None:
        epoch = self._raise_epoch()
        self.get_logger().warning(
            f'time went back by {(before_ns - after_ns) / 1e9:.3f} s: observations cleared, '
            f'epoch {epoch} begins'
        )

    def _raise_epoch(self) -> int:
        raise NotImplementedError

    def _publish_chunk(self, chunk: ActionChunk) -> None:
        raise NotImplementedError

    def _now_ns(self) -> int:
        return self.get_clock().now().nanoseconds

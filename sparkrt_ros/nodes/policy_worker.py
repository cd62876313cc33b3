"""What the inference thread does: look, infer, hand out a chunk, wait until the next is due."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.commands import check_rows
from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.observation_reader import ObservationReader, Reading
from sparkrt_ros.nodes.pacing import LatencyTracker, Pacer, PacingConfig, Progress
from sparkrt_ros.nodes.predictor import Choices, Predictor
from sparkrt_ros.nodes.prompt_rules import NO_PROMPT
from sparkrt_ros.runtime.chunking.prefix import Prefix
from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.types import ActionChunk, FloatArray

# A message that completes a newer observation wakes a worker that lacks one, at most this often.
# Longer would add to the age of every observation, shorter would take the ROS thread's time.
LOOK_INTERVAL_S = 0.0005
# Any other message wakes it this long after it last looked, to find out what is wrong.
RELOOK_S = 0.02
# An inference that has taken longer than this is told of before it ends.
LONG_S = 1.0
# The first word of a chunk tells how late it came, so it must outlast the longest inference.
KEPT_PROGRESS = 4096
_NO_CHOICES = Choices()


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the worker has done, as one immutable snapshot for the other threads.

    reason: why nothing is inferred; empty while all is well. Counters are since activation.
    Times are of the last inference, percentiles over the last few hundred; all in seconds.
    """

    reason: str = ''
    chunks: int = 0
    withheld: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    refused: int = 0
    ages_s: dict[str, float] = field(default_factory=dict)
    skew_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    preprocess_s: float = 0.0
    model_s: float = 0.0
    postprocess_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What one worker leaves to the next, so that chunks go on as if they were one.

    latency_s: what inferences of the next are known to take.
    """

    pacer: Pacer
    predictor: Predictor
    progress: deque[Progress]
    figures: Figures
    next_chunk_id: int
    latency_s: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class WorkerClocks:
    """now_ns: the node's clock, of the stamps. pacing_s: a clock that rises steadily.

    look_s: the clock of LOOK_INTERVAL_S: a real one, except where all time is made up.
    """

    now_ns: Callable[[], int]
    pacing_s: Callable[[], float]
    look_s: Callable[[], float] = time.monotonic


def chunk_actions(rows: npt.ArrayLike, contract: RobotContract) -> FloatArray:
    """Rows (T, A) of a policy, in its own units -> the actions of a chunk, float32 SI.

    Raises ActionError for rows that are mis-sized or not finite.
    """
    checked = check_rows(rows, size=len(contract.action), where='policy output')
    return contract.action_to_si(checked).astype(np.float32)


class PolicyWorker:
    """One loaded policy at work. All methods but the marked ones run in the inference thread.

    publish: sends a chunk; called only while the gate lets it pass.
    hungry: an inference is due, and lacks an observation. idle: the last step found nothing that
    could be done before something arrives or time goes on. reading: what was inferred from last;
    prefix: what that inference went on from.
    """

    def __init__(
        self,
        loaded: LoadedPolicy,
        reader: ObservationReader,
        gate: ChunkGate,
        *,
        session_id: int,
        pacing: PacingConfig,
        task: str,
        clocks: WorkerClocks,
        choices: Choices = _NO_CHOICES,
        publish: Callable[[ActionChunk], None],
        first_chunk_id: int = 1,
        handover: Handover | None = None,
    ) -> None:
        self.figures = Figures()
        self.reading: Reading | None = None
        self.task = task
        self.next_chunk_id = first_chunk_id
        self.prefix: Prefix | None = None
        self._loaded = loaded
        self._reader = reader
        self._gate = gate
        self.clocks = clocks
        self._publish = publish
        self._pacer = Pacer(config=pacing, session_id=session_id)
        self._predictor = Predictor(loaded, session_id=session_id, choices=choices)
        self._latency = LatencyTracker(window=300)
        self._progress: deque[Progress] = deque(maxlen=KEPT_PROGRESS)
        self._seen_ns: int | None = None
        self._looked_s = -math.inf
        self.hungry = False
        self.idle = False
        self._looked = threading.Event()
        self._begun_s: float | None = None
        self._used_task = task
        if handover is not None:
            self._take_over(handover)

    @property
    def busy_s(self) -> float:
        """How long the inference under way has taken so far [s]; 0 where there is none.

        For any thread; real time, also where the node's time is simulated.
        """
        begun_s = self._begun_s
        return 0.0 if begun_s is None else time.perf_counter() - begun_s

    @property
    def reason(self) -> str:
        """Why no chunk comes; empty while all is well. For any thread."""
        busy_s = self.busy_s
        if busy_s < LONG_S:
            return self.figures.reason
        return f'the inference under way has taken {busy_s:.1f} s so far'

    @property
    def tick_ns(self) -> int:
        """The newest control tick of the streamer that was taken into account; 0: none."""
        return self._pacer.tick_ns

    def follow(self, progress: Progress) -> None:
        """Take a message of the streamer. Called by the ROS thread."""
        self._progress.append(progress)

    def arrived(self) -> bool:
        """Whether a message that was just stored is worth a look. Called by the ROS thread."""
        if not self.hungry:
            return False
        self._looked.clear()
        if self._seen_ns is None or self.clocks.look_s() - self._looked_s >= RELOOK_S:
            return True
        return self._reader.newest_reference_ns(self.clocks.now_ns()) > self._seen_ns

    def wait_until_looked(self, *, timeout_s: float) -> None:
        """Wait until a look has ended or inference has begun. Called by the ROS thread."""
        self._looked.wait(timeout_s)

    def set_pacing(self, config: PacingConfig) -> None:
        """Change the pacing from the next step on. Called by the ROS thread."""
        self._pacer.config = config

    def set_choices(self, choices: Choices) -> None:
        """Change what chunks depend on from the next inference on. Called by the ROS thread."""
        self._predictor.choices = choices

    def hand_over(self) -> Handover:
        """What the next worker needs to go on; this one must not step any more."""
        return Handover(
            pacer=self._pacer,
            predictor=self._predictor,
            progress=self._progress,
            figures=self.figures,
            next_chunk_id=self.next_chunk_id,
        )

    def begin_episode(self) -> None:
        """Forget what came before: the policy's memory, what was sent, what was seen."""
        self._loaded.policy.reset()
        self._pacer.restart()
        self._predictor.restart()
        self._seen_ns = None

    def step(self) -> float:
        """Infer if it is time to; the seconds until the next look, inf: when woken."""
        epoch = self._gate.epoch
        self.idle = True
        if not self._gate.is_open:
            return math.inf
        while self._progress:
            progress = self._progress.popleft()
            self._pacer.follow(progress)
            self._predictor.follow(progress)
        if self._loaded.capabilities.requires_task and not self.task:
            self.hungry = False
            self._note(reason=NO_PROMPT)
            return math.inf
        if self.task != self._used_task:
            self._pacer.hurry()
        now_s = self.clocks.pacing_s()
        due = self._pacer.due(now_s)
        if due.wait_s > 0.0:
            self.hungry = False
            self._note(reason=due.reason)
            return due.wait_s
        wait_s = self._looked_s + LOOK_INTERVAL_S - self.clocks.look_s()
        if wait_s > 0.0:
            self.idle = False
            return wait_s
        try:
            return self._look(epoch, now_s)
        finally:
            self._looked.set()

    def failed(self, error: BaseException) -> int:
        """Count a failed inference; the number of failures in a row."""
        in_a_row = self.figures.failures_in_a_row + 1
        self._note(
            failures=self.figures.failures + 1,
            failures_in_a_row=in_a_row,
            reason=f'inference failed: {error}',
        )
        return in_a_row

    def _look(self, epoch: int, now_s: float) -> float:
        self._looked_s = self.clocks.look_s()
        self.hungry = True
        try:
            snapshot = self._reader.look(self.clocks.now_ns())
            seen_ns = self._seen_ns
            if seen_ns is not None and not self._reader.is_newer(snapshot, than_ns=seen_ns):
                return math.inf
            task = self.task
            reading = self._reader.read(self.clocks.now_ns(), task=task)
        except ObservationError as error:
            self._note(reason=str(error), refused=self.figures.refused + 1)
            return math.inf
        self.idle = False
        if epoch != self._gate.epoch:
            return 0.0
        self.hungry = False
        self._used_task = task
        self.reading = reading
        self._seen_ns = reading.snapshot.reference_ns
        self._pacer.started(now_s)
        self._note(reason='')
        self._looked.set()
        self._infer(reading, epoch)
        return 0.0

    def _infer(self, reading: Reading, epoch: int) -> None:
        contract, observation_ns = self._loaded.contract, reading.snapshot.reference_ns
        start_s, pacing_start_s = time.perf_counter(), self.clocks.pacing_s()
        self._begun_s = start_s
        try:
            self.prefix = prefix = self._predictor.prefix(observation_ns, epoch=epoch)
            rows = self._predictor.predict(
                reading.observation, number=self.next_chunk_id - 1, prefix=prefix
            )
            actions = chunk_actions(rows, contract)
        finally:
            self._begun_s = None
        elapsed_s = time.perf_counter() - start_s
        # Simulated time may have gone back meanwhile.
        self._pacer.latency.add(max(0.0, self.clocks.pacing_s() - pacing_start_s))
        self._latency.add(elapsed_s)
        chunk = ActionChunk(
            actions=actions,
            joint_names=contract.action,
            observation_stamp_ns=observation_ns,
            dt_s=1.0 / contract.policy_rate_hz,
            epoch=epoch,
            chunk_id=self.next_chunk_id,
            inference_time_s=elapsed_s,
            frozen_rows=0 if prefix is None else prefix.delay,
            sample_stamps_ns=reading.sample_stamps_ns,
            received_ns=reading.snapshot.received_ns,
        )
        sent = self._gate.let_pass(epoch, lambda: self._publish(chunk))
        if sent:
            self.next_chunk_id += 1
            self._predictor.sent(chunk)
            self._pacer.sent(self.clocks.pacing_s(), chunk_id=chunk.chunk_id, epoch=epoch)
        self._note_inference(reading, sent=sent)

    def _take_over(self, handover: Handover) -> None:
        config, latency = self._pacer.config, self._pacer.latency
        for seconds in handover.latency_s:
            latency.add(seconds)
        self._pacer = handover.pacer
        self._pacer.config, self._pacer.latency = config, latency
        self._pacer.hurry()
        self._predictor.take_over(handover.predictor, latencies_s=handover.latency_s)
        self._progress = handover.progress
        self.next_chunk_id = handover.next_chunk_id
        self.figures = replace(handover.figures, p50_s=0.0, p99_s=0.0)

    def _note_inference(self, reading: Reading, *, sent: bool) -> None:
        timing = self._loaded.policy.last_timing
        figures = self.figures
        self._note(
            reason='',
            chunks=figures.chunks + sent,
            withheld=figures.withheld + (not sent),
            failures_in_a_row=0,
            ages_s=dict(reading.snapshot.ages_s),
            skew_s=reading.snapshot.skew_s,
            p50_s=self._latency.percentile(50) or 0.0,
            p99_s=self._latency.percentile(99) or 0.0,
            preprocess_s=timing.preprocess_s,
            model_s=timing.model_s,
            postprocess_s=timing.postprocess_s,
            stages_s=dict(timing.stages_s),
        )

    def _note(self, **changes: object) -> None:
        self.figures = replace(self.figures, **changes)  # type: ignore[arg-type]

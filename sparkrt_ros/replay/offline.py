"""A bag played through the code of the live nodes, in made-up time: which observations it gives.

Messages go into the policy node's own intake and buffer; its worker and pacer decide when to look
and infer; the streamer's core consumes the chunks and reports its progress. Only time is made up:
it stands at each message's arrival, and every wait takes exactly as long as asked. So the result
depends on the bag and the options alone, not on the machine.

When the worker infers, the observation is handed out and a chunk of zeros stands in: what is
consumed when does not depend on the values. The arms of a comparison then all infer from the same
observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from sparkrt_ros.convert.time import seconds_to_ns
from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.pacing import PacingConfig
from sparkrt_ros.nodes.policy_worker import PolicyWorker
from sparkrt_ros.nodes.pose_merger import FOREVER_NS
from sparkrt_ros.nodes.predictor import Choices
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.replay.bag import Bag, BagMessage
from sparkrt_ros.replay.clock import LOG, MessageTimes, VirtualClock, wait_ns
from sparkrt_ros.replay.commands import (
    SESSION,
    CommandScript,
    OfflineStreamer,
    Playing,
    ScriptWriter,
)
from sparkrt_ros.replay.feed import Feed
from sparkrt_ros.replay.history import EventLog
from sparkrt_ros.replay.recorded import Recording
from sparkrt_ros.replay.result import ChunkRecord, StreamHistory
from sparkrt_ros.replay.watching import WatchingReader
from sparkrt_ros.runtime.chunking.prefix import PrefixPlan
from sparkrt_ros.runtime.types import ActionChunk, FloatArray, Observation

# What may be due, the first of several at one time first.
_PUBLISH, _TICK, _PROGRESS, _STEP = _ORDER = ('publish', 'tick', 'progress', 'step')


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """time: see MessageTimes. namespace: of the robot in the bag.

    latency_s: how long an inference takes, in the time of the bag. rate_hz: infer that often
    instead of when the streamer needs a chunk. max_chunks: stop after as many.
    with_commands: also collect the commands recorded in the bag.
    """

    time: str = LOG
    namespace: str = ''
    latency_s: float = 0.0
    rate_hz: float | None = None
    max_chunks: int | None = None
    with_commands: bool = False


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One inference of the worker. chunk: as published, with zeros for actions.

    prefix: what it goes on from, where the mode is rtc.
    """

    record: ChunkRecord
    observation: Observation
    chunk: ActionChunk
    prefix: PrefixPlan | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayOutcome:
    """What a replay went through, apart from its observations.

    recording: commands in the bag, where they were wanted; malformed: see RecordedCommands.
    bag_warnings, bag_complete: what reading the bag brought to light.
    """

    streams: tuple[StreamHistory, ...]
    events: EventLog
    script: CommandScript
    jumps: int
    recording: Recording | None
    malformed: Mapping[str, tuple[int, str]]
    bag_warnings: tuple[str, ...]
    bag_complete: bool


class Replay:
    """One pass over a bag; iterate over it once.

    loaded: any arm of the comparison, for what the policy needs and how it is played.
    pacing: of the policy node. max_skew_s, task: as its parameters say.
    Raises ConfigError where the bag lacks a topic. ``outcome`` tells what happened so far,
    ``position_ns`` is how far it got.
    """

    def __init__(
        self,
        bag: Bag,
        loaded: LoadedPolicy,
        options: ReplayOptions,
        *,
        pacing: PacingConfig,
        task: str = '',
        max_skew_s: float = 0.0,
    ) -> None:
        self._bag, self._options, self._contract = bag, options, loaded.contract
        self._times = MessageTimes(options.time)
        self._clock = VirtualClock()
        self._gate = ChunkGate()
        self.events = EventLog()
        self.feed = Feed(
            bag,
            loaded,
            self.events,
            self._times,
            namespace=options.namespace,
            max_skew_s=max_skew_s,
            with_commands=options.with_commands,
            on_jump=self._time_jumped,
        )
        self._reader = WatchingReader(
            self.feed.intake,
            loaded.contract,
            loaded.capabilities,
            warn=self.feed.warn,
            events=self.events,
        )
        self._worker = self._make_worker(loaded, pacing=pacing, task=task)
        self._streamer = OfflineStreamer(loaded.contract, playing_of(loaded))
        self.script = ScriptWriter(len(loaded.contract.action))
        self._due: dict[str, int | None] = dict.fromkeys(_ORDER)
        self._pending: Observed | None = None
        self._published = 0
        self.jumps = 0

    @property
    def position_ns(self) -> int:
        """The time reached."""
        return self._clock.now_ns

    def outcome(self) -> ReplayOutcome:
        """What happened so far."""
        recorded = self.feed.recorded
        return ReplayOutcome(
            streams=tuple(log.history() for log in self.feed.histories.values()),
            events=self.events,
            script=self.script.script(),
            jumps=self.jumps,
            recording=None if recorded is None else recorded.recording(),
            malformed={} if recorded is None else dict(recorded.malformed),
            bag_warnings=self._bag.warnings,
            bag_complete=self._bag.complete,
        )

    def __iter__(self) -> Iterator[Observed]:
        started = False
        for message in self._bag.messages(self.feed.topics, order=self._times.order):
            now_ns = self._times.arrival_ns(message)
            if now_ns is None:
                self.events.add(
                    'dropped', time_ns=message.log_ns, stream=message.topic, text=_BEFORE_CLOCK
                )
                continue
            if not started:
                self._start(now_ns)
                started = True
            yield from self._run_until(now_ns)
            if self._finished:
                return
            self._arrive(message, now_ns)
            yield from self._run_until(now_ns)
            if self._finished:
                return

    @property
    def _finished(self) -> bool:
        return self._options.max_chunks is not None and (
            self._published >= self._options.max_chunks
        )

    def _start(self, now_ns: int) -> None:
        self._clock.set(now_ns)
        self._worker.begin_episode()
        self._gate.open()
        self._streamer.core.activate(now_ns)
        self._due[_STEP] = self._due[_TICK] = self._due[_PROGRESS] = now_ns
        if not self.feed.poses.needed:
            self._pose(_nowhere(len(self._contract.action)))

    def _arrive(self, message: BagMessage, now_ns: int) -> None:
        went_back = now_ns < self._clock.now_ns
        self._clock.set(now_ns)
        if went_back:
            # Whatever waited for a time ahead goes on from here.
            for name, due_ns in self._due.items():
                self._due[name] = None if due_ns is None else now_ns
        self.feed.deliver(message, now_ns)
        if self._worker.hungry:
            self._wake()

    def _run_until(self, now_ns: int) -> Iterator[Observed]:
        """Do everything that is due before or at ``now_ns``, in order of time."""
        while not self._finished:
            due = [(at, name) for name in _ORDER if (at := self._due[name]) is not None]
            if not due:
                return
            at_ns, name = min(due, key=lambda item: item[0])
            if at_ns > now_ns:
                return
            if at_ns > self._clock.now_ns:
                self._clock.set(at_ns)
            self._due[name] = None
            if name == _PUBLISH:
                yield from self._release()
            else:
                {_TICK: self._tick, _PROGRESS: self._tell, _STEP: self._step}[name]()

    def _step(self) -> None:
        """One step of the worker; an inference keeps it busy for the latency."""
        now_ns = self._clock.now_ns
        wait = wait_ns(self._worker.step())
        busy_ns, self._clock.ahead_ns = self._clock.ahead_ns, 0
        if wait is not None:
            self._due[_STEP] = now_ns + max(wait, busy_ns)

    def _wake(self) -> None:
        """Let the worker step now, or when the inference in hand is done."""
        done_ns = self._due[_PUBLISH]
        self._due[_STEP] = self._clock.now_ns if done_ns is None else done_ns

    def _tick(self) -> None:
        """One tick of the streamer, which sees the newest pose."""
        now_ns = self._clock.now_ns
        pose = self.feed.take_pose(now_ns)
        if pose is not None:
            self._pose(pose)
        self.script.tick(now_ns)
        if self.feed.recorded is not None:
            self.feed.recorded.ticks += 1
        self._streamer.core.tick(now_ns)
        self._due[_TICK] = now_ns + round(1e9 / self._contract.control_rate_hz)
        if self._streamer.news:
            self._streamer.news = False
            self._follow()

    def _tell(self) -> None:
        """The streamer's regular word to the policy node."""
        self._due[_PROGRESS] = self._clock.now_ns + round(1e9 / self._contract.policy_rate_hz)
        self._follow()

    def _follow(self) -> None:
        self._worker.follow(self._streamer.progress(at_s=self._clock.steady_s()))
        self._wake()

    def _pose(self, pose: Pose) -> None:
        self.script.pose(pose)
        self._streamer.core.pose = pose

    def _publish(self, chunk: ActionChunk) -> None:
        """What the worker calls; the chunk leaves when its inference is over."""
        reading = self._reader.last
        assert reading is not None
        snapshot = reading.snapshot
        record = ChunkRecord(
            index=self._published,
            reference_ns=snapshot.reference_ns,
            taken_ns=self._clock.now_ns,
            samples_ns=dict(chunk.sample_stamps_ns),
            ages_s=dict(snapshot.ages_s),
            skew_s=snapshot.skew_s,
        )
        prefix = self._worker.prefix
        self._pending = Observed(
            record=record,
            observation=reading.observation,
            chunk=chunk,
            prefix=None if prefix is None else prefix.plan,
        )
        self._due[_PUBLISH] = self._clock.now_ns + self._clock.ahead_ns

    def _release(self) -> Iterator[Observed]:
        observed, self._pending = self._pending, None
        if observed is None:
            return
        self._published += 1
        if self.feed.recorded is not None:
            self.feed.recorded.chunks += 1
        self.script.chunk()
        self._streamer.core.offer(observed.chunk, session_id=SESSION)
        yield observed

    def _time_jumped(self, before_ns: int, after_ns: int) -> None:
        """As the policy node does: a new episode, and what was begun before it is void."""
        self._worker.begin_episode()
        epoch = self._gate.raise_epoch()
        self.jumps += 1
        back_s = (before_ns - after_ns) / 1e9
        self.events.add(
            'jump',
            time_ns=after_ns,
            stream='',
            text=f'time went back by {back_s:.3f} s: observations cleared, epoch {epoch} begins',
            same=epoch,
        )
        if self._pending is not None:
            self._pending, self._due[_PUBLISH] = None, None
            text = 'a chunk was withheld: time went back during its inference'
            self.events.add('withheld', time_ns=after_ns, stream='', text=text)
        self._due[_STEP] = after_ns

    def _stand_in(self, loaded: LoadedPolicy) -> Any:
        """What the worker infers with."""
        return _StandIn(loaded, self._clock, seconds_to_ns(self._options.latency_s))

    def _make_worker(
        self, loaded: LoadedPolicy, *, pacing: PacingConfig, task: str
    ) -> PolicyWorker:
        rate_hz = self._options.rate_hz
        if rate_hz is not None:
            pacing = replace(pacing, mode='ensemble', inference_rate_hz=rate_hz)
        return PolicyWorker(
            replace(loaded, policy=self._stand_in(loaded)),
            self._reader,
            self._gate,
            session_id=SESSION,
            pacing=pacing,
            task=task,
            clocks=self._clock.worker_clocks(),
            choices=Choices(continues=loaded.receipt['mode'] == 'rtc'),
            publish=self._publish,
        )


class _StandIn:
    """Takes the place of the policy: lets the latency pass and answers zeros."""

    last_timing = SimpleNamespace(preprocess_s=0.0, model_s=0.0, postprocess_s=0.0, stages_s={})

    def __init__(self, loaded: LoadedPolicy, clock: VirtualClock, latency_ns: int) -> None:
        needs = loaded.capabilities
        self._zeros = np.zeros((needs.chunk_size, needs.action_size), dtype=np.float32)
        self._clock = clock
        self._latency_ns = latency_ns

    def predict_chunk(self, observation: Observation, **_: Any) -> FloatArray:
        self._clock.ahead_ns = self._latency_ns
        return self._zeros

    def reset(self) -> None:
        """Nothing is remembered."""


def playing_of(loaded: LoadedPolicy) -> Playing:
    """How the streamer plays the chunks of a policy, as the policy node reports it."""
    receipt = loaded.receipt
    return Playing(
        mode=receipt['mode'], temporal_ensemble_coeff=receipt['temporal_ensemble_coeff']
    )


def _nowhere(size: int) -> Pose:
    """The pose of a robot that needs none to start from."""
    return Pose(values=np.full(size, np.nan), fresh_until_ns=FOREVER_NS)


_BEFORE_CLOCK = 'messages before the first /clock have no time'

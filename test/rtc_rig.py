"""Policy worker and streamer around each other in made-up time: real-time chunking in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from test_observation_intake import Setup, ns

from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.pacing import PacingConfig
from sparkrt_ros.nodes.policy_worker import PolicyWorker, WorkerClocks
from sparkrt_ros.nodes.predictor import Choices
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.replay.commands import SESSION, OfflineStreamer, Playing
from sparkrt_ros.runtime.types import ActionChunk

DT_S, TICK_S = 0.05, 0.01
ROWS = 24
CAPABILITIES = SimpleNamespace(requires_task=False, noise_shape=())


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One inference: of which observation, and what it was told to go on from."""

    stamp_ns: int
    continuation: Any
    chunk_id: int


class RampPolicy:
    """Every chunk is a ramp of its own, in degrees: between its rows commands are exact.

    latency_s: how long the next inference takes; the world goes on meanwhile.
    """

    last_timing = SimpleNamespace(preprocess_s=0.0, model_s=0.0, postprocess_s=0.0, stages_s={})

    def __init__(self, loop: Loop) -> None:
        self.latency_s: Callable[[], float] = lambda: 0.0
        self.asked: list[Asked] = []
        self._loop = loop
        self._random = np.random.default_rng(3)

    def predict_chunk(self, observation: Any, *, continuation: Any = None) -> np.ndarray:
        number = self._loop.worker.next_chunk_id
        self.asked.append(
            Asked(stamp_ns=observation.stamp_ns, continuation=continuation, chunk_id=number)
        )
        self._loop.go_on(self.latency_s())
        start, slope = self._random.uniform(-40, 40, 2), self._random.uniform(-2, 2, 2)
        return (start + np.arange(ROWS)[:, None] * slope).astype(np.float32)

    def reset(self) -> None:
        """Nothing is remembered."""


class Loop:
    """stamp_age_s: how old an observation is when it arrives. commands: (time, rad) sent."""

    def __init__(self, *, mode: str = 'rtc', stamp_age_s: float = 0.0, steps: int = 10) -> None:
        self.now_s = 0.0
        self._stamp_age_s = stamp_age_s
        self.setup = Setup()
        self.gate = ChunkGate()
        self.policy = RampPolicy(self)
        self.chunks: list[ActionChunk] = []
        self.times_ns: list[int] = []
        self.commands: list[np.ndarray] = []
        self.takers: list[int] = []
        playing = Playing(mode=mode, blend_s=0.0, blend_in_s=0.0)
        self.streamer = OfflineStreamer(self.setup.robot, playing)
        self.pacing = PacingConfig(
            mode=mode,
            n_action_steps=steps,
            dt_s=DT_S,
            inference_rate_hz=10.0,
            lead_margin_s=0.0,
            streamer_timeout_s=1.0,
        )
        self.worker = self.make_worker()
        self.gate.open()
        self.streamer.core.activate(ns(0.0))

    def make_worker(self, **options: Any) -> PolicyWorker:
        loaded: Any = SimpleNamespace(
            policy=self.policy, contract=self.setup.robot, capabilities=CAPABILITIES
        )
        return PolicyWorker(
            loaded,
            self.setup.reader,
            self.gate,
            session_id=SESSION,
            pacing=self.pacing,
            task='',
            clocks=WorkerClocks(
                now_ns=lambda: ns(self.now_s),
                pacing_s=lambda: self.now_s,
                look_s=lambda: 1e6 + 1e3 * self.now_s,
            ),
            choices=Choices(continues=self.pacing.mode == 'rtc'),
            publish=self._publish,
            **options,
        )

    def run(self, seconds: float) -> None:
        """Let worker and streamer work."""
        until_s = self.now_s + seconds
        while self.now_s < until_s - TICK_S / 2:
            self.go_on(TICK_S)
            while self.worker.step() == 0.0 and self.now_s < until_s:
                pass

    def go_on(self, seconds: float) -> None:
        """Time passes, tick by tick, while the worker is busy."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s = round(self.now_s + TICK_S, 6)
            stamp_s = self.now_s - self._stamp_age_s
            self.setup.joints(self.now_s, stamp=ns(stamp_s))
            self.setup.image(self.now_s, stamp=ns(stamp_s))
            self._tick()

    def played(self) -> Iterator[tuple[Asked, np.ndarray, np.ndarray]]:
        """Each inference that went on from a chunk: with what it was told in rad, and what was
        played at these times instead: NaN where nothing was, or two chunks met.
        """
        times, commands = np.array(self.times_ns), np.array(self.commands)
        takers = np.array(self.takers)
        for asked in self.policy.asked:
            if asked.continuation is None:
                continue
            told = self.setup.robot.action_to_si(asked.continuation.actions)
            due = asked.stamp_ns + (np.arange(len(told)) * DT_S * 1e9).astype(np.int64)
            after = np.searchsorted(times, due)
            real = np.full(told.shape, np.nan)
            for row, (at, place) in enumerate(zip(due, after, strict=True)):
                if place >= len(times) or (place == 0 and times[0] != at):
                    continue
                if times[place] == at:
                    real[row] = commands[place]
                elif takers[place] == takers[place - 1]:
                    share = (at - times[place - 1]) / (times[place] - times[place - 1])
                    real[row] = commands[place - 1] + share * (
                        commands[place] - commands[place - 1]
                    )
            yield asked, told, real

    def taken_at(self, chunk_id: int) -> int:
        """When the streamer first played a chunk [ns]."""
        return self.times_ns[self.takers.index(chunk_id)]

    def _tick(self) -> None:
        now_ns = ns(self.now_s)
        self.streamer.core.pose = Pose(values=np.zeros(2), fresh_until_ns=now_ns + 1, number=1)
        self.streamer.forget()
        self.streamer.core.tick(now_ns)
        if not np.isnan(self.streamer.command).any():
            self.times_ns.append(now_ns)
            self.commands.append(self.streamer.command.copy())
            self.takers.append(self.streamer.core.snapshot.chunk_id)
        if self.streamer.news or round(self.now_s / TICK_S) % 5 == 0:
            self.streamer.news = False
            self.worker.follow(self.streamer.progress(at_s=self.now_s))

    def _publish(self, chunk: ActionChunk) -> None:
        self.chunks.append(chunk)
        self.streamer.core.offer(chunk, session_id=SESSION)

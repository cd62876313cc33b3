"""The offline side of a live replay: the same bag through the same code, in one thread.

Time stands where it stands for the live nodes: at each message, each control tick and each moment
at which the policy node wants to go on; and at each of them the policy node looks, before the
message of that moment, since ``/clock`` reaches it first.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.replay.arms import RunningArm
from sparkrt_ros.replay.bag import Bag, BagMessage
from sparkrt_ros.replay.commands import offline_commands
from sparkrt_ros.replay.message_bytes import message_bytes
from sparkrt_ros.replay.offline import Observed, Replay, ReplayOptions, playing_of
from sparkrt_ros.replay.result import CommandTrack
from sparkrt_ros.runtime.types import ActionChunk, FloatArray

# A message of a bag: its topic, and its number among those of the topic, from 0.
MessageKey = tuple[str, int]


class SteppedReplay(Replay):
    """A replay in the order of events of a live one that goes step by step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # No look is put off: real time, which that depends on, goes on at every step.
        endless = map(float, itertools.count())
        self._worker.clocks = replace(self._worker.clocks, look_s=lambda: next(endless))

    def __iter__(self) -> Iterator[Observed]:
        started = False
        for message in self._bag.messages(self.feed.topics, order=self._times.order):
            now_ns = self._times.arrival_ns(message)
            if now_ns is None:
                continue
            if not started:
                self._start(now_ns)
                started = True
            yield from self._run_until(now_ns)
            self._move(now_ns)
            yield from self._run_until(now_ns)
            if self._finished:
                return
            self.feed.deliver(message, now_ns)
            self._wake()
            yield from self._run_until(now_ns)
            if self._finished:
                return

    def _move(self, now_ns: int) -> None:
        """``/clock`` reaches both nodes."""
        if now_ns < self._clock.now_ns:
            for name, due_ns in self._due.items():
                self._due[name] = None if due_ns is None else now_ns
        self._clock.set(now_ns)
        self._wake()

    def _tick(self) -> None:
        """While it is traced, the streamer tells of every tick."""
        super()._tick()
        self._follow()


class BagWithout:
    """A bag that lacks some of its messages."""

    def __init__(self, bag: Bag, left_out: Collection[MessageKey]) -> None:
        self._bag = bag
        self._left_out = frozenset(left_out)
        self.topics = bag.topics

    def messages(
        self, topics: Collection[str] | None = None, *, order: str = 'log'
    ) -> Iterator[BagMessage]:
        """See Bag; the numbers of messages are those of this order."""
        for key, message in numbered(self._bag.messages(topics, order=order)):
            if key not in self._left_out:
                yield message


def numbered(messages: Iterator[BagMessage]) -> Iterator[tuple[MessageKey, BagMessage]]:
    """Each message with its key."""
    counts: dict[str, int] = {}
    for message in messages:
        number = counts.get(message.topic, 0)
        counts[message.topic] = number + 1
        yield (message.topic, number), message


@dataclass(frozen=True, kw_only=True)
class OfflineRun:
    """chunks: as the policy node publishes them. commands: by the name of the output, time of the
    tick and content of the message. messages: how many arrived.
    """

    chunks: tuple[ActionChunk, ...]
    commands: Mapping[str, tuple[tuple[int, bytes], ...]]


class OfflineSide:
    """Replays a bag with one loaded policy; the same observation is inferred from only once.

    seed: of the noise, where the policy draws any; then also the number of the chunk counts.
    """

    def __init__(
        self,
        bag: Bag,
        arm: RunningArm,
        options: ReplayOptions,
        *,
        seed: int = 0,
        **replay: Any,
    ) -> None:
        self._bag, self._arm, self._options, self._replay = bag, arm, options, replay
        self._seed = seed
        self._known: dict[tuple[Any, ...], FloatArray] = {}

    def run(self, *, left_out: Collection[MessageKey] = ()) -> OfflineRun:
        """The whole bag, or the bag without some messages."""
        bag: Any = BagWithout(self._bag, left_out) if left_out else self._bag
        loaded = self._arm.loaded
        replay = SteppedReplay(bag, loaded, self._options, **self._replay)
        chunks = tuple(self._infer(observed) for observed in replay)
        track = offline_commands(
            loaded.contract, replay.script.script(), chunks, playing=playing_of(loaded)
        )
        return OfflineRun(chunks=chunks, commands=command_messages(loaded.contract, track))

    def _infer(self, observed: Observed) -> ActionChunk:
        chunk = observed.chunk
        noise = self._arm.noise(self._seed, observed.record.index)
        number = None if noise is None else observed.record.index
        stamps = chunk.sample_stamps_ns.items()
        key = (chunk.epoch, chunk.observation_stamp_ns, number, *stamps)
        if key not in self._known or observed.prefix is not None:
            self._arm.infer(observed, noise=noise)
            self._known[key] = self._arm.newest_actions
        self._arm.note_sent(chunk.chunk_id, self._known[key])
        return replace(chunk, actions=self._known[key])


def command_messages(
    contract: RobotContract, track: CommandTrack
) -> dict[str, tuple[tuple[int, bytes], ...]]:
    """What the streamer publishes for a track of commands."""
    classes = {name: message_class(name) for name in needed_message_types(contract)}
    commands = CommandSet(contract, classes)
    columns = [contract.output_columns(group) for group in contract.outputs]
    found: dict[str, list[tuple[int, bytes]]] = {group.name: [] for group in contract.outputs}
    for time_ns, command in zip(track.times_ns.tolist(), track.commands, strict=True):
        sent = ~np.isnan(command)
        if not sent.any():
            continue
        messages = commands.fill(np.where(sent, command, 0.0), stamp_ns=time_ns)
        for group, message, used in zip(contract.outputs, messages, columns, strict=True):
            if sent[used].all():
                found[group.name].append((time_ns, message_bytes(message)))
    return {name: tuple(messages) for name, messages in found.items()}

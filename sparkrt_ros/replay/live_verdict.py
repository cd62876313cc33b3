"""From what was played and heard to a LiveResult."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import TraceEntry
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes.observation_reader import ObservationReader, Reading
from sparkrt_ros.replay.arms import RunningArm
from sparkrt_ros.replay.bag import Bag, BagMessage
from sparkrt_ros.replay.clock import MessageTimes
from sparkrt_ros.replay.feed import Feed
from sparkrt_ros.replay.history import EventLog
from sparkrt_ros.replay.live_compare import (
    Heard,
    Matcher,
    compare,
    difference_of_chunks,
    differences_of_sequence,
    explain,
)
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.replay.live_offline import MessageKey, OfflineSide, numbered
from sparkrt_ros.replay.live_player import Input
from sparkrt_ros.replay.live_result import Difference, DroppedMessage, LiveResult
from sparkrt_ros.replay.live_retrace import retrace_commands, retrace_readings
from sparkrt_ros.replay.offline import Observed, ReplayOptions, playing_of
from sparkrt_ros.replay.result import ChunkRecord
from sparkrt_ros.runtime.types import ActionChunk

POLICY, STREAMER = 'policy node', 'streamer'


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of playing a bag.

    policy, streamer: entries of the nodes' traces; lost: those that never came.
    sent: messages played.
    """

    inputs: Mapping[str, Input]
    heard: Heard
    policy: tuple[TraceEntry, ...]
    streamer: tuple[TraceEntry, ...]
    lost: int
    sent: int

    @classmethod
    def of(cls, ear: LiveEar, inputs: Mapping[str, Input], *, sent: int) -> Played:
        """What ``ear`` has heard so far."""
        with ear.changed:
            return cls(
                inputs=inputs,
                heard=Heard.of(ear.chunks, ear.commands),
                policy=tuple(ear.policy.entries),
                streamer=tuple(ear.streamer.entries),
                lost=ear.policy.missing + ear.streamer.missing,
                sent=sent,
            )


class Judge:
    """Compares one live replay with what comes of the bag offline.

    messages: makes an iterator over the messages that should have been taken. replay: further
    arguments of Replay. seed: of the noise, where the policy draws any.
    """

    def __init__(
        self,
        played: Played,
        *,
        bag: Bag,
        arm: RunningArm,
        options: ReplayOptions,
        replay: Mapping[str, Any],
        messages: Callable[[], Iterator[tuple[MessageKey, BagMessage]]],
        seed: int = 0,
    ) -> None:
        self._seed = seed
        self._played, self._bag, self._arm = played, bag, arm
        self._options, self._replay = options, replay
        self._policy = Matcher(played.policy, node=POLICY)
        self._streamer = Matcher(played.streamer, node=STREAMER)
        for key, message in messages():
            item = played.inputs[message.topic]
            for matcher, streams in (
                (self._policy, item.to_policy),
                (self._streamer, item.to_streamer),
            ):
                for stream in streams:
                    matcher.offer(stream, key, message)
        self._dropped = _merged(self._policy.dropped, self._streamer.dropped)

    def step_by_step(self) -> LiveResult:
        """Against the offline run of the same bag, which had the same order of events."""
        heard, keys = self._played.heard, self._dropped.keys()
        side = OfflineSide(self._bag, self._arm, self._options, seed=self._seed, **self._replay)
        differences = compare(heard, side.run())
        if differences and keys:
            left = compare(heard, side.run(left_out=keys))
            # Without what was dropped the offline run is the live one, but for what is left.
            remaining = {(item.kind, item.index, item.output) for item in left}
            named = [d for d in differences if (d.kind, d.index, d.output) not in remaining]
            differences = [*explain(named, self._dropped.values()), *left]
        return self._result('step by step', differences)

    def at_rate(self, rate: float) -> LiveResult:
        """Against what follows, offline, from what the nodes took in and when."""
        differences: list[Difference] = []
        if self._policy.foreign or self._streamer.foreign:
            differences.append(
                Difference(
                    kind='input',
                    index=0,
                    time_ns=0,
                    text='messages that are not in the bag',
                    cause='another publisher on these topics',
                )
            )
        else:
            differences += [*self._chunks_again(), *self._commands_again()]
        return self._result(f'at rate {rate:g}', differences)

    def _chunks_again(self) -> Iterator[Difference]:
        loaded, heard = self._arm.loaded, self._played.heard
        feed = Feed(
            self._bag,
            loaded,
            EventLog(),
            MessageTimes(self._options.time),
            namespace=self._options.namespace,
            max_skew_s=self._replay['max_skew_s'],
            with_commands=False,
            on_jump=lambda before_ns, after_ns: None,
        )
        reader = ObservationReader(
            feed.intake, loaded.contract, loaded.capabilities, warn=feed.warn
        )
        first = {item.to_policy[0] for item in self._played.inputs.values() if item.to_policy}
        entries = [entry for entry in self._played.policy if entry.name in first]
        readings = retrace_readings(
            entries,
            self._taken(self._policy, lambda item: item.to_policy),
            heard.chunks,
            feed,
            reader,
            task=self._replay['task'],
        )
        for index, (live, reading) in enumerate(zip(heard.chunks, readings, strict=True)):
            text = 'no snapshot of the bag gives it'
            if reading is not None:
                text = difference_of_chunks(live, self._infer(live, reading))
            if text:
                time_ns = stamp_to_ns(live.observation_stamp)
                yield Difference(kind='chunk', index=index, time_ns=time_ns, text=text)

    def _commands_again(self) -> Iterator[Difference]:
        contract = self._arm.loaded.contract
        commands = retrace_commands(
            self._played.streamer,
            self._taken(self._streamer, lambda item: item.to_streamer),
            self._played.heard.chunks,
            contract,
            playing_of(self._arm.loaded).options(contract),
        )
        for name, wanted in commands.items():
            yield from differences_of_sequence(name, self._played.heard.commands[name], wanted)

    def _taken(
        self, matcher: Matcher, streams: Callable[[Input], Iterable[str]]
    ) -> dict[str, Iterator[BagMessage]]:
        """Stream -> what entered the node of it."""

        def entered(topic: str) -> Iterator[BagMessage]:
            order = MessageTimes(self._options.time).order
            for key, message in numbered(self._bag.messages([topic], order=order)):
                if key not in matcher.dropped:
                    yield message

        return {
            stream: entered(item.topic)
            for item in self._played.inputs.values()
            for stream in streams(item)
        }

    def _infer(self, live: ActionChunkMessage, reading: Reading) -> ActionChunk:
        """What this policy makes of the same observation."""
        snapshot, contract = reading.snapshot, self._arm.loaded.contract
        chunk = ActionChunk(
            actions=self._arm.no_actions,
            joint_names=contract.action,
            observation_stamp_ns=snapshot.reference_ns,
            dt_s=1.0 / contract.policy_rate_hz,
            epoch=live.epoch,
            chunk_id=live.chunk_id,
            sample_stamps_ns=reading.sample_stamps_ns,
        )
        record = ChunkRecord(
            index=live.chunk_id,
            reference_ns=snapshot.reference_ns,
            taken_ns=stamp_to_ns(live.header.stamp),
            samples_ns=chunk.sample_stamps_ns,
            ages_s=snapshot.ages_s,
            skew_s=snapshot.skew_s,
        )
        observed = Observed(record=record, observation=reading.observation, chunk=chunk)
        self._arm.infer(observed, noise=self._arm.noise(self._seed, live.chunk_id - 1))
        return replace(chunk, actions=self._arm.newest_actions)

    def _result(self, pacing: str, differences: list[Difference]) -> LiveResult:
        played, loaded = self._played, self._arm.loaded
        heard = played.heard
        wrong = {
            kind: sum(d.kind == kind and d.is_heard for d in differences)
            for kind in ('chunk', 'command')
        }
        lost = f'{played.lost} entries of the traces were lost' if played.lost else ''
        return LiveResult(
            bag=str(self._bag.path),
            robot=loaded.contract.name,
            pacing=pacing,
            receipt=loaded.receipt,
            digest=heard.digest(),
            chunks=len(heard.chunks),
            chunks_identical=len(heard.chunks) - wrong['chunk'],
            commands=heard.command_count,
            commands_identical=heard.command_count - wrong['command'],
            differences=tuple(differences),
            dropped=tuple(self._dropped.values()),
            warnings=tuple(text for text in (lost, *self._bag.warnings) if text),
        )


def _merged(
    first: Mapping[MessageKey, DroppedMessage], second: Mapping[MessageKey, DroppedMessage]
) -> dict[MessageKey, DroppedMessage]:
    """Messages dropped by either node, in the order of their stamps."""
    merged = dict(first)
    for key, drop in second.items():
        merged[key] = replace(drop, node=f'{POLICY} and {STREAMER}') if key in first else drop
    return dict(sorted(merged.items(), key=lambda item: item[1].stamp_ns))

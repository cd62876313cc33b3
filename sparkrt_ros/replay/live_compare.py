"""Live against offline: what is the same, byte for byte, and why the rest is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import TraceEntry
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes.trace import content_crc
from sparkrt_ros.replay.bag import BagMessage
from sparkrt_ros.replay.live_offline import MessageKey, OfflineRun
from sparkrt_ros.replay.live_result import Difference, DroppedMessage, seconds
from sparkrt_ros.replay.message_bytes import message_bytes
from sparkrt_ros.runtime.types import ActionChunk


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the live nodes published. commands: by output, the content of each message."""

    chunks: Sequence[ActionChunkMessage]
    commands: dict[str, list[bytes]]

    @classmethod
    def of(cls, chunks: Iterable[ActionChunkMessage], commands: dict[str, list[Any]]) -> Heard:
        """Copies of what an ear has heard so far."""
        return cls(
            chunks=tuple(chunks),
            commands={n: [message_bytes(m) for m in heard] for n, heard in commands.items()},
        )

    def digest(self) -> str:
        """SHA-256 of everything but what differs between two runs alike: session and real time."""
        digest = hashlib.sha256()
        for chunk in self.chunks:
            head = (chunk.header.stamp, chunk.observation_stamp, chunk.dt, chunk.epoch)
            digest.update(repr((head, chunk.chunk_id, stream_stamps(chunk))).encode())
            digest.update(chunk.data.tobytes())
        for name, heard in self.commands.items():
            digest.update(name.encode())
            for content in heard:
                digest.update(content)
        return digest.hexdigest()

    @property
    def command_count(self) -> int:
        return sum(len(heard) for heard in self.commands.values())


def stream_stamps(message: ActionChunkMessage) -> dict[str, int]:
    """The samples that a chunk names."""
    stamps = (stamp_to_ns(stamp) for stamp in message.stream_stamps)
    return dict(zip(message.stream_names, stamps, strict=True))


def difference_of_chunks(live: ActionChunkMessage, offline: ActionChunk) -> str:
    """How a live chunk differs from the offline one; empty where it does not."""
    found, wanted = stream_stamps(live), offline.sample_stamps_ns
    if found != wanted:
        parts = [
            f'{name} {seconds(found.get(name, 0))} instead of {seconds(wanted.get(name, 0))}'
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ]
        return f'different snapshot ({", ".join(parts)})'
    rows = np.asarray(offline.actions, dtype=np.float64)
    data = np.frombuffer(live.data, dtype=np.float64)
    if data.size != rows.size:
        return f'{data.size} values instead of {rows.size}'
    if data.tobytes() != rows.tobytes():
        largest = np.abs(data - rows.ravel()).max()
        return f'same snapshot, other values, by up to {largest:.3g}'
    head = (stamp_to_ns(live.observation_stamp), live.epoch, live.dt, tuple(live.joint_names))
    wanted_head = (
        offline.observation_stamp_ns,
        offline.epoch,
        offline.dt_s,
        offline.joint_names,
    )
    return '' if head == wanted_head else f'same actions, but {head} instead of {wanted_head}'


def compare(heard: Heard, offline: OfflineRun) -> list[Difference]:
    """Every difference, in order; those of one kind pair up by their number."""
    return [*_chunk_differences(heard, offline), *_command_differences(heard, offline)]


def _chunk_differences(heard: Heard, offline: OfflineRun) -> Iterator[Difference]:
    for index, (live, wanted) in enumerate(zip_longest(heard.chunks, offline.chunks)):
        times = [] if live is None else [stamp_to_ns(live.observation_stamp)]
        times += [] if wanted is None else [wanted.observation_stamp_ns]
        lacked: set[int] = set()
        if live is None:
            text = 'missing live'
        elif wanted is None:
            text = 'not there offline'
        else:
            text = difference_of_chunks(live, wanted)
            lacked = {*wanted.sample_stamps_ns.values()} - {*stream_stamps(live).values()}
        if text:
            yield Difference(
                kind='chunk',
                index=index,
                time_ns=max(times),
                text=text,
                is_heard=live is not None,
                lacked_ns=tuple(sorted(lacked)),
            )


def _command_differences(heard: Heard, offline: OfflineRun) -> Iterator[Difference]:
    for name, wanted in offline.commands.items():
        last_ns = 0
        for index, (live, item) in enumerate(zip_longest(heard.commands[name], wanted)):
            last_ns, data = (last_ns, None) if item is None else item
            if live == data:
                continue
            text = 'has other bytes' if live and data else 'is not there offline'
            yield Difference(
                kind='command',
                output=name,
                index=index,
                time_ns=last_ns,
                text=f'{name} {text if live else "is missing live"}',
                is_heard=live is not None,
            )


def differences_of_sequence(
    name: str, heard: Sequence[bytes], wanted: Sequence[tuple[int, bytes]]
) -> Iterator[Difference]:
    """Commands of one output that were published, against those heard; some may not have come.

    A publisher that keeps one message overwrites what a slow reader has not fetched.
    """
    position = 0
    for index, live in enumerate(heard):
        at = next((n for n in range(position, len(wanted)) if wanted[n][1] == live), None)
        time_ns = wanted[min(position, len(wanted) - 1)][0] if wanted else 0
        if at is None:
            text = f'{name} does not follow from what the streamer took in'
            yield Difference(kind='command', output=name, index=index, time_ns=time_ns, text=text)
            continue
        yield from (_unheard(name, *wanted[n], number=n) for n in range(position, at))
        position = at + 1
    yield from (_unheard(name, *wanted[n], number=n) for n in range(position, len(wanted)))


def _unheard(name: str, time_ns: int, _: bytes, *, number: int) -> Difference:
    return Difference(
        kind='command',
        output=name,
        index=number,
        time_ns=time_ns,
        text=f'{name} is missing live',
        cause='published, but overwritten before this reader fetched it',
        is_heard=False,
    )


class Matcher:
    """Finds the messages of a bag again in the trace of a node, by stamp and content."""

    def __init__(self, entries: Iterable[TraceEntry], *, node: str) -> None:
        self._node = node
        self._seen: dict[str, list[tuple[int, int]]] = {}
        for entry in entries:
            if entry.kind == TraceEntry.MESSAGE:
                identity = (stamp_to_ns(entry.stamp), entry.number)
                self._seen.setdefault(entry.name, []).append(identity)
        self._next = dict.fromkeys(self._seen, 0)
        self.dropped: dict[MessageKey, DroppedMessage] = {}

    def offer(self, stream: str, key: MessageKey, message: BagMessage) -> bool:
        """The next message of ``stream`` in the bag; whether it entered the node."""
        seen, position = self._seen.get(stream, []), self._next.get(stream, 0)
        identity = (message.stamp_ns or 0, content_crc(message.message))
        if position < len(seen) and seen[position] == identity:
            self._next[stream] = position + 1
            return True
        stamp_ns = message.stamp_ns or message.log_ns
        self.dropped[key] = DroppedMessage(topic=key[0], stamp_ns=stamp_ns, node=self._node)
        return False

    @property
    def foreign(self) -> int:
        """Messages in the trace that were not found in the bag."""
        return sum(len(seen) - self._next[name] for name, seen in self._seen.items())


def explain(
    differences: Iterable[Difference], dropped: Iterable[DroppedMessage]
) -> list[Difference]:
    """Name the cause of each difference, given that without the dropped messages there is none.

    It is the dropped message that was used offline, where there is one; otherwise what was dropped
    last before: what was dropped later cannot have changed it.
    """
    ordered = sorted(dropped, key=lambda item: item.stamp_ns)
    explained = []
    for item in differences:
        used = [drop for drop in ordered if drop.stamp_ns in item.lacked_ns]
        before = [drop for drop in ordered if drop.stamp_ns <= item.time_ns]
        first = ordered[:1] if item.kind == 'chunk' else []
        explained.append(replace(item, cause=str((used or before or first)[-1])))
    return explained

"""Repeats what the two live nodes did, from their traces and a bag, byte for byte.

For replays at a rate, in which nobody waits for anybody: what was taken when is in the traces,
and everything that follows from it must come out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import TraceEntry
from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes.guard_limits import Float64Array
from sparkrt_ros.nodes.observation_reader import ObservationReader, Reading
from sparkrt_ros.nodes.pose_merger import FOREVER_NS, PoseMerger
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.nodes.streamer_parts import read_chunk
from sparkrt_ros.nodes.streamer_values import MadeUpTimeOutlet
from sparkrt_ros.replay.bag import BagMessage
from sparkrt_ros.replay.feed import Feed
from sparkrt_ros.replay.live_compare import stream_stamps
from sparkrt_ros.replay.message_bytes import message_bytes
from sparkrt_ros.runtime.errors import MessageError, ObservationError

# stream -> those of its messages that entered the node, in order
Taken = Mapping[str, Iterator[BagMessage]]
_REQUESTS = ('activate', 'deactivate', 'pause', 'resume', 'reset')


def retrace_readings(
    entries: Iterable[TraceEntry],
    taken: Taken,
    chunks: Sequence[ActionChunkMessage],
    feed: Feed,
    reader: ObservationReader,
    *,
    task: str,
) -> Iterator[Reading | None]:
    """What each chunk was inferred from; None where this code gives no such snapshot.

    The messages go into ``feed`` in the order in which they entered the node; the snapshot must be
    one that its buffer gives after one of them.
    """
    waiting = iter(chunks)
    chunk = next(waiting, None)
    for entry in entries:
        if chunk is None:
            return
        if entry.kind != TraceEntry.MESSAGE:
            continue
        now_ns = stamp_to_ns(entry.clock)
        feed.deliver(next(taken[entry.name]), now_ns)
        try:
            reading = reader.read(now_ns, task=task)
        except ObservationError:
            continue
        if _is_of(chunk, reading):
            yield reading
            chunk = next(waiting, None)
    while chunk is not None:
        yield None
        chunk = next(waiting, None)


def _is_of(chunk: ActionChunkMessage, reading: Reading) -> bool:
    reference_ns = stamp_to_ns(chunk.observation_stamp)
    return (
        reading.snapshot.reference_ns == reference_ns
        and reading.sample_stamps_ns == stream_stamps(chunk)
    )


def retrace_commands(
    entries: Sequence[TraceEntry],
    taken: Taken,
    chunks: Iterable[ActionChunkMessage],
    contract: RobotContract,
    options: Options,
) -> dict[str, list[tuple[int, bytes]]]:
    """What the streamer published: by output, time of the tick and content of the message.

    options: those that are not in the trace.
    """
    poses = _poses(entries, taken, contract)
    known = {(chunk.session_id, chunk.chunk_id): read_chunk(chunk) for chunk in chunks}
    outlet = _Recorder(contract)
    core = StreamerCore.for_robot(
        contract,
        period_s=1.0 / contract.control_rate_hz,
        outlet=outlet,
        notify=lambda: None,
    )
    core.set_options(options)
    for entry in entries:
        now_ns = stamp_to_ns(entry.clock)
        if entry.kind == TraceEntry.OPTIONS:
            changed = replace(options, mode=entry.name, temporal_ensemble_coeff=entry.value)
            core.set_options(changed)
        elif entry.kind == TraceEntry.REQUEST and entry.name in _REQUESTS:
            getattr(core, entry.name)(now_ns)
        elif entry.kind == TraceEntry.TAKEN and (entry.count, entry.number) in known:
            core.offer(known[entry.count, entry.number], session_id=entry.count)
        elif entry.kind == TraceEntry.TICK:
            core.pose = poses.get(entry.number)
            core.tick(now_ns)
    return outlet.published


def _poses(
    entries: Iterable[TraceEntry], taken: Taken, contract: RobotContract
) -> dict[int, Pose]:
    """The measured poses by their numbers."""
    newest: list[Pose] = []
    merger = PoseMerger(contract, newest.append)
    if not merger.needed:
        nowhere = np.full(len(contract.action), np.nan)
        return {1: Pose(values=nowhere, fresh_until_ns=FOREVER_NS, number=1)}
    poses: dict[int, Pose] = {}
    for entry in entries:
        now_ns = stamp_to_ns(entry.clock)
        if entry.kind == TraceEntry.MESSAGE:
            with suppress(MessageError):
                merger.update(entry.name, next(taken[entry.name]).message, now_ns=now_ns)
        elif entry.kind == TraceEntry.POSE:
            merger.deliver(now_ns)
            poses[entry.number] = newest[-1]
    return poses


class _Recorder(MadeUpTimeOutlet):
    """An Outlet that keeps what it is given as messages."""

    def __init__(self, contract: RobotContract) -> None:
        classes = {name: message_class(name) for name in needed_message_types(contract)}
        self._set = CommandSet(contract, classes)
        self._carries_velocity = [
            bool(contract.velocity_mask[contract.output_columns(group)].any())
            for group in contract.outputs
        ]
        self.published: dict[str, list[tuple[int, bytes]]] = {
            group.name: [] for group in contract.outputs
        }

    def send(self, command: Float64Array, *, now_ns: int) -> None:
        """See MadeUpTimeOutlet."""
        self._keep(command, now_ns, [True] * len(self._carries_velocity))

    def stop_velocities(self, command: Float64Array, *, now_ns: int) -> None:
        """See Outlet."""
        self._keep(command, now_ns, self._carries_velocity)

    def _keep(self, command: Float64Array, now_ns: int, wanted: Sequence[bool]) -> None:
        messages = self._set.fill(command, stamp_ns=now_ns)
        for group, message, sent in zip(self._set.groups, messages, wanted, strict=True):
            if sent:
                self.published[group.name].append((now_ns, message_bytes(message)))

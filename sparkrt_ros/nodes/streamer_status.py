"""What the streamer tells about itself: why nothing is streamed, in words, and its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkrt.msg import StreamerProgress, StreamerStatus
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes.streamer_core import Snapshot
from sparkrt_ros.nodes.streamer_parts import StreamerParts

# The policy node reports at least once a second.
POLICY_SILENT_S = 1.5


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is known of the other processes. Ages in seconds, None: never heard of.

    publishers: of the chunk topic, as discovery sees them; it notices a process that ended at
        once and one that was killed only after its lease, some 20 s.
    """

    chunk_topic: str
    publishers: int
    chunk_age_s: float | None = None
    policy_age_s: float | None = None
    policy_state: str = ''
    policy_reason: str = ''
    pose_problem: str = ''
    guard_reason: str = ''
    defect: str = ''


def reason(snapshot: Snapshot, around: Surroundings) -> str:
    """Why nothing is streamed, for a person; '' while streaming."""
    if snapshot.state == 'streaming':
        return ''
    if snapshot.state == 'inactive':
        return 'the node is not active'
    cause = snapshot.cause
    if cause == 'paused':
        return 'paused; ~/resume goes on'
    if cause == 'defect':
        return f'the control loop failed: {around.defect}; deactivate and activate to go on'
    if cause == 'pose':
        return around.pose_problem or 'the measured joint positions are too old'
    if cause == 'guard':
        return f'the guard refused to start: {around.guard_reason}'
    beginning = {
        'no_chunk': 'no action chunk yet',
        'ran_out': 'the actions ran out',
        'reset': 'reset; no chunk observed after it yet',
        'time_jump': 'time went backwards; no chunk since',
    }[cause]
    return '; '.join(part for part in (beginning, _last_chunk(around), _policy(around)) if part)


def _last_chunk(around: Surroundings) -> str:
    return '' if around.chunk_age_s is None else f'last chunk {around.chunk_age_s:.1f} s ago'


def _policy(around: Surroundings) -> str:
    if around.publishers == 0:
        word = 'the policy process is gone' if around.chunk_age_s is not None else 'no policy runs'
        return f'{word}: nobody publishes on {around.chunk_topic}'
    if around.policy_age_s is None:
        return f'{around.publishers} publisher(s) on {around.chunk_topic}'
    if around.policy_age_s > POLICY_SILENT_S:
        return f'the policy process has been silent for {around.policy_age_s:.1f} s'
    because = f': {around.policy_reason}' if around.policy_reason else ''
    return f'the policy is {around.policy_state}{because}'


def progress_message(snapshot: Snapshot, stamp: Any) -> StreamerProgress:
    message = StreamerProgress(
        session_id=snapshot.session_id,
        epoch=snapshot.epoch,
        chunk_id=snapshot.chunk_id,
        played=snapshot.played_ns / 1e9,
        remaining=snapshot.remaining_s,
        state=snapshot.state,
        row=snapshot.row,
    )
    message.header.stamp = stamp
    fill_stamp(message.tick, snapshot.now_ns)
    return message


def status_message(
    parts: StreamerParts,
    *,
    snapshot: Snapshot,
    why: str,
    now_ns: int,
    stamp: Any,
) -> StreamerStatus:
    core, loop, outlet = parts.core, parts.loop, parts.outlet
    periods = loop.periods()
    observed_ns = snapshot.observation_ns
    message = StreamerStatus(
        state=snapshot.state,
        reason=why,
        mode=snapshot.mode,
        epoch=snapshot.epoch,
        chunk_id=snapshot.chunk_id,
        queue_depth=snapshot.queue_depth,
        chunk_age=0.0 if observed_ns is None else max(0, now_ns - observed_ns) / 1e9,
        latency=core.latency_s,
        period_p50=periods.p50_s,
        period_p99=periods.p99_s,
        period_max=periods.max_s,
        commands=outlet.published,
        chunks_taken=core.chunks_taken,
        chunks_dropped=core.chunks_dropped,
        underruns=core.underruns,
        overruns=loop.overruns,
        limited=core.limited,
        refused=core.refused,
        undelivered=outlet.undelivered,
        guard_kinds=list(core.interventions),
        guard_counts=list(core.interventions.values()),
        seam_last=core.seams.last,
        seam_max=core.seams.largest,
        seam_ratio=core.seams.largest_ratio,
        late_chunks=core.late,
    )
    message.header.stamp = stamp
    return message


def unconfigured_status(stamp: Any) -> StreamerStatus:
    message = StreamerStatus(state='unconfigured', reason='the node is not configured')
    message.header.stamp = stamp
    return message

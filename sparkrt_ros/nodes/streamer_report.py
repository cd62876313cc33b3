"""What the streamer logs and reports to ``/diagnostics``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rclpy.node import Node

from sparkrt.msg import PolicyStatus
from sparkrt_ros.nodes.diagnostics import Health, Level
from sparkrt_ros.nodes.guard_news import GuardNews
from sparkrt_ros.nodes.qos import QosEvents
from sparkrt_ros.nodes.streamer_core import Snapshot
from sparkrt_ros.nodes.streamer_inputs import StreamerInputs
from sparkrt_ros.nodes.streamer_parts import StreamerParts
from sparkrt_ros.nodes.streamer_status import Surroundings, reason
from sparkrt_ros.nodes.throttle import ThrottledLog

LATE_PERIODS = 1.5
DISCOVERY_S = 1.0
_LEVELS = {'holding': Level.WARN, 'stopped': Level.WARN, 'waiting': Level.WARN}

Row = Callable[[StreamerParts | None], Health]


class StreamerReport:
    """Remembers what was told, and what is known of the policy process. ROS thread only.

    chunks: the subscription to action chunks.
    """

    def __init__(self, node: Node, chunks: Any, events: QosEvents) -> None:
        self._node = node
        self._chunks = chunks
        self._events = events
        self._log = ThrottledLog(node.get_logger(), period_s=5.0)
        self._guard_news = GuardNews()
        self._inputs = StreamerInputs(node, chunks)
        self._chunk_at_s: float | None = None
        self._policy: PolicyStatus | None = None
        self._policy_at_s = 0.0
        self._state = ''
        self.begin()

    @property
    def rows(self) -> tuple[Row, ...]:
        return (self._stream, self._loop, self._commands, self._inputs.row)

    def begin(self) -> None:
        """The node becomes active: what was said of an earlier activation may be said again."""
        self._jumps = 0
        self._guard_news.begin()
        self._unmatched_s: dict[str, float] = {}
        self._told: set[str] = set()
        self._inputs.begin()

    def chunk_arrived(self) -> None:
        self._chunk_at_s = time.monotonic()
        self._inputs.chunk_arrived()

    def chunk_taken(self, parts: StreamerParts) -> None:
        """A tick may have taken a chunk."""
        self._inputs.chunk_taken(parts)

    def policy_reported(self, status: PolicyStatus) -> None:
        self._policy = status
        self._policy_at_s = time.monotonic()

    def is_news(self, snapshot: Snapshot) -> bool:
        """Whether this state has not been logged yet."""
        return snapshot.state != self._state

    def log_news(self, parts: StreamerParts, snapshot: Snapshot, why: str) -> None:
        """Log what happened since the last call: at most a line for each kind of thing."""
        logger, core = self._node.get_logger(), parts.core
        while core.refusals:
            refusal = core.refusals.popleft()
            self._log.warning(refusal.kind, f'chunk refused: {refusal.reason}')
        if core.time_jumps > self._jumps:
            logger.warning('time went backwards: chunks, history and measured pose are cleared')
        self._jumps = core.time_jumps
        if self.is_news(snapshot):
            self._state = snapshot.state
            text = f'{snapshot.state}: {why or snapshot.mode}'
            # Two calls: rclpy refuses one line of code that changes its severity.
            if snapshot.state in ('holding', 'stopped'):
                logger.warning(text)
            else:
                logger.info(text)
        if line := self._guard_news.line(core.interventions):
            logger.info(line)
        self._log_undelivered(parts)

    def _log_undelivered(self, parts: StreamerParts) -> None:
        """Once for each topic, when discovery has had its time."""
        now_s = time.monotonic()
        unmatched = parts.outlet.unmatched() if parts.outlet.undelivered else ()
        since_s = {topic: self._unmatched_s.get(topic, now_s) for topic in unmatched}
        self._unmatched_s = since_s
        late = [t for t, s in since_s.items() if now_s - s >= DISCOVERY_S and t not in self._told]
        if late:
            self._told.update(late)
            why = '; '.join(self._inputs.undelivered(parts, late))
            self._node.get_logger().warning(f'commands are not delivered: {why}')

    def why(self, parts: StreamerParts, snapshot: Snapshot) -> str:
        """Why nothing is streamed; '' while it is."""
        now_s, policy = time.monotonic(), self._policy
        around = Surroundings(
            chunk_topic=self._chunks.topic_name,
            publishers=self._chunks.get_publisher_count(),
            chunk_age_s=None if self._chunk_at_s is None else now_s - self._chunk_at_s,
            policy_age_s=None if policy is None else now_s - self._policy_at_s,
            policy_state='' if policy is None else policy.state,
            policy_reason='' if policy is None else policy.reason,
            pose_problem=(
                parts.pose.merger.problem(parts.now_ns()) if snapshot.cause == 'pose' else ''
            ),
            guard_reason=parts.core.guard_reason,
            defect=parts.core.defect,
        )
        return reason(snapshot, around)

    def _stream(self, parts: StreamerParts | None) -> Health:
        """State of the stream and what happened to chunks and commands."""
        if parts is None:
            return Health(name='stream', message='not configured')
        core = parts.core
        snapshot = core.snapshot
        values: dict[str, object] = {
            'state': snapshot.state,
            'mode': snapshot.mode,
            'chunk delay [s]': core.delay_s,
            'chunk skip [s]': core.skip_s,
            'chunks taken': core.chunks_taken,
            'chunks malformed': core.malformed,
            'chunks replaced before use': core.overflowed,
            'underruns': core.underruns,
            'time jumps': core.time_jumps,
            'commands limited': core.limited,
            'commands refused': core.refused,
            'largest step at the last seam [rad or m]': core.seams.last,
            'largest step at a seam [rad or m]': core.seams.largest,
            'largest step at a seam against inside chunks': core.seams.largest_ratio,
            'chunks later than their policy was told': core.late,
            'joint messages dropped': parts.pose.merger.bad_messages,
        }
        values |= {f'chunks refused, {kind}': count for kind, count in core.rejected.items()}
        values |= {f'guard, {kind}': count for kind, count in core.interventions.items()}
        level = Level.ERROR if core.defect else _LEVELS.get(snapshot.state, Level.OK)
        why = self.why(parts, snapshot)
        return Health(name='stream', level=level, message=why or snapshot.state, values=values)

    def _loop(self, parts: StreamerParts | None) -> Health:
        """Timing of the control thread."""
        if parts is None:
            return Health(name='control loop', message='not configured')
        loop = parts.loop
        periods = loop.periods()
        late = periods.count > 0 and periods.p99_s > LATE_PERIODS * loop.period_s
        message = f'p99 of the period is {periods.p99_s * 1e3:.1f} ms' if late else 'on time'
        return Health(
            name='control loop',
            level=Level.WARN if late else Level.OK,
            message=message if loop.running else 'not running',
            values={
                'rate [Hz]': loop.rate_hz,
                'period p50 [ms]': periods.p50_s * 1e3,
                'period p99 [ms]': periods.p99_s * 1e3,
                'period p99.9 [ms]': periods.p999_s * 1e3,
                'period max [ms]': periods.max_s * 1e3,
                'periods missed': loop.overruns,
                'real-time priority': loop.realtime,
                'resident memory [MB]': resident_memory_mb(),
            },
        )

    def _commands(self, parts: StreamerParts | None) -> Health:
        """Whether somebody receives the commands."""
        if parts is None:
            return Health(name='commands', message='not configured')
        outlet = parts.outlet
        problems = [] if outlet.enabled else ['dry run: commands go to ~/preview']
        unmatched = outlet.unmatched() if outlet.enabled else ()
        problems += self._inputs.undelivered(parts, unmatched)
        mismatches = self._events.incompatible
        problems += [f'incompatible {policy} on {topic}' for topic, policy in mismatches.items()]
        level = Level.ERROR if mismatches else Level.WARN if problems else Level.OK
        return Health(
            name='commands',
            level=level,
            message='; '.join(problems) or 'delivered',
            values={
                'enabled': outlet.enabled,
                'commands': outlet.published,
                'undelivered': outlet.undelivered,
            },
        )


def resident_memory_mb() -> float:
    """Memory of this process in RAM, without what the middleware shares with other processes."""
    lines = Path('/proc/self/status').read_text().splitlines()
    sizes_kb = [int(line.split()[1]) for line in lines if line.startswith(('RssAnon', 'RssFile'))]
    return sum(sizes_kb) / 1e3

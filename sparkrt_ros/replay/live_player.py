"""Plays a bag, with ``/clock``, into the running nodes.

Step by step, time is one of events, as in an offline replay: the clock moves to the next message,
the next control tick or the next moment at which the policy node wants to go on, and stands there
until both nodes have told, in their traces, that they are done with everything up to it. So
nothing is ever dropped, and the machine's load decides only how long the replay takes.

At a rate, the clock runs with the machine's, nobody is waited for, and messages may be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from sparkrt.msg import TraceEntry
from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes.streamer_outlet import message_class
from sparkrt_ros.replay.bag import BagMessage
from sparkrt_ros.replay.clock import wait_ns
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.runtime.errors import SparkRTError

PLAYED = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
# /clock is best effort; the same time again changes nothing.
REPEAT_CLOCK_S = 0.2
STALL_S = 60.0
# Nothing has come for so long: nothing is on its way.
QUIET_S = 1.0


class LiveStalled(SparkRTError):
    """The nodes did not come to what a replay waits for."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One topic of the bag, and the contract's streams that each node fills from it."""

    topic: str
    type: str
    to_policy: tuple[str, ...]
    to_streamer: tuple[str, ...]

    @property
    def readers(self) -> int:
        return len(self.to_policy) + len(self.to_streamer)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A message and when it arrives; None: time alone."""

    time_ns: int
    message: BagMessage | None


class LivePlayer:
    """One replay. period_ns: of the control loop. check: raises if a process has ended.

    sent: messages so far.
    """

    def __init__(
        self,
        ear: LiveEar,
        inputs: Iterable[Input],
        *,
        period_ns: int,
        check: Callable[[], None],
    ) -> None:
        self._ear = ear
        self._period_ns = period_ns
        self._check = check
        self._inputs = {item.topic: item for item in inputs}
        self._clock = ear.publisher(Clock, '/clock', PLAYED)
        self._publishers = {
            item.topic: ear.publisher(message_class(item.type), item.topic, PLAYED)
            for item in self._inputs.values()
        }
        self._now_ns = 0
        self._tick_ns = 0
        self._next_tick_ns: int | None = None
        self._to_policy = self._to_streamer = 0
        self.sent = 0

    def wait_ready(self, *, limit_s: float) -> None:
        """Wait until everybody has discovered everybody, and the streamer follows the policy."""
        self._wait(self._unready, limit_s=limit_s)

    def play(self, messages: Iterable[Timed], *, max_chunks: int | None = None) -> None:
        """Step by step. Raises LiveStalled, or what ``check`` raises."""
        for item in messages:
            if self._next_tick_ns is None or item.time_ns < self._now_ns:
                self._next_tick_ns = item.time_ns  # time begins, or jumped back
            if self._reach(item.time_ns, max_chunks):
                return
            self._send(item.message)
            self._wait(self._unsettled)
            if self._reach(item.time_ns, max_chunks):
                return

    def play_at(self, messages: Iterable[Timed], *, rate: float) -> None:
        """``rate`` times as fast as it was recorded; waits for the nodes at the end alone."""
        start_s = time.monotonic()
        start_ns: int | None = None
        for item in messages:
            if start_ns is None:
                start_ns = self._next_tick_ns = item.time_ns
            for now_ns in (*self._ticks_before(item.time_ns), item.time_ns):
                due_s = start_s + (now_ns - start_ns) / 1e9 / rate
                time.sleep(max(0.0, due_s - time.monotonic()))
                self._tell_time(now_ns)
            self._send(item.message)
        self._wait(self._behind)
        self._wait_quiet()

    def _reach(self, time_ns: int, max_chunks: int | None) -> bool:
        """Move the clock up to ``time_ns``, stopping where something is due; True at the end."""
        while not self._enough(max_chunks):
            now_ns = min(time_ns, *self._due())
            if now_ns == self._now_ns:
                return False
            self._step(now_ns)
        return True

    def _enough(self, max_chunks: int | None) -> bool:
        with self._ear.changed:
            return max_chunks is not None and len(self._ear.chunks) >= max_chunks

    def _due(self) -> tuple[int, ...]:
        """Times at which a node has something to do."""
        assert self._next_tick_ns is not None
        with self._ear.changed:
            newest, clock_ns = self._ear.policy.newest, self._ear.policy.clock_ns
            wait = None if newest is None else wait_ns(newest.wait)
        policy = () if wait is None or clock_ns == 0 else (max(clock_ns + wait, self._now_ns),)
        return (self._next_tick_ns, *policy)

    def _step(self, now_ns: int) -> None:
        self._tell_time(now_ns)
        if now_ns == self._next_tick_ns:
            self._tick_ns = now_ns
            self._next_tick_ns = now_ns + self._period_ns
        self._wait(self._unsettled)

    def _ticks_before(self, time_ns: int) -> list[int]:
        assert self._next_tick_ns is not None
        ticks = list(range(self._next_tick_ns, time_ns, self._period_ns))
        self._next_tick_ns += len(ticks) * self._period_ns
        return ticks

    def _tell_time(self, now_ns: int) -> None:
        self._now_ns = now_ns
        message = Clock()
        fill_stamp(message.clock, now_ns)
        self._clock.publish(message)

    def _send(self, message: BagMessage | None) -> None:
        if message is None:
            return
        item = self._inputs[message.topic]
        self.sent += 1
        self._to_policy += len(item.to_policy)
        self._to_streamer += len(item.to_streamer)
        self._publishers[message.topic].publish(message.raw)

    def _wait(self, missing: Callable[[], str], *, limit_s: float = STALL_S) -> None:
        """Until ``missing`` names nothing. Raises LiveStalled with what it names at the limit."""
        begin_s = told_s = time.monotonic()
        with self._ear.changed:
            while text := missing():
                self._ear.changed.wait(REPEAT_CLOCK_S)
                now_s = time.monotonic()
                if now_s - told_s < REPEAT_CLOCK_S:
                    continue
                told_s = now_s
                self._check()
                if self._now_ns:
                    self._tell_time(self._now_ns)
                if now_s - begin_s > limit_s:
                    raise LiveStalled(
                        'live replay',
                        found=f'after {limit_s:g} s still {text}',
                        expected='nodes that take what they are sent',
                        remedy='read their logs',
                    )

    def _unready(self) -> str:
        ear = self._ear
        missing = [
            f'{item.topic} ({count} of {item.readers} readers)'
            for item in self._inputs.values()
            if (count := self._publishers[item.topic].get_subscription_count()) < item.readers
        ]
        missing += ear.unmatched()
        for name, side in (('policy node', ear.policy), ('streamer', ear.streamer)):
            newest = side.newest
            missing += [f'{name}: no trace'] if newest is None else list(newest.unmatched)
        if self._clock.get_subscription_count() < 2:
            missing.append('/clock')
        return ', '.join(missing) or self._not_following()

    def _not_following(self) -> str:
        status, options = self._ear.status, self._ear.streamer.last.get(TraceEntry.OPTIONS)
        if status is None or status.state not in ('active', 'waiting'):
            return 'the policy node is not active'
        if self._ear.streamer.last.get(TraceEntry.TICK) is None:
            return 'the streamer is not active'
        if options is None or options.name != status.mode:
            return f'the streamer does not play in mode {status.mode}'
        if status.mode == 'ensemble' and options.value != status.temporal_ensemble_coeff:
            return 'the streamer plays with another ensembling coefficient'
        return ''

    def _unsettled(self) -> str:
        """What has not been digested of the messages, the clock and the ticks so far."""
        ear = self._ear
        tick = ear.streamer.last.get(TraceEntry.TICK)
        if tick is None or stamp_to_ns(tick.clock) != self._tick_ns:
            return f'no control tick at {self._tick_ns}'
        if ear.streamer.messages < self._to_streamer:
            return f'{ear.streamer.messages} of {self._to_streamer} messages at the streamer'
        policy = ear.policy
        assert policy.newest is not None
        if policy.clock_ns != self._now_ns or stamp_to_ns(policy.newest.tick) != self._tick_ns:
            return f'the policy node has not thought up to {self._now_ns}'
        if policy.messages < self._to_policy:
            return f'{policy.messages} of {self._to_policy} messages at the policy node'
        return self._undelivered(policy.newest.chunk_id, tick)

    def _undelivered(self, chunk_id: int, tick: TraceEntry) -> str:
        """Which chunk or command has not arrived."""
        ear = self._ear
        heard_id = ear.chunks[-1].chunk_id if ear.chunks else 0
        taken = ear.streamer.last.get(TraceEntry.CHUNK)
        if heard_id < chunk_id or (chunk_id and (taken is None or taken.number < chunk_id)):
            return f'chunk {chunk_id} has not arrived'
        late = [name for name, heard in ear.commands.items() if len(heard) < tick.count]
        return f'commands {", ".join(late)} have not arrived' if late else ''

    def _behind(self) -> str:
        """At the end of a replay at a rate: what was lost on the way is not waited for."""
        policy = self._ear.policy
        if policy.clock_ns != self._now_ns:
            return f'the policy node has not thought up to {self._now_ns}'
        assert policy.newest is not None
        tick = self._ear.streamer.last.get(TraceEntry.TICK)
        if tick is None or stamp_to_ns(tick.clock) < self._now_ns - self._period_ns:
            return 'the streamer has not ticked up to the end'
        told = tick.count + round(tick.value)
        ahead = [name for name, heard in self._ear.commands.items() if len(heard) > told]
        return f'commands {", ".join(ahead)} came before what led to them' if ahead else ''

    def _wait_quiet(self) -> None:
        """At the end of a replay at a rate: let what is on its way arrive, on whichever topic.

        Time stands still, so that nothing new follows; a command comes before the trace of its
        tick, and whether another tick was due is known to the streamer alone.
        """
        ear = self._ear
        with ear.changed:
            while True:
                told = ear.told
                deadline_s = time.monotonic() + QUIET_S
                while ear.told == told and (left_s := deadline_s - time.monotonic()) > 0.0:
                    ear.changed.wait(left_s)
                if ear.told == told:
                    return

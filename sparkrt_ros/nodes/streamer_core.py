"""What the streamer sends at each tick, and which state it is in. No ROS, no clock.

States, as in StreamerProgress: ``inactive``; ``waiting`` for a first chunk, sending nothing;
``streaming``; ``holding`` the last command when actions or the measured pose fail to come;
``stopped`` when that lasted ``hold_s``, sending nothing; ``paused``. New chunks lead back to
``streaming``, from a silent state by way of the measured pose.

The control thread calls :meth:`StreamerCore.prepare` some time before each command is due, on a
busy machine even before the one ahead of it is; the outlet sends each when it is due. Another
thread offers chunks and poses, which never waits for that, and makes requests (pause, resume,
reset, options), which do: when a request returns it holds, and none that stops the robot leaves a
command on its way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import ActionLimits, RobotContract
from sparkrt_ros.nodes.guard import Guard, Verdict
from sparkrt_ros.nodes.streamer_under_way import Tick, UnderWay
from sparkrt_ros.nodes.streamer_values import Options, Outlet, Pose, Sent, Snapshot
from sparkrt_ros.nodes.streamer_witness import Witness
from sparkrt_ros.runtime.chunking.admission import Refusal
from sparkrt_ros.runtime.chunking.seam import SeamFigures
from sparkrt_ros.runtime.chunking.timeline import Timeline
from sparkrt_ros.runtime.types import ActionChunk

__all__ = ['INBOX_CHUNKS', 'Options', 'Outlet', 'Pose', 'Snapshot', 'StreamerCore']

INBOX_CHUNKS = 8
KEPT_REFUSALS = 16


class StreamerCore:
    """One robot's stream of commands.

    notify: called when a chunk was taken or the state changed; must not block.
    settled: told of each prepared tick in turn when its command was sent; None: it had none, or
        it was taken back.
    """

    def __init__(
        self,
        *,
        timeline: Timeline,
        guard: Guard,
        velocity_columns: npt.NDArray[np.bool_],
        period_s: float,
        outlet: Outlet,
        notify: Callable[[], None],
        settled: Callable[[Sent | None], None] = lambda _: None,
    ) -> None:
        self._timeline = timeline
        self._guard = guard
        self._velocity = velocity_columns
        self._outlet = outlet
        self._notify = notify
        self._tell_settled = settled
        self._lock = threading.Lock()
        self._inbox: deque[tuple[ActionChunk, int, int]] = deque(maxlen=INBOX_CHUNKS)
        self._target = np.zeros(velocity_columns.size)
        self._command = np.zeros(velocity_columns.size)
        self._hold_ns = 0
        self._hold_since_ns = 0
        self._empty_cause = 'no_chunk'
        self._fresh_chunk = False
        self._news = False
        self._state = 'inactive'
        self._cause = ''
        self.period_s = period_s
        self.pose: Pose | None = None
        self.snapshot = Snapshot()
        self.refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)
        self.guard_reason = ''
        self.defect = ''
        self._witness: Witness | None = None
        self._ready = False
        self._under_way = UnderWay(outlet, settled=self._settled)
        self._reset_counters()

    @classmethod
    def for_robot(
        cls,
        contract: RobotContract,
        *,
        period_s: float,
        outlet: Outlet,
        notify: Callable[[], None],
        settled: Callable[[Sent | None], None] = lambda _: None,
    ) -> StreamerCore:
        """The core for the joints and limits of ``contract``; it still needs its options."""
        return cls(
            timeline=Timeline(joint_names=contract.action),
            guard=Guard(
                names=contract.action,
                limits=contract.action_limits,
                velocity_columns=contract.velocity_mask,
            ),
            velocity_columns=contract.velocity_mask,
            period_s=period_s,
            outlet=outlet,
            notify=notify,
            settled=settled,
        )

    @property
    def chunks_dropped(self) -> int:
        """Refused and malformed chunks, and those replaced before they could be taken."""
        return sum(self._timeline.rejected.values()) + self.overflowed + self.malformed

    @property
    def chunks_taken(self) -> int:
        return self._timeline.taken

    @property
    def rejected(self) -> dict[str, int]:
        """Refused chunks by kind."""
        return dict(self._timeline.rejected)

    @property
    def time_jumps(self) -> int:
        return self._timeline.time_jumps

    @property
    def limited(self) -> int:
        return self._guard.limited

    @property
    def refused(self) -> int:
        return self._guard.refused

    @property
    def interventions(self) -> dict[str, int]:
        """Commands the guard changed or did not let pass, by kind; see Guard."""
        return self._guard.interventions

    @property
    def seams(self) -> SeamFigures:
        return self._timeline.seams

    @property
    def late(self) -> int:
        """Chunks that came later than their policy was told; see Timeline."""
        return self._timeline.late

    def offer(self, chunk: ActionChunk, *, session_id: int, published_ns: int = 0) -> None:
        """Hand over a chunk; it is taken at the next tick at which the robot can be moved.

        published_ns: a tick of that very instant does not take it. Simulated time stands still
        while things happen, and which of the two comes first must not depend on the machine.
        """
        if self._state in ('inactive', 'paused'):
            return
        if len(self._inbox) == INBOX_CHUNKS:
            self.overflowed += 1
        self._inbox.append((chunk, session_id, published_ns))

    def watch(self, witness: Witness | None) -> None:
        """Tell ``witness`` from now on what is done."""
        with self._lock:
            self._witness = witness

    def set_options(self, options: Options, *, limits: ActionLimits | None = None) -> None:
        """Take all options between two ticks, and other limits for the same joints, if given.

        The motion goes on. Raises ConfigError, with nothing changed, if an option is impossible.
        """
        with self._lock:
            self._guard.set_options(
                velocity_scale=options.velocity_scale,
                start_max_error=options.start_max_error,
                blend_in_s=options.blend_in_s,
            )
            if limits is not None:
                self._guard.set_limits(limits)
            self._timeline.blend_s = options.blend_s
            self._timeline.interpolation = options.interpolation
            self._timeline.mode = options.mode
            self._timeline.temporal_ensemble_coeff = options.temporal_ensemble_coeff
            self._hold_ns = round(options.hold_s * 1e9)
            if self._witness is not None:
                self._witness.options(options)

    def activate(self, now_ns: int) -> None:
        """Begin anew, counters included."""
        with self._lock:
            self._withdraw()
            self._reset_counters()
            self.defect = ''
            self._timeline.restart()
            self._asked('activate', now_ns)
            self._begin(now_ns)

    def deactivate(self, now_ns: int) -> None:
        """Nothing is sent once this returns, and nothing is held."""
        self._fall_silent(now_ns, 'inactive', '', request='deactivate')

    def pause(self, now_ns: int) -> None:
        """Nothing is sent once this returns, until :meth:`resume`."""
        if self._state != 'inactive' and not self.defect:
            self._fall_silent(now_ns, 'paused', 'paused', request='pause')

    def resume(self, now_ns: int) -> None:
        """Go on with chunks observed from now on, from the measured pose; only after a pause."""
        with self._lock:
            if self._state == 'paused':
                self._asked('resume', now_ns)
                self._timeline.clear(barrier_ns=now_ns)
                self._begin(now_ns)

    def reset(self, now_ns: int) -> None:
        """Drop what is held and on its way; a moving robot holds until a newer chunk comes."""
        with self._lock:
            self._asked('reset', now_ns)
            self._timeline.clear(barrier_ns=now_ns)
            self._inbox.clear()
            self._empty_cause = 'reset'

    def rearm(self, now_ns: int, change: Callable[[], None]) -> None:
        """Make ``change`` between two ticks; the motion after it starts from the measured pose."""
        with self._lock:
            self._stop_motion(now_ns)
            change()

    def fail(self, now_ns: int, defect: str) -> None:
        """A tick raised: nothing more is sent until the next activation."""
        self.defect = defect
        self._fall_silent(now_ns, 'stopped', 'defect')

    def tick(self, now_ns: int) -> None:
        """Send the command due at ``now_ns``, or nothing: both steps at once."""
        with self._lock:
            tick = self._prepare(now_ns)
            if tick.sends:
                self._outlet.publish()
                self.sent += 1
            self._testify(tick)
            self._tell()

    def prepare(self, now_ns: int, *, due_ns: int) -> None:
        """Work out the command due at ``now_ns``, which may be some milliseconds ahead.

        due_ns: the same moment by the monotonic clock. It is sent then; never if a request comes
        in between that stops the robot. What is due already of what was prepared before is sent
        first.
        """
        with self._lock:
            self._under_way.settle()
            self._under_way.add(self._prepare(now_ns), due_ns=due_ns)
            self._tell()

    def settle(self) -> None:
        """Of what was prepared, all that is due has been sent when this returns."""
        with self._lock:
            self._under_way.settle()

    def _prepare(self, now_ns: int) -> Tick:
        self._ready = False
        pose = None
        if self._state not in ('inactive', 'paused') and not self.defect:
            pose = self._play(now_ns)
            self._note(now_ns)
        number = 0 if pose is None else pose.number
        return Tick(now_ns, number, self._ready, self._witness)

    def _settled(self, tick: Tick, sent: Sent | None) -> None:
        self.sent += sent is not None
        self._tell_settled(sent)
        self._testify(tick)

    def _testify(self, tick: Tick) -> None:
        if tick.witness is not None:
            tick.witness.ticked(
                tick.now_ns,
                state=self._state,
                pose=tick.pose_number,
                sent=self.sent,
                stops=self.stops,
            )

    def _play(self, now_ns: int) -> Pose | None:
        """One tick's work; the pose it saw."""
        self._notice_time(now_ns)
        pose = self.pose
        if pose is None or now_ns >= pose.fresh_until_ns:
            self._timeline.stand_still(now_ns)
            self._starve(now_ns, 'pose')
            return pose
        self._take_inbox(now_ns)
        if self._timeline.sample(now_ns, out=self._target):
            self._stream(now_ns, pose)
        else:
            self._starve(now_ns, self._empty_cause)
        return pose

    def _asked(self, request: str, now_ns: int) -> None:
        if self._witness is not None:
            self._witness.request(request, now_ns=now_ns)

    def _begin(self, now_ns: int) -> None:
        self._inbox.clear()
        self._guard.stop()
        self._empty_cause = 'no_chunk'
        self._enter('waiting', 'no_chunk')
        self._note(now_ns)
        self._tell()

    def _fall_silent(self, now_ns: int, state: str, cause: str, *, request: str = '') -> None:
        with self._lock:
            self._asked(request or cause, now_ns)
            self._inbox.clear()
            self._timeline.clear()
            self._stop_motion(now_ns)
            self._enter(state, cause)
            self._note(now_ns)
            self._tell()

    def _notice_time(self, now_ns: int) -> None:
        jumps = self._timeline.time_jumps
        self._timeline.advance(now_ns)
        if self._timeline.time_jumps != jumps:
            self.pose = None
            self._inbox.clear()
            self._hold_since_ns = now_ns
            self._empty_cause = 'time_jump'

    def _take_inbox(self, now_ns: int) -> None:
        while self._inbox and self._inbox[0][2] != now_ns:
            chunk, session_id, _ = self._inbox.popleft()
            if self._witness is not None:
                self._witness.taken(chunk, session_id=session_id, now_ns=now_ns)
            taken = self._timeline.take(chunk, now_ns=now_ns, session_id=session_id)
            if isinstance(taken, Refusal):
                self.refusals.append(taken)
                continue
            self.delay_s, self.skip_s = taken.delay_s, taken.skip_s
            self._fresh_chunk = self._news = True

    def _stream(self, now_ns: int, pose: Pose) -> None:
        if not self._guard.started:
            self._guard.start(pose.values)
        verdict = self._guard.apply(self._target, period_s=self.period_s, out=self._command)
        if verdict is Verdict.REFUSED:
            self.guard_reason = self._guard.reason
            self._stop_motion(now_ns)
            self._timeline.clear()
            self._empty_cause = 'guard'
            self._enter('waiting' if self._state == 'waiting' else 'stopped', 'guard')
            return
        self._send(now_ns)
        self._empty_cause = 'ran_out'
        self._enter('streaming', '')
        if self._fresh_chunk:
            self._fresh_chunk = False
            self.latency_s = (now_ns - (self._timeline.newest_observation_ns or now_ns)) / 1e9

    def _send(self, now_ns: int) -> None:
        self._outlet.prepare(self._command, now_ns=now_ns)
        self._ready = True

    def _withdraw(self) -> None:
        """Send nothing of what was prepared, unless that has happened."""
        self.sent += self._under_way.withdraw()

    def _starve(self, now_ns: int, cause: str) -> None:
        if self._state == 'streaming':
            self._hold_since_ns = now_ns
            self.underruns += cause == 'ran_out'
            self._enter('holding', cause)
        held_ns = now_ns - self._hold_since_ns
        if self._state == 'holding' and self._guard.started and held_ns < self._hold_ns:
            self._guard.hold(period_s=self.period_s, out=self._command)
            self._send(now_ns)
        elif self._state == 'holding':
            self._timeline.clear()
            self._stop_motion(now_ns)
            self._enter('stopped', cause)
        self._cause = cause

    def _stop_motion(self, now_ns: int) -> None:
        """Leave no velocity behind, and let the next motion start from the measured pose."""
        self._withdraw()
        moving = self._state in ('streaming', 'holding') and self._guard.started
        self._guard.stop()
        if moving and self._command[self._velocity].any():
            self._command[self._velocity] = 0.0
            self._outlet.stop_velocities(self._command, now_ns=now_ns)
            self.stops += 1

    def _enter(self, state: str, cause: str) -> None:
        self._news = self._news or state != self._state
        self._state = state
        self._cause = cause

    def _note(self, now_ns: int) -> None:
        timeline = self._timeline
        streaming = self._state == 'streaming'
        self.snapshot = Snapshot(
            now_ns=now_ns,
            state=self._state,
            cause=self._cause,
            mode=timeline.mode,
            session_id=timeline.session_id,
            epoch=timeline.epoch,
            chunk_id=timeline.chunk_id,
            observation_ns=timeline.newest_observation_ns,
            played_ns=timeline.played_ns,
            remaining_s=timeline.remaining_s(now_ns) if streaming else 0.0,
            queue_depth=timeline.queue_depth(now_ns) if streaming else 0.0,
            row=timeline.row(now_ns),
        )

    def _tell(self) -> None:
        if self._news:
            self._news = False
            self._notify()

    def _reset_counters(self) -> None:
        self.sent = self.stops = 0
        self.underruns = self.overflowed = self.malformed = 0
        self.latency_s = self.delay_s = self.skip_s = 0.0
        self._guard.reset_counters()

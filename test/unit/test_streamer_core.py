"""The streamer's states: what is sent when, and how it comes to rest and goes on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.nodes.guard import Guard
from sparkrt_ros.nodes.streamer_core import INBOX_CHUNKS, Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_values import Sent
from sparkrt_ros.runtime.chunking.timeline import Timeline
from sparkrt_ros.runtime.types import ActionChunk

MS = 1_000_000
PERIOD_NS = 10 * MS
NAMES = ('pan', 'base')
FOREVER_NS = 2**62


class Rig:
    """A core with a recording outlet and a clock that the test moves."""

    def __init__(self, *, hold_s: float = 0.1, max_rate: float = 1e6, started: bool = True):
        self.sent: list[tuple[int, list[float]]] = []
        self.stopped: list[list[float]] = []
        self.news: list[str] = []
        self.scheduled: list[tuple[int, tuple[int, list[float]]]] = []
        self.gone: list[Sent] = []
        self.settled: list[Sent | None] = []
        self.cancelled = 0
        self.now_ns = 1000 * MS
        self.chunk_id = 0
        velocity = np.array([False, True])
        limits = ActionLimits(
            low=np.array([-10.0, -10.0]),
            high=np.array([10.0, 10.0]),
            max_rate=np.array([max_rate, max_rate]),
            max_rate_change=np.full(2, np.inf),
        )
        self.core = StreamerCore(
            timeline=Timeline(joint_names=NAMES),
            guard=Guard(names=NAMES, limits=limits, velocity_columns=velocity),
            velocity_columns=velocity,
            period_s=PERIOD_NS / 1e9,
            outlet=self,
            notify=lambda: self.news.append(self.core.snapshot.state),
            settled=self.settled.append,
        )
        self.options(hold_s=hold_s)
        if started:
            self.pose(0.0)
            self.core.activate(self.now_ns)

    def prepare(self, command, *, now_ns: int) -> None:
        self.prepared = now_ns, command.tolist()

    def schedule(self, due_ns: int) -> None:
        self.scheduled.append((due_ns, self.prepared))

    def leave(self, until_ns: int) -> None:
        """What is due until then is sent, a little late."""
        while self.scheduled and self.scheduled[0][0] <= until_ns:
            due_ns, prepared = self.scheduled.pop(0)
            self.gone.append(Sent(due_ns, due_ns + 7))
            self.sent.append(prepared)

    def settle(self) -> list[Sent]:
        self.leave(self.now_ns)
        gone, self.gone = self.gone, []
        return gone

    def cancel(self) -> list[Sent]:
        self.cancelled += 1
        self.scheduled.clear()
        gone, self.gone = self.gone, []
        return gone

    def publish(self) -> None:
        self.sent.append(self.prepared)

    def stop_velocities(self, command, *, now_ns: int) -> None:
        self.stopped.append(command.tolist())

    def options(self, *, hold_s=0.1, mode='queue', start_max_error=0.0) -> None:
        self.core.set_options(
            Options(
                mode=mode,
                temporal_ensemble_coeff=0.01,
                hold_s=hold_s,
                velocity_scale=1.0,
                start_max_error=start_max_error,
            )
        )

    def pose(self, pan: float, *, fresh_until_ns: int = FOREVER_NS) -> None:
        self.core.pose = Pose(values=np.array([pan, np.nan]), fresh_until_ns=fresh_until_ns)

    def offer(self, *pans: float, base: float = 0.5, epoch: int = 0, session_id: int = 1) -> None:
        """A chunk of 100 Hz, observed now."""
        self.chunk_id += 1
        rows = np.array([[pan, base] for pan in pans])
        chunk = ActionChunk(
            actions=rows,
            joint_names=NAMES,
            observation_stamp_ns=self.now_ns,
            dt_s=PERIOD_NS / 1e9,
            epoch=epoch,
            chunk_id=self.chunk_id,
        )
        self.core.offer(chunk, session_id=session_id)

    def tick(self, count: int = 1) -> list[list[float]]:
        """Tick and let a period pass, ``count`` times; the commands that left."""
        before = len(self.sent)
        for _ in range(count):
            self.core.tick(self.now_ns)
            self.now_ns += PERIOD_NS
        return [command for _, command in self.sent[before:]]

    @property
    def state(self) -> tuple[str, str]:
        return self.core.snapshot.state, self.core.snapshot.cause


def test_it_waits_for_a_first_chunk_and_sends_nothing():
    rig = Rig()
    assert rig.tick(5) == []
    assert rig.state == ('waiting', 'no_chunk')


def test_chunks_become_commands_at_the_control_rate():
    rig = Rig()
    rig.offer(1.0, 2.0, 3.0)
    assert rig.tick(3) == [[1.0, 0.5], [2.0, 0.5], [3.0, 0.5]]
    assert rig.state == ('streaming', '')
    assert rig.news == ['waiting', 'streaming']
    assert rig.core.snapshot.played_ns == 2 * PERIOD_NS
    assert rig.core.snapshot.remaining_s == pytest.approx(0.01)


def test_when_actions_run_out_it_holds_then_stops_then_goes_on_with_new_ones():
    rig = Rig(hold_s=0.05)
    rig.offer(1.0, 2.0)
    rig.tick(2)
    held = rig.tick(5)
    assert [pan for pan, _ in held] == [2.0] * 5
    assert held[0][1] == 0.0, 'a velocity is never repeated'
    assert rig.state == ('holding', 'ran_out')
    assert rig.tick(10) == []
    assert rig.state == ('stopped', 'ran_out')
    assert rig.core.underruns == 1
    rig.pose(2.2)
    rig.offer(7.0)
    assert rig.tick()[0][0] == 7.0
    assert rig.news == ['waiting', 'streaming', 'holding', 'stopped', 'streaming']


def test_new_chunks_end_a_hold_without_a_new_start():
    rig = Rig(hold_s=1.0, max_rate=10.0)
    rig.offer(0.05)
    rig.tick(3)
    rig.pose(-5.0)
    rig.offer(0.1)
    assert rig.tick()[0][0] == pytest.approx(0.1), 'from the last command, not the measured pose'


def test_after_a_stop_motion_starts_from_the_measured_pose():
    rig = Rig(hold_s=0.0, max_rate=10.0)
    rig.offer(0.05)
    rig.tick(3)
    assert rig.state == ('stopped', 'ran_out')
    rig.pose(-5.0)
    rig.offer(0.1, 0.1)
    assert rig.tick(2)[0][0] == pytest.approx(-4.9)
    assert rig.core.limited >= 1


def test_without_a_measured_pose_nothing_is_sent_and_no_chunk_is_lost():
    rig = Rig(started=False)
    rig.core.activate(rig.now_ns)
    rig.offer(1.0, 2.0)
    assert rig.tick(4) == []
    assert rig.state == ('waiting', 'pose')
    rig.pose(0.0)
    assert rig.tick(2) == [[1.0, 0.5], [2.0, 0.5]], 'from row 0: nothing had been played'


def test_a_stale_pose_while_moving_holds_then_stops():
    rig = Rig(hold_s=0.03)
    rig.offer(*[1.0] * 100)
    rig.pose(0.0, fresh_until_ns=rig.now_ns + 2 * PERIOD_NS)
    assert [pan for pan, _ in rig.tick(3)] == [1.0] * 3
    assert rig.state == ('holding', 'pose')
    rig.tick(3)
    assert rig.state == ('stopped', 'pose')
    assert rig.core.underruns == 0
    rig.pose(0.0)
    assert rig.tick(2) == [], 'the chunk of before is not resumed'
    rig.offer(4.0)
    assert rig.tick()[0][0] == 4.0


def test_a_short_gap_of_the_pose_holds_and_goes_on_where_it_was():
    rig = Rig(hold_s=0.1)
    rig.offer(*range(1, 9))
    rig.pose(0.0, fresh_until_ns=rig.now_ns + 2 * PERIOD_NS)
    assert [pan for pan, _ in rig.tick(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]
    rig.pose(0.0)
    assert [pan for pan, _ in rig.tick(2)] == [3.0, 4.0]
    # One period passed between the last command and the notice that the pose had gone.
    assert rig.core.snapshot.played_ns == 3 * PERIOD_NS


def test_a_pause_sends_nothing_more_and_leaves_no_velocity_behind():
    rig = Rig()
    rig.offer(1.0, 2.0, 3.0)
    rig.tick(1)
    rig.core.pause(rig.now_ns)
    assert rig.stopped == [[1.0, 0.0]]
    rig.offer(4.0)
    assert rig.tick(3) == []
    assert rig.state == ('paused', 'paused')
    rig.core.pause(rig.now_ns)
    assert len(rig.stopped) == 1


def test_resume_takes_only_what_was_observed_after_it_and_starts_from_the_pose():
    rig = Rig(max_rate=10.0)
    rig.offer(0.1)
    rig.tick(1)
    rig.core.pause(rig.now_ns)
    observed_before = ActionChunk(
        actions=np.ones((3, 2)), joint_names=NAMES, observation_stamp_ns=rig.now_ns, dt_s=0.01,
        chunk_id=50,
    )  # fmt: skip
    rig.now_ns += PERIOD_NS
    rig.core.resume(rig.now_ns)
    rig.core.offer(observed_before, session_id=1)
    assert rig.tick(1) == []
    assert rig.core.rejected == {'before_reset': 1}
    rig.pose(3.0)
    rig.chunk_id = 60
    rig.offer(4.0)
    assert rig.tick()[0][0] == pytest.approx(3.1)


def test_resume_without_a_pause_changes_nothing():
    rig = Rig()
    rig.offer(1.0, 2.0)
    rig.tick(1)
    rig.core.resume(rig.now_ns)
    assert rig.tick(1) == [[2.0, 0.5]]


def test_a_reset_drops_chunks_held_and_on_their_way_and_holds_meanwhile():
    rig = Rig()
    rig.offer(*[1.0] * 50)
    rig.tick(1)
    rig.offer(9.0)
    rig.now_ns += PERIOD_NS
    rig.core.reset(rig.now_ns)
    assert [pan for pan, _ in rig.tick(2)] == [1.0, 1.0]
    assert rig.state == ('holding', 'reset')
    assert rig.core.underruns == 0
    rig.offer(3.0)
    assert rig.tick() == [[3.0, 0.5]]


def test_deactivate_empties_everything_and_activate_begins_anew():
    rig = Rig()
    rig.offer(*[1.0] * 50)
    rig.tick(2)
    rig.core.deactivate(rig.now_ns)
    assert rig.tick(3) == []
    rig.offer(5.0)
    rig.core.activate(rig.now_ns)
    assert rig.tick(3) == []
    assert rig.state == ('waiting', 'no_chunk')
    assert (rig.core.chunks_taken, rig.core.snapshot.played_ns) == (0, 0)
    rig.offer(6.0)
    assert rig.tick() == [[6.0, 0.5]]


def test_a_backward_jump_of_time_holds_until_pose_and_chunk_of_the_new_time():
    rig = Rig(hold_s=0.05)
    rig.offer(*[1.0] * 50)
    rig.tick(3)
    rig.now_ns = 100 * MS
    assert [pan for pan, _ in rig.tick(2)] == [1.0, 1.0]
    assert rig.state[0] == 'holding'
    assert rig.core.time_jumps == 1
    rig.pose(0.0)
    assert rig.state == ('holding', 'pose')
    rig.offer(4.0, 5.0)
    assert [pan for pan, _ in rig.tick(2)] == [4.0, 5.0]


def test_a_start_the_guard_refuses_is_told_and_sends_nothing():
    rig = Rig()
    rig.options(start_max_error=0.5)
    rig.offer(2.0, 2.0)
    assert rig.tick(2) == []
    assert rig.state == ('waiting', 'guard')
    assert "joint 'pan' is 2.000 from" in rig.core.guard_reason
    assert rig.core.refused == 1
    rig.pose(1.8)
    rig.offer(2.0)
    assert rig.tick() == [[2.0, 0.5]]


def test_refused_chunks_are_counted_and_explained():
    rig = Rig()
    rig.offer(np.nan)
    rig.offer(1.0, epoch=3)
    rig.offer(1.0, epoch=2)
    rig.tick()
    assert rig.core.rejected == {'non_finite': 1, 'epoch': 1}
    assert rig.core.chunks_dropped == 2
    assert [refusal.kind for refusal in rig.core.refusals] == ['non_finite', 'epoch']


def test_chunks_that_a_stalled_loop_never_saw_are_counted():
    rig = Rig()
    for number in range(INBOX_CHUNKS + 3):
        rig.offer(float(number))
        rig.now_ns += MS
    assert rig.tick()[0][0] == float(INBOX_CHUNKS + 2)
    assert rig.core.chunks_dropped == 3


def test_a_defect_stops_everything_until_the_next_activation():
    rig = Rig()
    rig.offer(*[1.0] * 50)
    rig.tick(1)
    rig.core.fail(rig.now_ns, 'boom')
    assert rig.stopped == [[1.0, 0.0]]
    assert rig.tick(2) == []
    assert rig.state == ('stopped', 'defect')
    rig.core.resume(rig.now_ns)
    rig.core.pause(rig.now_ns)
    assert rig.state == ('stopped', 'defect')
    rig.core.activate(rig.now_ns)
    assert rig.state == ('waiting', 'no_chunk')


def test_rearming_lets_the_motion_start_from_the_measured_pose_again():
    rig = Rig(max_rate=10.0)
    rig.offer(*[0.1] * 50)
    rig.tick(1)
    rig.pose(-3.0)
    changes = []
    rig.core.rearm(rig.now_ns, lambda: changes.append(len(rig.sent)))
    assert changes == [1]
    assert rig.tick()[0][0] == pytest.approx(-2.9)


def test_rearming_while_it_holds_ends_the_hold():
    rig = Rig()
    rig.offer(1.0)
    rig.tick(2)
    assert rig.state[0] == 'holding'
    rig.core.rearm(rig.now_ns, lambda: None)
    assert rig.tick(2) == []
    assert rig.state[0] == 'stopped'


def test_the_latency_is_from_the_observation_to_the_first_command_of_the_newest_chunk():
    rig = Rig()
    rig.offer(1.0, 2.0)
    rig.now_ns += 4 * PERIOD_NS
    rig.tick(1)
    assert rig.core.latency_s == pytest.approx(0.04)
    assert rig.core.delay_s == pytest.approx(0.04)


def test_a_request_returns_only_when_no_tick_is_under_way():
    rig = Rig()
    entered, release, order = threading.Event(), threading.Event(), []

    def slow_send() -> None:
        entered.set()
        assert release.wait(5.0)
        order.append('sent')

    rig.publish = slow_send  # type: ignore[method-assign]
    rig.offer(1.0, 2.0)
    ticking = threading.Thread(target=rig.tick)
    ticking.start()
    assert entered.wait(5.0)
    pausing = threading.Thread(target=lambda: (rig.core.pause(rig.now_ns), order.append('paused')))
    pausing.start()
    pausing.join(0.05)
    assert pausing.is_alive(), 'the pause waits for the tick that is under way'
    release.set()
    pausing.join(5.0)
    ticking.join(5.0)
    assert order == ['sent', 'paused']


def test_a_command_is_worked_out_ahead_and_sent_when_it_is_due():
    rig = Rig()
    rig.offer(1.0, 2.0)
    due_ns = rig.now_ns + 3 * MS
    rig.core.prepare(due_ns + 1, due_ns=due_ns)
    assert rig.sent == []
    assert rig.news == ['waiting', 'streaming'], 'told at once: the control thread waits with it'
    rig.core.settle()
    assert (rig.sent, rig.settled, rig.core.sent) == ([], [], 0), 'not due yet'
    rig.now_ns = due_ns
    rig.core.settle()
    assert [now_ns for now_ns, _ in rig.sent] == [due_ns + 1]
    assert rig.settled == [Sent(due_ns, due_ns + 7)]
    assert rig.core.sent == 1


@pytest.mark.parametrize('ahead', [1, 2, 3])
def test_commands_are_worked_out_while_others_wait_and_told_of_in_turn(ahead):
    rig = Rig()
    rig.offer(*np.arange(1.0, 9.0))
    for number in range(8):
        rig.now_ns += PERIOD_NS
        due_ns = rig.now_ns + (ahead - 1) * PERIOD_NS + MS
        rig.core.prepare(due_ns, due_ns=due_ns)
        assert rig.core.sent == len(rig.settled) == max(0, number + 1 - ahead)
    rig.now_ns += ahead * PERIOD_NS
    rig.core.settle()
    assert rig.core.sent == len(rig.sent) == len(rig.settled) == 8
    times_ns = [now_ns for now_ns, _ in rig.sent]
    assert [sent.due_ns for sent in rig.settled] == times_ns
    assert set(np.diff(times_ns)) == {PERIOD_NS}
    pans = [command[0] for _, command in rig.sent]
    assert np.allclose(np.diff(pans), 1.0), 'each is a period on from the one before'


def test_a_tick_without_a_command_is_told_of_in_its_turn():
    rig = Rig(hold_s=0.0)
    rig.offer(1.0)
    for _ in range(3):
        rig.core.prepare(rig.now_ns + MS, due_ns=rig.now_ns + MS)
        rig.now_ns += PERIOD_NS
    rig.core.settle()
    first_ns = 1001 * MS
    assert rig.settled == [Sent(first_ns, first_ns + 7), None, None]
    assert rig.core.sent == len(rig.sent) == 1


@pytest.mark.parametrize('request_name', ['pause', 'deactivate', 'fail', 'rearm', 'activate'])
@pytest.mark.parametrize('gone', [0, 1, 2, 3])
def test_a_request_that_stops_the_robot_takes_back_what_is_scheduled(request_name, gone):
    rig = Rig()
    rig.offer(1.0, 2.0, 3.0)
    begin_ns = rig.now_ns
    for number in range(3):
        due_ns = begin_ns + (number + 1) * PERIOD_NS
        rig.core.prepare(due_ns, due_ns=due_ns)
    rig.leave(begin_ns + gone * PERIOD_NS)
    argument = {'fail': 'broken', 'rearm': lambda: None}.get(request_name)
    getattr(rig.core, request_name)(rig.now_ns, *([] if argument is None else [argument]))
    assert rig.cancelled == 1
    assert rig.core.sent == (0 if request_name == 'activate' else gone)
    rig.now_ns += 10 * PERIOD_NS
    rig.core.settle()
    assert len(rig.sent) == gone, 'nothing is published after the request'
    assert rig.settled == [None] * 3, 'and periods are not counted over it'


def test_a_reset_leaves_what_is_scheduled_on_its_way():
    rig = Rig()
    rig.offer(1.0, 2.0)
    rig.core.prepare(rig.now_ns + PERIOD_NS, due_ns=rig.now_ns + PERIOD_NS)
    rig.core.reset(rig.now_ns)
    rig.now_ns += PERIOD_NS
    rig.core.settle()
    assert (rig.cancelled, rig.core.sent, len(rig.sent)) == (0, 1, 1), 'the robot goes on to hold'


def test_a_command_the_guard_refuses_takes_back_those_that_wait(monkeypatch):
    rig, sample, calls = Rig(), Timeline.sample, []

    def broken_at_the_third(timeline, now_ns, *, out):
        calls.append(now_ns)
        found = sample(timeline, now_ns, out=out)
        if len(calls) == 3:
            out[0] = np.nan
        return found

    monkeypatch.setattr(Timeline, 'sample', broken_at_the_third)
    rig.offer(1.0, 2.0, 3.0, 4.0)
    begin_ns = rig.now_ns
    for number in range(3):
        due_ns = begin_ns + (number + 1) * PERIOD_NS
        rig.core.prepare(due_ns, due_ns=due_ns)
    assert rig.state == ('stopped', 'guard')
    assert rig.cancelled == 1
    rig.now_ns += 10 * PERIOD_NS
    rig.core.settle()
    assert (rig.sent, rig.core.sent, rig.core.refused) == ([], 0, 1)
    assert rig.stopped == [[2.0, 0.0]], 'no velocity is left behind'


class Notes:
    """A witness that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple] = []

    def request(self, name, *, now_ns):
        self.told.append((name, now_ns))

    def options(self, options):
        self.told.append(('options', options.mode))

    def taken(self, chunk, *, session_id, now_ns):
        self.told.append(('taken', chunk.chunk_id, session_id))

    def ticked(self, now_ns, *, state, pose, sent, stops):
        self.told.append(('tick', state, pose, sent, stops))


def test_a_witness_is_told_everything_that_decides_what_is_sent_in_order():
    rig, notes = Rig(), Notes()
    begin_ns = rig.now_ns
    rig.core.watch(notes)
    rig.core.activate(begin_ns)
    rig.tick()
    rig.core.pose = Pose(values=np.array([0.0, np.nan]), fresh_until_ns=FOREVER_NS, number=3)
    rig.offer(0.1, 0.1, base=0.2, session_id=9)
    rig.tick(2)
    rig.core.pause(rig.now_ns)
    rig.tick()
    rig.core.resume(rig.now_ns)
    rig.core.reset(rig.now_ns)
    rig.core.deactivate(rig.now_ns)
    rig.core.watch(None)
    rig.core.activate(rig.now_ns)
    assert notes.told == [
        ('activate', begin_ns),
        ('tick', 'waiting', 0, 0, 0),
        ('taken', 1, 9),
        ('tick', 'streaming', 3, 1, 0),
        ('tick', 'streaming', 3, 2, 0),
        ('pause', begin_ns + 3 * PERIOD_NS),
        ('tick', 'paused', 0, 2, 1),
        ('resume', begin_ns + 4 * PERIOD_NS),
        ('reset', begin_ns + 4 * PERIOD_NS),
        ('deactivate', begin_ns + 4 * PERIOD_NS),
    ]


def test_a_tick_does_not_take_what_was_published_at_its_own_instant():
    rig = Rig()
    rig.pose(0.0)
    chunk = ActionChunk(
        actions=np.zeros((5, 2)),
        joint_names=NAMES,
        observation_stamp_ns=rig.now_ns,
        dt_s=0.01,
        chunk_id=1,
    )
    rig.core.offer(chunk, session_id=1, published_ns=rig.now_ns)
    assert rig.tick() == []
    assert len(rig.tick()) == 1

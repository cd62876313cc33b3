"""The streamer as a process: what it sends, holds, stops, and tells; all over real ROS 2."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from streamer_rig import CONTRACT, DT_S, NODE, StreamerRig, make_rig, pan_lift, still

from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def ramp(rows: int, *, step: float = 0.002) -> np.ndarray:
    """(rows, 3): pan rises by ``step`` a row, lift falls by it."""
    return np.arange(rows)[:, None] * np.array([step, -step, 0.0])


def test_a_chunk_becomes_interpolated_commands_in_the_controllers_order(rig: StreamerRig):
    rig.start()
    rig.arm.clear()
    rig.publish(ramp(60))
    rig.wait_status('streaming')
    rig.wait_status('holding')
    sent = np.array([pan_lift(message) for message in rig.arm.messages])
    np.testing.assert_allclose(sent[:, 0], -sent[:, 1], atol=1e-15)
    assert sent[0, 0] < 0.0015, 'playback begins at row 0'
    assert sent[:, 0].max() == pytest.approx(59 * 0.002)
    steps = np.diff(sent[:, 0])
    assert (steps >= -1e-12).all()
    between = np.count_nonzero(np.abs(sent[:, 0] / 0.002 % 1.0 - 0.5) < 0.49)
    assert between > 20, 'the control rate is twice the policy rate'


def test_late_chunks_are_joined_without_a_seam(rig: StreamerRig):
    rig.start()
    rig.arm.clear()
    rig.publish(np.arange(40)[:, None] * np.array([0.1 * DT_S, 0.0, 0.0]))
    progress = rig.progress.wait_for(lambda m: m.played > 0.4, what='progress')
    begin_s = stamp_to_ns(progress.tick) / 1e9 - progress.played
    for _ in range(3):
        # A policy that expects the robot to move on at 0.1 rad/s and takes 0.3 s to say so.
        observed_s = rig.peer.now_ns / 1e9 - 0.3 - begin_s
        times_s = observed_s + np.arange(50) * DT_S
        rig.publish(times_s[:, None] * np.array([0.1, 0.0, 0.0]), age_s=0.3)
        rig.progress.wait_for(lambda m, n=rig.chunks_made: m.chunk_id == n and m.remaining < 0.5)
    rig.wait_status('holding', reason='the actions ran out')
    pan = np.array([pan_lift(message)[0] for message in rig.arm.messages])
    # 0.001 a command, more where a busy machine delays one; skipping nothing of what is 0.3 s
    # late would show as a step of 0.02.
    assert np.abs(np.diff(pan)).max() < 0.015
    assert (rig.status.last.chunks_taken, rig.status.last.underruns) == (4, 1)


def test_progress_tells_what_was_consumed(rig: StreamerRig):
    rig.start()
    assert rig.progress.wait_for().state == 'waiting'
    rig.publish(still(50), epoch=7, session_id=99)
    first = rig.progress.wait_for(lambda m: m.state == 'streaming')
    assert (first.session_id, first.epoch, first.chunk_id) == (99, 7, 1)
    assert 0.0 < first.remaining <= 50 * DT_S
    later = rig.progress.wait_for(lambda m: m.played > 0.3)
    assert later.played + later.remaining == pytest.approx(50 * DT_S, abs=0.02)
    done = rig.progress.wait_for(lambda m: m.state == 'holding')
    assert done.played == pytest.approx(50 * DT_S, abs=0.02)
    assert done.remaining == 0.0


def test_it_waits_without_sending_and_says_for_whom(rig: StreamerRig):
    rig.start()
    status = rig.wait_status('waiting', reason='no action chunk yet')
    assert (status.commands, status.mode) == (0, 'queue')
    assert len(rig.arm) == len(rig.base) == 0


def test_without_joint_states_it_sends_nothing_and_names_the_topic(rig: StreamerRig):
    rig.pose = None
    rig.start(wait=False)
    rig.wait_matched()
    rig.publish(still(50))
    rig.wait_status('waiting', reason='joints pan, lift on joint_states: no value yet')
    assert len(rig.arm) == 0
    rig.pose = (0.0, 0.0)
    rig.publish(still(50))
    rig.wait_status('streaming')


def test_joint_states_that_stop_end_the_motion(rig: StreamerRig):
    rig.start()
    rig.publish(still(400))
    rig.wait_status('streaming')
    rig.pose = None
    rig.wait_status('holding', reason='on joint_states: ages pan')
    rig.wait_status('stopped', reason='joint_states')
    rig.pose = (0.0, 0.0)
    rig.publish(still(50))
    rig.wait_status('streaming')


def test_motion_starts_from_the_measured_pose_within_the_velocity_limit(rig: StreamerRig):
    rig.pose = (1.5, -1.0)
    rig.start()
    rig.arm.clear()
    rig.publish(still(200))
    rig.wait_status('streaming')
    rig.arm.wait_for(lambda m: pan_lift(m) == (0.0, 0.0), what='command at the target')
    sent = np.array([(1.5, -1.0), *(pan_lift(message) for message in rig.arm.messages)])
    assert np.abs(np.diff(sent, axis=0)).max() <= 2.0 * 0.01 + 1e-12
    assert rig.now_status().limited > 50


def test_a_killed_policy_leaves_the_arm_holding_and_a_new_one_resumes(rig, tmp_path):
    rig.start(control__hold_s=30.0)
    script = tmp_path / 'policy.py'
    script.write_text(POLICY)
    policy = rig.spawn([sys.executable, str(script), '1001'])
    rig.progress.wait_for(lambda m: m.session_id == 1001 and m.played > 0.3)
    policy.signal(signal.SIGKILL)
    policy.wait()
    held = rig.wait_status('holding', reason='the actions ran out')
    assert 'last chunk' in held.reason
    rig.wait_status('holding', reason='the policy process has been silent for')
    last = pan_lift(rig.arm.last)
    for _ in range(20):
        assert pan_lift(rig.arm.wait_for()) == last, 'the arm keeps its last command'
    rig.spawn([sys.executable, str(script), '1002'])
    resumed = rig.progress.wait_for(lambda m: m.session_id == 1002 and m.state == 'streaming')
    assert resumed.epoch == 0, 'the new process counts its own epochs'
    assert rig.now_status().commands > 0


def test_a_hold_ends_in_a_stop_and_new_chunks_end_the_stop(rig: StreamerRig):
    process = rig.start(control__hold_s=0.2)
    rig.publish(still(10))
    rig.wait_status('streaming')
    rig.wait_status('stopped', reason='the actions ran out; last chunk')
    count = len(rig.arm)
    sent = rig.now_status().commands
    assert rig.now_status().commands == sent
    assert len(rig.arm) == count
    process.wait_for_log(r'stopped: the actions ran out')
    rig.publish(still(10))
    rig.wait_status('streaming')


def test_pause_and_resume(rig: StreamerRig):
    rig.start()
    rig.publish(still(1000, x=0.5))
    rig.base.wait_for(lambda m: m.linear.x == 0.5, what='the speed asked for')
    assert rig.call('pause').success
    # The answer may overtake commands sent before it; a status after it cannot.
    status = rig.wait_status('paused', reason='~/resume')
    commands = status.commands
    rig.base.wait_until(lambda: rig.base.messages[-1].linear.x == 0.0)
    rig.publish(still(50))
    assert rig.now_status().commands == commands
    assert rig.call('resume').success
    rig.wait_status('waiting', reason='no action chunk yet')
    rig.publish(still(50))
    rig.wait_status('streaming')


def test_reset_drops_the_chunk_that_plays(rig: StreamerRig):
    rig.start()
    rig.publish(still(1000))
    rig.wait_status('streaming')
    rig.publish(still(1000), age_s=0.0, chunk_id=50)
    assert rig.call('reset').success
    rig.wait_status('holding', reason='reset')
    rig.publish(still(50), chunk_id=60)
    assert rig.wait_status('streaming').chunk_id == 60


def test_an_inactive_streamer_refuses_the_services(rig: StreamerRig):
    rig.start(wait=False, autostart=False)
    rig.status.wait_for(lambda m: m.state == 'unconfigured')
    for name in ('pause', 'resume', 'reset'):
        response = rig.call(name)
        assert not response.success
        assert 'unconfigured' in response.message


def test_the_lifecycle_decides_what_is_sent(rig: StreamerRig):
    rig.start(wait=False, autostart=False)
    assert rig.change_state('configure')
    rig.wait_matched()
    rig.publish(still(500))
    rig.wait_status('inactive', reason='not active')
    assert len(rig.arm) == 0
    assert rig.change_state('activate')
    rig.wait_status('waiting')
    assert len(rig.arm) == 0, 'a chunk from before the activation is not played'
    rig.publish(still(500))
    rig.wait_status('streaming')
    assert rig.change_state('deactivate')
    rig.wait_status('inactive')
    count = len(rig.arm)
    rig.publish(still(500))
    rig.now_status()
    assert len(rig.arm) == count
    assert rig.change_state('cleanup')
    rig.wait_status('unconfigured')
    assert rig.change_state('configure')
    assert rig.change_state('activate')
    rig.arm.wait_until(lambda: rig.arm.publishers > 0)
    rig.wait_status('waiting', reason='no action chunk yet')
    rig.publish(still(50))
    rig.wait_status('streaming')


def test_a_dry_run_sends_to_preview_alone_and_enabling_starts_from_the_pose(rig: StreamerRig):
    rig.start(control__enabled=False)
    rig.publish(still(1500, pan=0.4))
    preview = rig.preview.wait_for(lambda m: m.position[0] == 0.4, what='preview at the target')
    assert list(preview.name) == ['pan', 'lift', 'x']
    assert len(rig.arm) == len(rig.base) == 0
    assert rig.now_status().commands == 0
    assert rig.set(control__enabled=True).successful
    first = pan_lift(rig.arm.wait_for())
    # One velocity step is 0.02; a busy machine may lose the first messages of a depth of 1.
    assert 0.0 < first[0] <= 0.1, 'from the measured pose, not from the previewed 0.4'


def test_what_a_tick_takes_does_not_move_the_moment_its_command_is_due(rig: StreamerRig):
    script = Path(__file__).parent / 'unsteady_action_streamer.py'
    rig.start(script=script, control__enabled=False, control__at_once=False, control__rate_hz=50.0)
    rig.publish(still(100))
    rig.preview.wait_until(lambda: len(rig.preview) >= 30)
    periods_ns = np.diff([stamp_to_ns(message.header.stamp) for message in rig.preview.messages])
    # Some may be late where the machine is busy; every one would be 3 ms off.
    assert np.median(np.abs(periods_ns - 20_000_000)) < 500_000


def test_rate_and_limits_change_while_it_streams(rig: StreamerRig):
    rig.start(control__hold_s=30.0)
    rig.publish(still(1500))
    rig.wait_status('streaming')
    assert rig.status.wait_for(lambda m: m.period_p50 > 0).period_p50 == pytest.approx(0.01, 0.2)
    assert rig.set(control__rate_hz=200.0).successful
    rig.status.wait_for(lambda m: abs(m.period_p50 - 0.005) < 0.001, what='the new period')
    assert rig.set(control__rate_hz=50).successful, 'an integer is promoted'
    assert rig.set(guard__velocity_scale=0.1).successful
    rig.arm.clear()
    rig.publish(still(1500, pan=1.0))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] > 0.02)
    pan = [pan_lift(message)[0] for message in rig.arm.messages]
    assert np.diff(pan).max() <= 0.1 * 2.0 * 0.02 + 1e-12


IMPOSSIBLE = {
    'at least 1 Hz': {'control__rate_hz': 0.5},
    'out of range': {'control__rate_hz': 5000.0},
    'string': {'control__rate_hz': 'fast'},
    '0 s and more': {'control__hold_s': -0.5},
    "'queue', 'ensemble'": {'chunking__mode': 'replay'},
    'Max: 1.0': {'chunking__temporal_ensemble_coeff': 2.0},
    'Min: 0.01': {'guard__velocity_scale': 0.0},
    'Max: 99': {'control__realtime_priority': 100},
    'while the node is configured': {'robot_description': '<robot/>'},
}


def test_impossible_parameters_are_refused_with_the_reason(rig: StreamerRig):
    rig.start()
    for reason, change in IMPOSSIBLE.items():
        result = rig.set(**change)
        assert not result.successful, change
        assert reason in result.reason
        assert next(iter(change)).replace('__', '.') in result.reason
    assert rig.now_status().state == 'waiting'
    assert rig.peer.get_parameter(NODE, 'guard.velocity_scale') == 1.0


def test_limits_of_the_robot_change_while_it_moves(rig: StreamerRig, tmp_path):
    """Another contract of the same robot takes effect at once; another robot is refused."""
    rig.start(control__hold_s=30.0)
    # A sway of +-0.5 rad in 8 s for a minute.
    sway = 0.5 * np.sin(np.arange(3000) * DT_S * 2.0 * np.pi / 8.0)
    rig.publish(sway[:, None] * np.array([1.0, 0.0, 0.0]))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] > 0.3)
    before = rig.now_status()
    narrow = tmp_path / 'narrow.yaml'
    text = CONTRACT.replace(
        'pan, unit: rad, limits: [-2.0, 2.0]', 'pan, unit: rad, limits: [-0.1, 0.1]'
    )
    narrow.write_text(text.replace('max_velocity: 2.0', 'max_velocity: 0.2'))
    assert rig.set(robot=str(narrow)).successful
    rig.arm.clear()
    rig.arm.wait_for(lambda m: abs(pan_lift(m)[0]) <= 0.1, what='command inside the new limits')
    rig.arm.wait_for(count=100)
    pan = np.array([pan_lift(message)[0] for message in rig.arm.messages])
    assert np.abs(np.diff(pan[1:])).max() <= 0.2 * 0.01 + 1e-12, 'never faster than the new limit'
    inside = int(np.argmax(np.abs(pan) <= 0.1))
    assert np.abs(pan[inside:]).max() <= 0.1
    after = rig.now_status()
    assert (after.state, after.underruns) == ('streaming', before.underruns)
    assert after.limited > before.limited

    narrow.write_text(text.replace('limits: [-0.1, 0.1]', 'limits: [-0.05, 0.05]'))
    assert rig.set(robot=str(narrow)).successful, 'the same file, read again'
    rig.arm.clear()
    rig.arm.wait_for(lambda m: pan_lift(m)[0] == 0.05, what='the newest limit reached')
    rig.arm.wait_for(count=100)
    assert max(pan_lift(message)[0] for message in rig.arm.messages[-100:]) <= 0.05

    other = tmp_path / 'other.yaml'
    other.write_text(CONTRACT.replace('topic: cmd_vel', 'topic: base/cmd_vel'))
    for robot, reason in (
        (str(other), 'found another outputs than test_robot has'),
        (str(tmp_path / 'nowhere.yaml'), 'nowhere.yaml'),
        ('so101', 'the same robot with other limits'),
    ):
        result = rig.set(robot=robot)
        assert not result.successful
        assert reason in result.reason
    result = rig.peer.set_parameters_atomically(NODE, guard__velocity_scale=0.5, robot=str(other))
    assert not result.successful, 'all or nothing'
    narrow.write_text(CONTRACT.replace('max_velocity: 2.0', 'max_velocity: -2.0'))
    assert 'max_velocity' in rig.set(robot=str(narrow)).reason
    assert rig.peer.get_parameter(NODE, 'robot') == str(narrow)
    assert rig.peer.get_parameter(NODE, 'guard.velocity_scale') == 1.0
    rig.arm.clear()
    rig.arm.wait_for(count=100)
    assert max(pan_lift(message)[0] for message in rig.arm.messages) <= 0.05
    assert rig.now_status().state == 'streaming'


def test_the_priority_of_the_control_thread_changes_while_it_streams(rig: StreamerRig):
    process = rig.start()
    rig.publish(still(3000))
    rig.wait_status('streaming')

    def fifo() -> int:
        tasks = Path(f'/proc/{process.pid}/task').iterdir()
        return sum(os.sched_getscheduler(int(task.name)) == os.SCHED_FIFO for task in tasks)

    assert fifo() == 0
    assert rig.set(control__realtime_priority=20).successful
    rig.arm.wait_for(count=5)
    if process.count('priority 20 is not permitted') == 0:
        assert fifo() == 4, 'the control thread, the two that send and the ROS thread'
    assert rig.set(control__realtime_priority=0).successful
    rig.arm.wait_for(count=5)
    assert fifo() == 0
    assert rig.now_status().state == 'streaming'


def test_in_auto_mode_chunks_are_played_as_the_policy_node_reports(rig: StreamerRig):
    from sparkrt.msg import PolicyStatus

    rig.start(chunking__temporal_ensemble_coeff=1.0)
    assert rig.now_status().mode == 'queue'
    told = PolicyStatus(mode='ensemble', temporal_ensemble_coeff=math.log(2.0), state='active')
    rig.policy.publish(told)
    rig.status.wait_for(lambda m: m.mode == 'ensemble')
    rig.arm.clear()
    rig.publish(still(100, pan=0.1))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] == 0.1)
    rig.publish(still(100, pan=0.2))
    # Weights 1 and 1/2, the older chunk first: the policy's coefficient, not the parameter's.
    rig.arm.wait_for(lambda m: abs(pan_lift(m)[0] - 0.4 / 3) < 1e-9, what='the weighted mean')
    assert rig.set(chunking__mode='queue').successful
    rig.arm.wait_for(lambda m: pan_lift(m)[0] == 0.2, what='the newest chunk')


def test_the_reason_carries_what_the_policy_node_says(rig: StreamerRig):
    from sparkrt.msg import PolicyStatus

    rig.start()
    rig.policy.publish(PolicyStatus(state='waiting', reason='camera front is 2.1 s old'))
    rig.wait_status('waiting', reason='the policy is waiting: camera front is 2.1 s old')


def test_two_policies_at_once_do_not_take_turns(rig: StreamerRig):
    process = rig.start()
    rig.publish(still(1000, pan=0.1), session_id=0xA)
    rig.status.wait_for(lambda m: m.chunks_taken == 1)
    rig.publish(still(1000, pan=0.1), session_id=0xB)
    rig.status.wait_for(lambda m: m.chunks_taken == 2)
    rig.publish(still(1000, pan=-1.0), session_id=0xA)
    rig.status.wait_for(lambda m: m.chunks_dropped == 1)
    process.wait_for_log('policy process a was replaced by b')
    assert rig.progress.wait_for().session_id == 0xB


def test_a_namespace_moves_every_topic(rig: StreamerRig):
    from sparkrt.msg import ActionChunk, StreamerStatus

    options = ['-r', '__ns:=/left', '-p', 'autostart:=true', '-p', f'robot:={rig.contract}']
    module = 'sparkrt_ros.nodes.action_streamer'
    rig.spawn([sys.executable, '-m', module, '--ros-args', *options])
    status = rig.peer.subscribe(StreamerStatus, '/left/action_streamer/status', 10)
    rig.peer.publisher(ActionChunk, '/left/sparkrt/action_chunk', 10).wait_matched()
    # One that was published before the first tick looked for a pose says otherwise.
    message = status.wait_for(lambda m: m.state == 'waiting' and 'no action' not in m.reason)
    assert message.reason.startswith('joints pan, lift')
    names = {name for name, _ in rig.peer.node.get_topic_names_and_types()}
    assert {'/left/arm/commands', '/left/cmd_vel', '/left/action_streamer/progress'} <= names


def test_diagnostics_report_stream_loop_and_delivery(rig: StreamerRig):
    from diagnostic_msgs.msg import DiagnosticArray

    diagnostics = rig.peer.subscribe(DiagnosticArray, '/diagnostics', 10)
    rig.start()
    diagnostics.wait_until(lambda: diagnostics.publishers > 0)
    rig.publish(still(1500))
    rig.wait_status('streaming')
    array = diagnostics.wait_for(lambda m: m.status[0].message == 'streaming')
    rows = {row.name.split(': ')[1]: row for row in array.status}
    assert set(rows) == {'stream', 'control loop', 'commands', 'inputs'}
    assert rows['stream'].level == b'\x00'
    values = {value.key: value.value for value in rows['control loop'].values}
    assert float(values['rate [Hz]']) == 100.0
    assert 10 < float(values['resident memory [MB]']) < 120
    assert array.status[0].hardware_id == 'test_robot'


def test_a_contract_that_cannot_be_read_leaves_the_node_unconfigured(rig: StreamerRig, tmp_path):
    broken = tmp_path / 'broken.yaml'
    broken.write_text(CONTRACT.replace('max_velocity: 2.0', 'max_speed: 2.0', 1))
    process = rig.start(wait=False, robot=str(broken))
    process.wait_for_log('configure failed.*max_speed')
    rig.wait_status('unconfigured')
    assert rig.peer.state(NODE) == 'unconfigured'


POLICY = """
import sys, time, array
import rclpy
from sparkrt.msg import ActionChunk, PolicyStatus

session_id = int(sys.argv[1])
rclpy.init()
node = rclpy.create_node('sparkrt')
chunks = node.create_publisher(ActionChunk, '~/action_chunk', 2)
status = node.create_publisher(PolicyStatus, '~/status', 1)
count = 0


def publish():
    global count
    count += 1
    stamp = node.get_clock().now().to_msg()
    rows = [[0.001 * count, 0.0, 0.0]] * 25
    chunks.publish(ActionChunk(
        observation_stamp=stamp, dt=0.02, chunk_id=count, session_id=session_id,
        joint_names=['pan', 'lift', 'x'], rows=25, data=array.array('d', sum(rows, [])),
    ))
    status.publish(PolicyStatus(state='active', mode='queue'))


node.create_timer(0.1, publish)
rclpy.spin(node)
"""

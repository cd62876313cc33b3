"""Runs the demo: three processes, a number of attempts at the task, figures and a report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import rclpy
from rclpy.context import Context

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.demo.processes import ProcessGroup
from sparkrt_ros.demo.record import DemoRecord, Episode
from sparkrt_ros.demo.recorder import DemoRecorder
from sparkrt_ros.runtime.share import shared_path

START_LIMIT_S = 60.0
EPISODE_MARGIN_S = 20.0
READY = ('waiting', 'streaming', 'holding', 'stopped')


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What to run. Attempts use the seeds ``seed``, ``seed + 1``, ...; paths may be relative.

    Empty names leave the choice to the nodes' own defaults.
    """

    checkpoint: Path
    episodes: int = 5
    seed: int = 1
    backend: str = ''
    precision: str = ''
    device: str = ''
    mode: str = ''
    logs: Path = Path('log/demo')


Progress = Callable[[str], None]


def run_demo(options: DemoOptions, *, progress: Progress) -> DemoRecord:
    """Run every attempt and return what was recorded; ``progress`` gets one line per step.

    Raises ProcessDied or DemoTimeout (both SparkRTError) if something does not work.
    """
    environ = demo_environment()
    contract = load_contract('embedded')
    context = Context()
    rclpy.init(context=context, domain_id=int(environ['ROS_DOMAIN_ID']))
    try:
        with ProcessGroup(logs=options.logs, environ=environ) as processes:
            start_processes(processes, options)
            recorder = DemoRecorder(contract, context=context)
            try:
                wait_until_ready(recorder, processes, progress)
                for _ in range(options.episodes):
                    run_episode(recorder, processes, progress=progress)
                finish(recorder.record, recorder)
            finally:
                recorder.close()
    finally:
        rclpy.try_shutdown(context=context)
    return recorder.record


def demo_environment() -> dict[str, str]:
    """The environment of the processes: a domain of their own, on this machine only."""
    environ = dict(os.environ)
    environ.setdefault('ROS_DOMAIN_ID', str(1 + os.getpid() % 100))
    environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    environ.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', str(shared_path('config/fastdds.xml')))
    # The recorder is a participant of this process and reads the same variables.
    os.environ.update(environ)
    return environ


def start_processes(processes: ProcessGroup, options: DemoOptions) -> None:
    chosen = {
        'checkpoint': str(options.checkpoint),
        'robot': 'embedded',
        'backend': options.backend,
        'precision': options.precision,
        'device': options.device,
        'chunking.mode': options.mode,
        'autostart': 'true',
    }
    streamer = ('robot', 'chunking.mode', 'autostart')
    # Every attempt begins with a reset, which takes the next seed.
    seed = str(options.seed - 1)
    processes.start('sim_robot', 'sparkrt_ros.sim.sim_robot', ros_arguments({'seed': seed}))
    processes.start(
        'action_streamer',
        'sparkrt_ros.nodes.action_streamer',
        ros_arguments({name: chosen[name] for name in streamer}),
    )
    processes.start('policy_node', 'sparkrt_ros.nodes.policy_node', ros_arguments(chosen))


def ros_arguments(parameters: dict[str, str]) -> list[str]:
    """Command-line form of the parameters that have a value."""
    given = [f'{name}:={value}' for name, value in parameters.items() if value]
    return ['--ros-args', *(part for pair in given for part in ('-p', pair))]


def wait_until_ready(recorder: DemoRecorder, processes: ProcessGroup, progress: Progress) -> None:
    progress('starting robot, policy and streamer')

    def ready() -> bool:
        policy, streamer = recorder.policy_status, recorder.streamer_status
        return bool(
            policy
            and policy.state == 'active'
            and streamer
            and streamer.state in READY
            and recorder.episode
        )

    recorder.wait_for('start', ready, timeout_s=START_LIMIT_S, watch=processes.check)
    status = recorder.policy_status
    if status is not None:
        progress(
            f'policy active: {status.model}, {status.backend}, {status.precision}, '
            f'{status.device}, loaded in {status.load_time:.1f} s'
        )


def run_episode(recorder: DemoRecorder, processes: ProcessGroup, *, progress: Progress) -> None:
    """One attempt: the world is reset with everything paused, so that nothing old is played."""
    before = recorder.episode.get('seed')
    recorder.call('action_streamer/pause')
    recorder.call('sim_robot/reset')
    recorder.wait_for(
        'reset',
        lambda: recorder.episode.get('seed') != before,
        timeout_s=5.0,
        watch=processes.check,
    )
    recorder.call('sparkrt/reset')
    recorder.call('action_streamer/reset')
    recorder.keep_frames = True
    start_ns = time.time_ns()
    recorder.call('action_streamer/resume')
    limit_s = float(recorder.episode['time_limit_s']) + EPISODE_MARGIN_S
    recorder.wait_for(
        'end of the attempt',
        lambda: bool(recorder.episode['done']),
        timeout_s=limit_s,
        watch=processes.check,
    )
    episode = Episode(
        seed=int(recorder.episode['seed']),
        success=bool(recorder.episode['success']),
        duration_s=(time.time_ns() - start_ns) * 1e-9,
        start_ns=start_ns,
        end_ns=time.time_ns(),
    )
    recorder.keep_frames = False
    recorder.record.episodes.append(episode)
    outcome = 'success' if episode.success else 'failed'
    progress(f'seed {episode.seed}: {outcome} after {episode.duration_s:.1f} s')


def finish(record: DemoRecord, recorder: DemoRecorder) -> None:
    """Take the counters of both nodes and the description of the machine into the record."""
    policy, streamer = recorder.policy_status, recorder.streamer_status
    if policy is not None and streamer is not None:
        record.counters.update(
            {
                'inference failures': policy.failures,
                'messages refused': policy.bad_messages,
                'chunks dropped': streamer.chunks_dropped,
                'commands refused': streamer.refused,
                'commands undelivered': streamer.undelivered,
            }
        )
        record.machine.update(
            {
                'policy': f'{policy.model}, {policy.backend}, {policy.precision}',
                'device': policy.device,
                'mode': streamer.mode,
            }
        )
    record.machine['machine'] = f'{platform.machine()}, {os.cpu_count()} cores'
    record.machine['python'] = platform.python_version()

"""Command period of the real action streamer while cameras and joint states load the machine.

python bench/control_jitter.py --duration 20

Processes, as on a robot: the streamer under test; a load that publishes three 640x480 rgb8 cameras
at 30 Hz and joint states at 500 Hz; a policy stand-in that receives the pictures and publishes an
action chunk every 0.5 s; and this one, which receives the commands. A period is the time between
the source time stamps of two commands, set by the middleware within the streamer's publish call,
so that delays on the way here and in this process do not count.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import rclpy.task
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import ActionChunk, StreamerStatus

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ('front', 'wrist', 'side')
CAMERA_HZ = 30.0
JOINT_HZ = 500.0
CHUNK_HZ = 2.0
CHUNK_ROWS = 50
DT_S = 0.05
WARM_UP_S = 2.0
START_LIMIT_S = 30.0
JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'gripper')
COMMANDS = 'forward_position_controller/commands'
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. Periods in ms; cpu_percent of one core; missed: periods without a command.

    resident_mb: without the shared memory of the middleware, which shared_mb gives.
    """

    rate_hz: float
    scheduling: str
    commands: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    missed: int
    images_per_s: float
    cpu_percent: float
    resident_mb: float
    shared_mb: float


# The other processes


def publish_load() -> None:
    """Cameras and joints until a signal."""
    rclpy.init()
    node = rclpy.create_node('load')
    image = Image(height=480, width=640, encoding='rgb8', step=1920)
    image.data = array.array('B', bytes(480 * 1920))
    joints = JointState(name=list(JOINTS), position=[0.5] * len(JOINTS))

    def stamped(publisher: Any, message: Any) -> None:
        message.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(message)

    for name in CAMERAS:
        camera = node.create_publisher(Image, f'{name}_camera/image_raw', BEST_EFFORT)
        node.create_timer(1.0 / CAMERA_HZ, lambda camera=camera: stamped(camera, image))
    states = node.create_publisher(JointState, 'joint_states', BEST_EFFORT)
    node.create_timer(1.0 / JOINT_HZ, lambda: stamped(states, joints))
    rclpy.spin(node)


def stand_in_for_policy() -> None:
    """Receive every picture, publish chunks that keep the arm near where it is."""
    rclpy.init()
    node = rclpy.create_node('sparkrt')
    received = 0

    def count(_: Image) -> None:
        nonlocal received
        received += 1

    for name in CAMERAS:
        node.create_subscription(Image, f'{name}_camera/image_raw', count, BEST_EFFORT)
    chunks = node.create_publisher(ActionChunk, '~/action_chunk', RELIABLE)
    begin_s = time.monotonic()
    number = 0

    def publish() -> None:
        nonlocal number
        number += 1
        times_s = number / CHUNK_HZ + np.arange(CHUNK_ROWS) * DT_S
        rows = 0.5 + 0.1 * np.sin(times_s)[:, None] * np.ones(len(JOINTS))
        chunk = ActionChunk(
            observation_stamp=node.get_clock().now().to_msg(),
            dt=DT_S,
            chunk_id=number,
            session_id=1,
            joint_names=list(JOINTS),
            rows=CHUNK_ROWS,
            data=array.array('d', rows.tobytes()),
            inference_time=received / (time.monotonic() - begin_s),
        )
        chunks.publish(chunk)

    node.create_timer(1.0 / CHUNK_HZ, publish)
    rclpy.spin(node)


# Measuring


class Recorder:
    """Source time stamps of the commands, the newest status, and the pictures per second."""

    def __init__(self) -> None:
        self.stamps_ns: list[int] = []
        self.status: StreamerStatus | None = None
        self.images_per_s = 0.0
        self._changed = threading.Condition()
        self.node = rclpy.create_node('recorder')
        self.node.create_subscription(Float64MultiArray, COMMANDS, self._command, RELIABLE)
        # The streamer must find every output listened to.
        self.node.create_subscription(
            Float64MultiArray, 'gripper_controller/commands', lambda _: None, RELIABLE
        )
        self.node.create_subscription(
            StreamerStatus, 'action_streamer/status', self._status, RELIABLE
        )
        self.node.create_subscription(ActionChunk, 'sparkrt/action_chunk', self._chunk, RELIABLE)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._ending: Any = rclpy.task.Future()
        spin = self._executor.spin_until_future_complete
        self._thread = threading.Thread(target=spin, args=[self._ending])
        self._thread.start()

    def close(self) -> None:
        self._ending.set_result(None)
        self._thread.join()
        self._executor.shutdown()

    def wait_for(self, condition: Any, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, START_LIMIT_S):
                logs = os.environ['ROS_LOG_DIR']
                raise SystemExit(
                    f'no {what} in {START_LIMIT_S} s; logs in {logs}; last status: {self.status}'
                )

    def begin(self) -> None:
        with self._changed:
            self.stamps_ns.clear()

    def taken(self) -> np.ndarray:
        with self._changed:
            return np.array(self.stamps_ns, dtype=np.int64)

    def _command(self, _: Float64MultiArray, info: Any) -> None:
        with self._changed:
            self.stamps_ns.append(int(info['source_timestamp']))
            self._changed.notify_all()

    def _status(self, message: StreamerStatus) -> None:
        with self._changed:
            self.status = message
            self._changed.notify_all()

    def _chunk(self, message: ActionChunk) -> None:
        self.images_per_s = message.inference_time


def measure(recorder: Recorder, *, rate_hz: float, priority: int, duration_s: float) -> Result:
    """Run all processes once; only what comes after WARM_UP_S counts."""
    options = ['-p', 'autostart:=true', '-p', f'control.rate_hz:={rate_hz}']
    options += ['-p', f'control.realtime_priority:={priority}']
    recorder.begin()
    children = [start('load'), start('policy')]
    streamer = start('streamer', '--ros-args', *options)
    try:
        recorder.wait_for(lambda: len(recorder.stamps_ns) > WARM_UP_S * rate_hz, 'commands')
        recorder.begin()
        cpu_s, begin_s = cpu_seconds(streamer.pid), time.monotonic()
        time.sleep(duration_s)
        stamps_ns = recorder.taken()
        taken_s = time.monotonic() - begin_s
        cpu_percent = 100.0 * (cpu_seconds(streamer.pid) - cpu_s) / taken_s
        return summarise(
            stamps_ns,
            rate_hz=rate_hz,
            scheduling=scheduling(streamer.pid),
            images_per_s=recorder.images_per_s,
            cpu_percent=cpu_percent,
            resident_mb=memory_mb(streamer.pid, 'VmRSS') - memory_mb(streamer.pid, 'RssShmem'),
            shared_mb=memory_mb(streamer.pid, 'RssShmem'),
        )
    finally:
        stop([streamer, *children])


def summarise(stamps_ns: np.ndarray, *, rate_hz: float, **facts: Any) -> Result:
    periods_ms = np.diff(stamps_ns) / 1e6
    p50, p99, p999 = np.percentile(periods_ms, (50.0, 99.0, 99.9), method='higher')
    return Result(
        rate_hz=rate_hz,
        commands=int(stamps_ns.size),
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        max_ms=float(periods_ms.max()),
        missed=int(np.maximum(np.rint(periods_ms * rate_hz / 1e3) - 1, 0).sum()),
        **facts,
    )


def start(role: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, '--role', role, *arguments]
    if role == 'streamer':
        command = [sys.executable, '-m', 'sparkrt_ros.nodes.action_streamer', *arguments]
    log = Path(os.environ['ROS_LOG_DIR']) / f'{role}.txt'
    with log.open('ab') as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream)


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# The machine


def cpu_seconds(pid: int) -> float:
    fields = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def memory_mb(pid: int, field: str) -> float:
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e3


def scheduling(pid: int) -> str:
    """What the kernel says of the control thread, whether or not a priority was asked for."""
    for task in Path(f'/proc/{pid}/task').iterdir():
        if os.sched_getscheduler(int(task.name)) == os.SCHED_FIFO:
            return 'SCHED_FIFO'
    return 'normal'


def machine() -> dict[str, str]:
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    cpu = next((line.split(': ')[1] for line in lines if line.startswith('model name')), 'unknown')
    git = ['git', '-C', str(ROOT), 'describe', '--always', '--dirty']
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        'cpu': f'{cpu}, {os.cpu_count()} cores',
        'kernel': os.uname().release,
        'python': sys.version.split()[0],
        'numpy': np.__version__,
        'ros': os.environ.get('ROS_DISTRO', 'wheels'),
        'rmw': rclpy.get_rmw_implementation_identifier(),
        'commit': commit or 'none',
    }


def table(results: Sequence[Result]) -> str:
    header = (
        f'{"rate":>7} {"scheduling":>11} {"commands":>9} {"p50":>7} {"p99":>7} {"p99.9":>7} '
        f'{"max":>7} {"missed":>7} {"images/s":>9} {"CPU":>6} {"RSS":>7}'
    )
    rows = [
        f'{r.rate_hz:>4g} Hz {r.scheduling:>11} {r.commands:>9} {r.p50_ms:>7.2f} {r.p99_ms:>7.2f} '
        f'{r.p999_ms:>7.2f} {r.max_ms:>7.2f} {r.missed:>7} {r.images_per_s:>9.1f} '
        f'{r.cpu_percent:>5.1f}% {r.resident_mb:>4.0f} MB'
        for r in results
    ]
    return '\n'.join([header, *rows, 'periods in ms; CPU in percent of one core'])


def prepare_environment() -> None:
    """A private domain on this machine, and room for whole pictures in shared memory."""
    os.environ['ROS_DOMAIN_ID'] = str(70 + os.getpid() % 30)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    profile = str(ROOT / 'config' / 'fastdds.xml')
    os.environ.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', profile)
    os.environ.setdefault('ROS_LOG_DIR', tempfile.mkdtemp(prefix='control_jitter_'))
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    os.environ['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--duration', type=float, default=20.0, help='seconds of each run')
    parser.add_argument('--rates', type=float, nargs='+', default=[50.0, 200.0], metavar='HZ')
    parser.add_argument(
        '--priorities', type=int, nargs='+', default=[0, 50], help='of SCHED_FIFO; 0: none'
    )
    parser.add_argument('--json', type=Path, help='also write the results here')
    parser.add_argument('--role', choices=['load', 'policy'], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.role:
        try:
            {'load': publish_load, 'policy': stand_in_for_policy}[options.role]()
        except (KeyboardInterrupt, ExternalShutdownException):
            return 0
    prepare_environment()
    rclpy.init()
    recorder = Recorder()
    try:
        results = [
            measure(recorder, rate_hz=rate_hz, priority=priority, duration_s=options.duration)
            for rate_hz in options.rates
            for priority in options.priorities
        ]
    finally:
        recorder.close()
        rclpy.try_shutdown()
    facts = machine()
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    print(table(results))
    if options.json:
        content = {'machine': facts, 'results': [asdict(result) for result in results]}
        options.json.write_text(json.dumps(content, indent=2))
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""What the benchmarks with real nodes share: processes, a private domain, figures of /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import rclpy.task
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_srvs.srv import Trigger

ROOT = Path(__file__).resolve().parents[1]
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
STOP_S = 5.0

POLICY_NODE = ('-m', 'sparkrt_ros.nodes.policy_node')
STREAMER_NODE = ('-m', 'sparkrt_ros.nodes.action_streamer')
ROBOT_NODE = ('-m', 'sparkrt_ros.sim.sim_robot')
CAMERA_LOAD = (str(ROOT / 'bench' / 'camera_load.py'),)


def prepare_environment(name: str) -> None:
    """A private domain on this machine, and room for whole pictures in shared memory."""
    os.environ['ROS_DOMAIN_ID'] = str(70 + os.getpid() % 30)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    os.environ['FASTDDS_DEFAULT_PROFILES_FILE'] = str(ROOT / 'config' / 'fastdds.xml')
    os.environ.setdefault('ROS_LOG_DIR', tempfile.mkdtemp(prefix=f'{name}_'))
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    os.environ['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)


def ros_arguments(values: Mapping[str, Any], *, namespace: str = '') -> list[str]:
    """Command-line form of node parameters, for a node in ``namespace``."""
    words = ['--ros-args']
    for name, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # What looks like a number would be taken for one.
        quoted = isinstance(value, str) and value.lstrip('-').isdecimal()
        words += ['-p', f'{name}:={json.dumps(text) if quoted else text}']
    return [*words, *(['-r', f'__ns:={namespace}'] if namespace else [])]


class Processes:
    """Child processes by name; leaving the context ends them all."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, program: Sequence[str], arguments: Sequence[str] = (), *, nice: int = 0
    ) -> int:
        """Start ``python *program *arguments``; its process id. nice: how far it stands back."""
        log = Path(os.environ['ROS_LOG_DIR']) / f'{name}.txt'
        with log.open('ab') as stream:
            child = subprocess.Popen(
                ['nice', '-n', str(nice), sys.executable, *program, *arguments],
                stdout=stream,
                stderr=stream,
            )
        self._children[name] = child
        return child.pid

    @property
    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self._children.items()}

    def check(self) -> None:
        """End the benchmark where a process has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                logs = os.environ['ROS_LOG_DIR']
                raise SystemExit(f'{name} ended with code {child.returncode}; logs in {logs}')

    def stop(self, *names: str) -> None:
        """End these processes, or all."""
        chosen = [self._children.pop(name) for name in names or tuple(self._children)]
        for child in chosen:
            child.send_signal(signal.SIGINT)
        for child in chosen:
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Listener:
    """A node that spins on a thread of its own, and waits for what it was told."""

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.node = rclpy.create_node(name)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._ending: Any = rclpy.task.Future()
        spin = self._executor.spin_until_future_complete
        self._thread = threading.Thread(target=spin, args=[self._ending])

    def begin(self) -> None:
        """Spin; to be called when all subscriptions are made."""
        self._thread.start()

    def listen(self, kind: type, topic: str, take: Callable[..., None]) -> None:
        """Call ``take(message)``, or ``take(message, info)``, for every message."""
        self.node.create_subscription(kind, topic, take, RELIABLE)

    def wait_for(self, condition: Callable[[], bool], what: str, *, limit_s: float) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, limit_s):
                raise SystemExit(f'no {what} in {limit_s} s; logs in {os.environ["ROS_LOG_DIR"]}')

    def call(self, service: str, *, attempts: int = 10, wait_s: float = 2.0) -> bool:
        """Call a Trigger service, again where no answer comes; whether it succeeded."""
        client = self.node.create_client(Trigger, service)
        try:
            for _ in range(attempts):
                answered = threading.Event()
                if not client.wait_for_service(wait_s):
                    continue
                future = client.call_async(Trigger.Request())
                future.add_done_callback(lambda _, event=answered: event.set())
                if answered.wait(wait_s):
                    return bool(future.result().success)
            return False
        finally:
            self.node.destroy_client(client)

    def close(self) -> None:
        self._ending.set_result(None)
        self._thread.join()
        self._executor.shutdown()


# /proc


def cpu_seconds(pid: int) -> float:
    fields = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def status_value(pid: int, field: str) -> int:
    """A number of /proc/PID/status: kB for memory, a count for ``Threads``."""
    lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f'{field}:'))


def resident_mb(pid: int) -> float:
    """Memory in RAM, without what the middleware shares between processes."""
    return (status_value(pid, 'VmRSS') - status_value(pid, 'RssShmem')) / 1e3


def handles(pid: int) -> int:
    """Open files, sockets and the like."""
    return len(list(Path(f'/proc/{pid}/fd').iterdir()))


def scheduling(pid: int) -> str:
    """SCHED_FIFO where the kernel says so of a thread, whatever was asked for."""
    for task in Path(f'/proc/{pid}/task').iterdir():
        if os.sched_getscheduler(int(task.name)) == os.SCHED_FIFO:
            return 'SCHED_FIFO'
    return 'normal'


def machine() -> dict[str, str]:
    """Where and with what it was measured."""
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    cpu = next((line.split(': ')[1] for line in lines if line.startswith('model name')), 'unknown')
    git = ['git', '-C', str(ROOT), 'describe', '--always', '--dirty']
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        'cpu': f'{cpu}, {os.cpu_count()} cores',
        'load average': ' '.join(f'{load:.1f}' for load in os.getloadavg()),
        'kernel': os.uname().release,
        'python': sys.version.split()[0],
        'numpy': np.__version__,
        'ros': os.environ.get('ROS_DISTRO', 'wheels'),
        'rmw': rclpy.get_rmw_implementation_identifier(),
        'commit': commit or 'none',
    }

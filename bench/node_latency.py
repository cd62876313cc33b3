"""Time from a picture to the first new command, through both nodes and real ROS 2 topics.

python bench/node_latency.py --device cuda --precision fp16

Processes, as on a robot: a load that publishes three 640x480 rgb8 cameras at 30 Hz and joint
states; the policy node with an ACT network of random weights, which infers on every set of
pictures; the action streamer; and this one, which receives the commands and keeps the account.

A picture's stamp is taken right before the three cameras are published. Reported per inference,
without the time of the inference itself: the whole way from that stamp to the first command that
follows from it; the same counted from the moment the last of them arrived in the policy node, and
from the moment all three had left the publisher; and its two halves, before and behind the policy
node's publishing.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import rclpy.task
import yaml
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import ActionChunk, PolicyStatus, StreamerStatus

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ('front', 'wrist', 'side')
CAMERA_HZ = 30.0
JOINT_HZ = 200.0
HEIGHT, WIDTH = 480, 640
JOINTS = tuple(f'joint_{number}' for number in range(1, 7))
COMMANDS = 'forward_position_controller/commands'
WARM_UP_S = 2.0
START_LIMIT_S = 90.0
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


# What the nodes are given


def write_contract(path: Path, *, size: tuple[int, int]) -> Path:
    """A robot of six joints and three cameras whose pictures are resized to (height, width)."""
    height, width = size
    cameras = [
        {
            'name': name,
            'key': f'observation.images.{name}',
            'topic': f'{name}_camera/image_raw',
            'source_size': [WIDTH, HEIGHT],
            'resize': [width, height],
            'max_age_s': 0.5,
        }
        for name in CAMERAS
    ]
    limits = {'limits': [-3.0, 3.0], 'max_velocity': 3.0, 'max_acceleration': 40.0}
    contract = {
        'name': 'latency',
        'policy_rate_hz': 30.0,
        'control_rate_hz': 100.0,
        'hold_s': 1.0,
        'max_skew_s': 0.2,
        'cameras': cameras,
        'joints': [{'name': name, 'unit': 'rad', **limits} for name in JOINTS],
        'state': {
            'streams': [{'name': 'joint_states', 'topic': 'joint_states', 'max_age_s': 0.5}],
            'vector': list(JOINTS),
        },
        'action': {
            'vector': list(JOINTS),
            'outputs': [
                {
                    'name': 'arm',
                    'type': 'float64_multi_array',
                    'topic': COMMANDS,
                    'joints': list(JOINTS),
                }
            ],
        },
    }
    path.write_text(yaml.safe_dump(contract))
    return path


def write_policy(folder: Path, *, size: tuple[int, int], small: bool) -> Path:
    """An ACT folder of random weights for that robot; ``small``: a narrow network, for a CPU."""
    sys.path.insert(0, str(ROOT / 'test'))
    from act_folder_factory import ActFolderFactory, feature, features, tiny_config

    pictures = [feature(f'observation.images.{name}', 'VISUAL', 3, *size) for name in CAMERAS]
    shape: dict[str, Any] = {'dim_model': 64, 'n_heads': 4, 'dim_feedforward': 128}
    if not small:
        shape = {'dim_model': 512, 'n_heads': 8, 'dim_feedforward': 3200, 'n_encoder_layers': 4}
    config = tiny_config(
        input_features=features(*pictures, feature('observation.state', 'STATE', len(JOINTS))),
        output_features=features(feature('action', 'ACTION', len(JOINTS))),
        chunk_size=100,
        n_action_steps=100,
        **shape,
    )
    return ActFolderFactory(folder, folder)('policy', config=config)


# The load


def publish_load(record: Path) -> None:
    """Cameras and joints until a signal; then write [stamp, all pictures sent] in ns."""
    rclpy.init()
    node = rclpy.create_node('load')
    pixels = np.random.default_rng(0).integers(0, 256, HEIGHT * WIDTH * 3, dtype=np.uint8)
    image = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
    image.data = array.array('B', pixels.tobytes())
    joints = JointState(name=list(JOINTS), position=[0.1] * len(JOINTS))
    cameras = [
        node.create_publisher(Image, f'{name}_camera/image_raw', BEST_EFFORT) for name in CAMERAS
    ]
    states = node.create_publisher(JointState, 'joint_states', BEST_EFFORT)
    sent: list[tuple[int, int]] = []

    def publish_joints() -> None:
        joints.header.stamp = node.get_clock().now().to_msg()
        states.publish(joints)

    def publish_pictures() -> None:
        publish_joints()
        stamp = node.get_clock().now()
        image.header.stamp = stamp.to_msg()
        for camera in cameras:
            camera.publish(image)
        sent.append((stamp.nanoseconds, node.get_clock().now().nanoseconds))

    node.create_timer(1.0 / CAMERA_HZ, publish_pictures)
    node.create_timer(1.0 / JOINT_HZ, publish_joints)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        record.write_text(json.dumps(sent))


# The account


class Recorder:
    """What the nodes say: chunks by id, latency by chunk id, the statuses."""

    def __init__(self) -> None:
        self.chunks: dict[int, tuple[int, int, int, float]] = {}
        self.latencies_s: dict[int, float] = {}
        self.policy: list[PolicyStatus] = []
        self.streamer: StreamerStatus | None = None
        self._changed = threading.Condition()
        self.node = rclpy.create_node('recorder')
        for kind, topic, take in (
            (ActionChunk, 'sparkrt/action_chunk', self._chunk),
            (StreamerStatus, 'action_streamer/status', self._streamer),
            (PolicyStatus, 'sparkrt/status', self._policy),
            # The streamer must find every output listened to.
            (Float64MultiArray, COMMANDS, lambda _: None),
        ):
            self.node.create_subscription(kind, topic, take, RELIABLE)
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

    def wait_for(self, condition: Callable[[], bool], what: str, *, limit_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, limit_s):
                last = f'{self.policy[-1:]}; {self.streamer}'
                logs = os.environ['ROS_LOG_DIR']
                raise SystemExit(f'no {what} in {limit_s} s; logs in {logs}; last: {last}')

    def begin(self) -> None:
        """Forget what came so far."""
        with self._changed:
            self.chunks.clear()
            self.latencies_s.clear()
            self.policy = self.policy[-1:]

    def _chunk(self, message: ActionChunk) -> None:
        with self._changed:
            stamps = (message.observation_stamp, message.received, message.header.stamp)
            times = tuple(_ns(stamp) for stamp in stamps)
            self.chunks[message.chunk_id] = (*times, message.inference_time)
            self._changed.notify_all()

    def _streamer(self, message: StreamerStatus) -> None:
        with self._changed:
            self.streamer = message
            if message.state == 'streaming':
                self.latencies_s.setdefault(message.chunk_id, message.latency)
            self._changed.notify_all()

    def _policy(self, message: PolicyStatus) -> None:
        with self._changed:
            self.policy.append(message)
            self._changed.notify_all()


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def summarise(recorder: Recorder, sent: dict[int, int]) -> dict[str, Any]:
    """Milliseconds per inference, as percentiles; pictures per second by camera.

    sent: stamp -> when the last picture of it was sent, both in ns.
    """
    rows = []
    for number, latency_s in recorder.latencies_s.items():
        if number not in recorder.chunks:
            continue
        seen_ns, received_ns, published_ns, inference_s = recorder.chunks[number]
        if seen_ns not in sent:
            continue
        to_chunk_s = (published_ns - seen_ns) / 1e9
        rows.append(
            (
                latency_s - inference_s,
                latency_s - inference_s - (received_ns - seen_ns) / 1e9,
                latency_s - inference_s - (sent[seen_ns] - seen_ns) / 1e9,
                to_chunk_s - inference_s,
                latency_s - to_chunk_s,
                inference_s,
                (sent[seen_ns] - seen_ns) / 1e9,
            )
        )
    if not rows:
        raise SystemExit('no inference could be followed from picture to command')
    columns = 1e3 * np.array(rows).T
    names = (
        'stamp_to_command',
        'received_to_command',
        'sent_to_command',
        'before_chunk',
        'after_chunk',
    )
    names += ('inference', 'sending')
    times = {
        name: {f'p{p}_ms': float(np.percentile(column, p)) for p in (50, 99)}
        for name, column in zip(names, columns, strict=True)
    }
    return {'inferences': len(rows), **times, 'frames_per_s': frames_per_s(recorder.policy)}


def frames_per_s(statuses: Sequence[PolicyStatus]) -> dict[str, float]:
    first, last = statuses[0], statuses[-1]
    seconds = (_ns(last.header.stamp) - _ns(first.header.stamp)) / 1e9
    before = dict(zip(first.stream_names, first.stream_received, strict=True))
    return {
        name: (count - before.get(name, 0)) / seconds
        for name, count in zip(last.stream_names, last.stream_received, strict=True)
    }


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run all processes once; only what comes after WARM_UP_S counts."""
    size = (96, 128) if options.small else (HEIGHT, WIDTH)
    robot = write_contract(scratch / 'robot.yaml', size=size)
    folder = write_policy(scratch, size=size, small=options.small)
    common = {'robot': robot, 'autostart': 'true', 'chunking.mode': 'ensemble'}
    policy = {
        'checkpoint': folder,
        'device': options.device,
        'backend': options.backend,
        'precision': options.precision,
        'chunking.inference_rate_hz': 200.0,
        'observation.max_skew_s': 0.2,
    }
    streamer = {'control.rate_hz': options.control_rate, 'status.rate_hz': 50.0}
    record = scratch / 'sent.json'
    recorder = Recorder()
    begin_s = time.monotonic()
    children = [
        start('load', [__file__, '--role', str(record)]),
        start('policy', ['-m', 'sparkrt_ros.nodes.policy_node', *parameters(common | policy)]),
        start(
            'streamer', ['-m', 'sparkrt_ros.nodes.action_streamer', *parameters(common | streamer)]
        ),
    ]
    try:
        recorder.wait_for(lambda: len(recorder.latencies_s) > 0, 'command', limit_s=START_LIMIT_S)
        started_s = time.monotonic() - begin_s
        count = int(WARM_UP_S * CAMERA_HZ / 2)
        recorder.wait_for(lambda: len(recorder.chunks) > count, 'chunks', limit_s=START_LIMIT_S)
        recorder.begin()
        time.sleep(options.duration)
    finally:
        recorder.close()
        stop(children)
    sent = {int(stamp): int(left) for stamp, left in json.loads(record.read_text())}
    last = recorder.policy[-1]
    return {
        'serves': f'{last.backend}, {last.precision}, {last.device}',
        'control_rate_hz': options.control_rate,
        'configure_to_active_s': last.load_time,
        'start_to_first_command_s': started_s,
        'failures': last.failures,
        'refused': last.refused,
        **summarise(recorder, sent),
    }


# Processes


def parameters(values: dict[str, Any]) -> list[str]:
    words = ['--ros-args']
    for name, value in values.items():
        words += ['-p', f'{name}:={value}']
    return words


def start(role: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    log = Path(os.environ['ROS_LOG_DIR']) / f'{role}.txt'
    with log.open('ab') as stream:
        return subprocess.Popen([sys.executable, *arguments], stdout=stream, stderr=stream)


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def prepare_environment() -> None:
    """A private domain on this machine, and room for whole pictures in shared memory."""
    os.environ['ROS_DOMAIN_ID'] = str(70 + os.getpid() % 30)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    os.environ['FASTDDS_DEFAULT_PROFILES_FILE'] = str(ROOT / 'config' / 'fastdds.xml')
    os.environ.setdefault('ROS_LOG_DIR', tempfile.mkdtemp(prefix='node_latency_'))
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    os.environ['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--duration', type=float, default=15.0, help='seconds that count')
    parser.add_argument('--device', default='auto')
    parser.add_argument('--backend', default='auto')
    parser.add_argument('--precision', default='fp32')
    parser.add_argument('--control-rate', type=float, default=1000.0, metavar='HZ')
    parser.add_argument('--small', action='store_true', help='a small network, for a CPU')
    parser.add_argument('--json', type=Path, help='also write the result here')
    parser.add_argument('--role', type=Path, metavar='RECORD', help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.role:
        publish_load(options.role)
        return 0
    prepare_environment()
    rclpy.init()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            result = measure(options, Path(scratch))
    finally:
        rclpy.try_shutdown()
    print(yaml.safe_dump(result, sort_keys=False), end='')
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Fixtures for tests with real ROS 2; a folder's conftest imports the ones it needs."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory
from ros_harness import (
    ROOT,
    Inbox,
    NodeProcess,
    Outlet,
    Peer,
    claim_domain,
    executable,
    parameter_file,
    ros_environment,
)
from sensor_msgs.msg import Image, JointState
from shared_memory import sweep
from std_srvs.srv import Trigger

from sparkrt.msg import ActionChunk, PolicyStatus
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos

TINY_ROBOT = ROOT / 'test' / 'ros' / 'robots' / 'tiny.yaml'
ALTERED_POLICY_NODE = ROOT / 'test' / 'ros' / 'altered_policy_node.py'
JOINTS = ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'gripper')
CAMERAS = ('front', 'wrist')


@pytest.fixture(scope='session')
def ros_domain() -> Iterator[int]:
    sweep()
    domain, handle = claim_domain()
    yield domain
    handle.close()
    sweep()


@pytest.fixture(scope='session')
def session_peer(ros_domain: int) -> Iterator[Peer]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ros_environment(ros_domain).items():
            if name.startswith(('ROS_', 'FASTDDS_')):
                patch.setenv(name, value)
        node = Peer(domain=ros_domain)
        yield node
        node.close()


@pytest.fixture
def peer(session_peer: Peer) -> Iterator[Peer]:
    """A node of the test, in the same private domain as the processes."""
    yield session_peer
    session_peer.release()


class Spawner:
    """``spawn([command, ...], VARIABLE='value')`` starts a process; ``stop`` ends them all."""

    def __init__(self, domain: int) -> None:
        self._domain = domain
        self._processes: list[NodeProcess] = []

    def __call__(self, command: list[str], **variables: str) -> NodeProcess:
        environment = {**ros_environment(self._domain), **variables}
        self._processes.append(NodeProcess(command, environment=environment))
        return self._processes[-1]

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


@pytest.fixture
def spawn(ros_domain: int) -> Iterator[Spawner]:
    spawner = Spawner(ros_domain)
    yield spawner
    spawner.stop()


class PolicyUnderTest:
    """A policy node process, and what it says from now on."""

    def __init__(self, process: NodeProcess, peer: Peer) -> None:
        self.process = process
        self.peer = peer
        self.chunks: Inbox = peer.subscribe(ActionChunk, '/sparkrt/action_chunk', qos.CHUNK)
        self.status: Inbox = peer.subscribe(PolicyStatus, '/sparkrt/status', qos.STATUS)

    def change_state(self, transition: str) -> bool:
        return self.peer.change_state('/sparkrt', transition)

    def wait_chunk(self, chunk_id: int, *, timeout_s: float) -> None:
        """Until the newest chunk is that one, which may have come before whatever caused it."""
        chunks = self.chunks
        chunks.wait_until(lambda: chunks.last.chunk_id == chunk_id, timeout_s=timeout_s)

    def wait_status(self, state: str, **options: Any) -> PolicyStatus:
        what = f'status {state}'
        return self.status.wait_for(lambda m: m.state == state, what=what, **options)


def policy_command(
    folder: Path,
    scratch: Path,
    *,
    altered: bool = False,
    autostart: bool = True,
    **parameters: Any,
) -> list[str]:
    """The command of a policy node; parameter names take ``__`` for a dot."""
    values = {
        'checkpoint': str(folder),
        'robot': str(TINY_ROBOT),
        'threads': 1,
        'autostart': autostart,
        **{name.replace('__', '.'): value for name, value in parameters.items()},
    }
    path = parameter_file(scratch, 'sparkrt', values)
    start = [executable('policy_node')]
    if altered:
        start = [sys.executable, str(ALTERED_POLICY_NODE)]
    return [*start, '--ros-args', '--params-file', str(path)]


@pytest.fixture
def start_policy(
    spawn: Spawner, peer: Peer, act_folder: Path, tmp_path: Path
) -> Callable[..., PolicyUnderTest]:
    """Start a policy node of its own with the tiny ACT policy; options as ``policy_command``.

    ``altered``: environment of altered_policy_node.py, which then takes the node's place.
    """

    def start(*, altered: Mapping[str, str] | None = None, **options: Any) -> PolicyUnderTest:
        folder = Path(options.pop('checkpoint', act_folder))
        command = policy_command(folder, tmp_path, altered=altered is not None, **options)
        return PolicyUnderTest(spawn(command, **(altered or {})), peer)

    return start


@pytest.fixture(scope='module')
def shared_policy_process(
    ros_domain: int, tmp_path_factory: pytest.TempPathFactory, act_weights_cache: Path
) -> Iterator[NodeProcess]:
    scratch = tmp_path_factory.mktemp('shared_policy')
    folder = ActFolderFactory(scratch, act_weights_cache)('act_policy')
    spawner = Spawner(ros_domain)
    process = spawner(policy_command(folder, scratch))
    process.wait_for_log('activate done')
    yield process
    spawner.stop()


@pytest.fixture
def policy(shared_policy_process: NodeProcess, peer: Peer) -> PolicyUnderTest:
    """An active policy node that all tests of a module share, at the start of an episode."""
    shared = PolicyUnderTest(shared_policy_process, peer)
    assert peer.call(Trigger, '/sparkrt/reset').success
    shared.status.wait_for()
    shared.chunks.wait_until(lambda: shared.chunks.publishers == 1)
    return shared


class SensorFeed:
    """Two cameras and the joints of the tiny robot, published by timers of the peer."""

    def __init__(self, peer: Peer, *, camera_qos: Any = qos.CAMERA) -> None:
        self.peer = peer
        self.size = (64, 48)
        self.positions = dict.fromkeys(JOINTS, 0.25)
        self.zero_stamps: set[str] = set()
        self.sent = dict.fromkeys((*CAMERAS, 'joints'), 0)
        self._pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        self._outlets: dict[str, Outlet] = {
            name: peer.publisher(Image, f'{name}_camera/image_raw', camera_qos) for name in CAMERAS
        }
        self._outlets['joints'] = peer.publisher(JointState, 'joint_states', qos.STATE)
        self._timers: dict[str, Any] = {}

    @property
    def pixels(self) -> np.ndarray:
        return self._pixels

    def wait_matched(self) -> None:
        for outlet in self._outlets.values():
            outlet.wait_matched()

    def start(self, *names: str, camera_hz: float = 30.0, joints_hz: float = 50.0) -> None:
        """Publish the streams named, or all; at other rates those that are published already."""
        for name in names or self._outlets:
            if name in self._timers:
                self.stop(name)
            rate = joints_hz if name == 'joints' else camera_hz
            act = self.send_joints if name == 'joints' else lambda n=name: self.send_image(n)
            self._timers[name] = self.peer.every(1.0 / rate, act)

    def stop(self, *names: str) -> None:
        for name in names or tuple(self._timers):
            self._timers.pop(name).cancel()

    def send_image(self, name: str, *, stamp_ns: int | None = None, **changes: Any) -> Image:
        height, width, _ = self._pixels.shape
        message = Image(height=height, width=width, encoding='rgb8', step=3 * width)
        message.data = array.array('B', self._pixels.tobytes())
        for field, value in changes.items():
            setattr(message, field, value)
        return self._send(name, message, stamp_ns)

    def send_joints(self, *, stamp_ns: int | None = None, **changes: Any) -> JointState:
        message = JointState(
            name=list(self.positions), position=list(map(float, self.positions.values()))
        )
        for field, value in changes.items():
            setattr(message, field, value)
        return self._send('joints', message, stamp_ns)

    def _send(self, name: str, message: Any, stamp_ns: int | None) -> Any:
        if name not in self.zero_stamps:
            now_ns = self.peer.now_ns if stamp_ns is None else stamp_ns
            fill_stamp(message.header.stamp, now_ns)
        self._outlets[name].publish(message)
        self.sent[name] += 1
        return message


@pytest.fixture
def feed(peer: Peer) -> SensorFeed:
    return SensorFeed(peer)

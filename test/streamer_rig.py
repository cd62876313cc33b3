"""Real streamer processes for tests, with a peer that plays robot and policy around them."""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from geometry_msgs.msg import Twist
from rclpy.qos import QoSProfile, ReliabilityPolicy
from ros_harness import NodeProcess, Peer, claim_domain, parameter_file, ros_environment
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger

from sparkrt.msg import ActionChunk, PolicyStatus, StreamerProgress, StreamerStatus
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos

CONTRACT = """
name: test_robot
policy_rate_hz: 50.0
control_rate_hz: 100.0
hold_s: 0.5
max_skew_s: 0.1
cameras: []
joints:
  - {name: pan, unit: rad, limits: [-2.0, 2.0], max_velocity: 2.0}
  - {name: lift, unit: rad, limits: [-2.0, 2.0], max_velocity: 2.0}
  - {name: x, unit: m/s, limits: [-1.0, 1.0], max_acceleration: 5.0}
state:
  streams:
    - {name: arm, topic: joint_states, max_age_s: 0.3}
  vector: [pan, lift]
action:
  vector: [pan, lift, x]
  outputs:
    - {name: arm, type: float64_multi_array, topic: arm/commands, joints: [lift, pan]}
    - {name: base, type: twist, topic: cmd_vel, joints: {x: linear.x}}
"""
JOINTS = ('pan', 'lift', 'x')
DT_S = 0.02
NODE = '/action_streamer'
# Deeper than the streamer's own profiles, so that the tests miss nothing.
EVERY = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


class StreamerRig:
    """One private domain: a peer as robot and policy, and any number of streamer processes.

    arm holds messages in the controller's order (lift, pan); see :func:`pan_lift`.
    simulated: the time of everything is ``simulated_ns``, and poses go out by hand.
    """

    def __init__(self, folder: Path, *, contract: str = CONTRACT, simulated: bool = False) -> None:
        self._folder = folder
        self.simulated_ns = 0 if simulated else None
        self._domain, self._lock = claim_domain()
        self._processes: list[NodeProcess] = []
        self.contract = folder / 'robot.yaml'
        self.contract.write_text(contract)
        self.pose: tuple[float, float] | None = (0.0, 0.0)
        self.peer = Peer(domain=self._domain)
        self.arm = self.peer.subscribe(Float64MultiArray, '/arm/commands', EVERY)
        self.base = self.peer.subscribe(Twist, '/cmd_vel', EVERY)
        self.preview = self.peer.subscribe(JointState, f'{NODE}/preview', EVERY)
        self.progress = self.peer.subscribe(StreamerProgress, f'{NODE}/progress', EVERY)
        self.status = self.peer.subscribe(StreamerStatus, f'{NODE}/status', EVERY)
        self.chunks = self.peer.publisher(ActionChunk, '/sparkrt/action_chunk', qos.CHUNK)
        self.policy = self.peer.publisher(PolicyStatus, '/sparkrt/status', qos.STATUS)
        self._joints = self.peer.publisher(JointState, '/joint_states', qos.STATE)
        if not simulated:
            self.peer.every(0.01, self.publish_pose)
        self.chunks_made = 0

    def close(self) -> None:
        for process in self._processes:
            process.stop()
        self.peer.close()
        self._lock.close()

    def start(self, *, script: Path | None = None, wait: bool = True, **parameters: Any):
        """Start a streamer; parameter names take ``__`` for a dot. Waits until all is matched."""
        values = {
            'autostart': True,
            'robot': str(self.contract),
            'chunking.blend_s': 0.0,
            'guard.blend_in_s': 0.0,
            **{name.replace('__', '.'): value for name, value in parameters.items()},
        }
        path = parameter_file(self._folder, 'action_streamer', values)
        program = ['-m', 'sparkrt_ros.nodes.action_streamer'] if script is None else [str(script)]
        process = self.spawn([sys.executable, *program, '--ros-args', '--params-file', str(path)])
        if wait:
            self.wait_matched()
            self.wait_status('waiting', reason='no action chunk yet')
        return process

    def spawn(self, command: list[str]) -> NodeProcess:
        self.peer.forget_clients()
        environment = ros_environment(self._domain)
        self._processes.append(NodeProcess(command, environment=environment))
        return self._processes[-1]

    def wait_matched(self) -> None:
        for outlet in (self.chunks, self.policy, self._joints):
            outlet.wait_matched()
        for inbox in (self.arm, self.base, self.status, self.progress):
            inbox.wait_until(lambda inbox=inbox: inbox.publishers > 0)

    def wait_status(self, state: str, *, reason: str = '') -> StreamerStatus:
        """A status from now on of this state, whose reason holds ``reason``."""
        try:
            return self.status.wait_for(
                lambda m: m.state == state and reason in m.reason,
                what=f'status {state} ({reason})',
            )
        except AssertionError as error:
            logs = '\n'.join(process.log for process in self._processes)
            raise AssertionError(f'{error}; logs:\n{logs}') from None

    def now_status(self) -> StreamerStatus:
        """The second status from now on: surely made after what came before this call."""
        return self.status.wait_for(count=2)

    def chunk(self, targets: Any, /, *, age_s: float = 0.0, **changes: Any) -> ActionChunk:
        """A chunk of (T, 3) targets observed ``age_s`` ago; ``changes`` overwrite fields."""
        self.chunks_made += 1
        values = np.atleast_2d(np.asarray(targets, dtype=np.float64))
        message = ActionChunk(
            dt=DT_S,
            chunk_id=self.chunks_made,
            session_id=1,
            joint_names=list(JOINTS),
            rows=len(values),
            data=array.array('d', values.tobytes()),
        )
        fill_stamp(message.header.stamp, self.now_ns)
        fill_stamp(message.observation_stamp, self.now_ns - round(age_s * 1e9))
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def publish(self, targets: Any, /, **options: Any) -> None:
        self.chunks.publish(self.chunk(targets, **options))

    def call(self, name: str) -> Trigger.Response:
        return self.peer.call(Trigger, f'{NODE}/{name}')

    def change_state(self, transition: str) -> bool:
        return self.peer.change_state(NODE, transition)

    def set(self, **values: Any) -> Any:
        """Set one parameter; its result."""
        return self.peer.set_parameters(NODE, **values)[0]

    @property
    def now_ns(self) -> int:
        return self.peer.now_ns if self.simulated_ns is None else self.simulated_ns

    def publish_pose(self) -> None:
        pose = self.pose
        if pose is None:
            return
        message = JointState(name=['lift', 'pan', 'other'], position=[pose[1], pose[0], 9.0])
        fill_stamp(message.header.stamp, self.now_ns)
        self._joints.publish(message)


def make_rig(folder: Path, **options: Any) -> Iterator[StreamerRig]:
    """For a fixture: ``yield from make_rig(tmp_path)``."""
    rig = StreamerRig(folder, **options)
    try:
        yield rig
    finally:
        rig.close()


# For a test: ``with open_rig(tmp_path) as rig``; closed also where it fails, so that no process is
# left over in a domain that the next test may claim.
open_rig = contextmanager(make_rig)


def pan_lift(message: Float64MultiArray) -> tuple[float, float]:
    """The arm command by joint, from the controller's order."""
    lift, pan = message.data
    return pan, lift


def still(rows: int, *, pan: float = 0.0, lift: float = 0.0, x: float = 0.0) -> np.ndarray:
    """(rows, 3): the same target all along."""
    return np.tile([pan, lift, x], (rows, 1))

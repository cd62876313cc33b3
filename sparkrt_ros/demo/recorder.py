"""Listens to a running demo, and steers its attempts through the nodes' own services."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from sparkrt.msg import ActionChunk, PolicyStatus, StreamerStatus
from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.convert.frame import to_rgb
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.demo.record import DemoRecord, Frame
from sparkrt_ros.nodes import qos
from sparkrt_ros.runtime.errors import SparkRTError

FRAME_INTERVAL_NS = 250_000_000
ATTEMPTS = 3


class DemoTimeout(SparkRTError):
    """Something the demo waits for did not happen in time."""


class DemoRecorder(Node):  # type: ignore[misc]
    """Subscribes to everything the report shows; spins on a thread of its own."""

    def __init__(self, contract: RobotContract, *, context: Any = None) -> None:
        super().__init__('demo_recorder', context=context)
        names = contract.action
        self.record = DemoRecord(joint_names=names, control_rate_hz=contract.control_rate_hz)
        self.policy_status: PolicyStatus | None = None
        self.streamer_status: StreamerStatus | None = None
        self.episode: dict[str, Any] = {}
        self.keep_frames = False
        self._column = {name: i for i, name in enumerate(names)}
        self._last_frame_ns: dict[str, int] = {}
        self._changed = threading.Condition()
        self._subscribe(contract)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self)
        self._thread = threading.Thread(target=self._executor.spin, name='demo_recorder')
        self._thread.start()

    def _subscribe(self, contract: RobotContract) -> None:
        for camera in contract.cameras:
            self._listen(Image, camera.topic, self._on_image(camera.name), qos.CAMERA)
        for stream in contract.state_streams:
            self._listen(JointState, stream.topic, self._on_joints, qos.STATE)
        for output in contract.outputs:
            self.create_subscription(
                Float64MultiArray, output.topic, self._on_command(output.joints), qos.COMMAND
            )
        self._listen(ActionChunk, 'sparkrt/action_chunk', self._on_chunk, qos.CHUNK)
        self._listen(PolicyStatus, 'sparkrt/status', self._on_policy_status, qos.STATUS)
        self._listen(
            StreamerStatus, 'action_streamer/status', self._on_streamer_status, qos.STATUS
        )
        self._listen(String, 'sim_robot/episode', self._on_episode, qos.LATCHED)

    def _listen(self, kind: type, topic: str, callback: Callable[..., None], profile: Any) -> None:
        self.create_subscription(kind, topic, callback, profile)

    def _on_image(self, camera: str) -> Callable[[Image], None]:
        def keep(message: Image) -> None:
            stamp_ns = stamp_to_ns(message.header.stamp)
            due = stamp_ns - self._last_frame_ns.get(camera, 0) >= FRAME_INTERVAL_NS
            if self.keep_frames and due:
                self._last_frame_ns[camera] = stamp_ns
                image = np.array(to_rgb(message))
                self.record.frames.append(Frame(camera=camera, stamp_ns=stamp_ns, image=image))

        return keep

    def _on_joints(self, message: JointState) -> None:
        row = np.full(len(self._column), np.nan)
        for name, value in zip(message.name, message.position, strict=False):
            if name in self._column:
                row[self._column[name]] = value
        self.record.position_ns.append(stamp_to_ns(message.header.stamp))
        self.record.positions.append(row)

    def _on_command(self, joints: tuple[str, ...]) -> Callable[..., None]:
        columns = [self._column[name] for name in joints]
        first = 0 in columns

        def keep(message: Float64MultiArray, info: Any) -> None:
            row = np.full(len(self._column), np.nan)
            row[columns] = message.data
            # The time of publication, so that this process's own delays do not count.
            published_ns = int(info['source_timestamp'])
            if first:
                self.record.command_ns.append(published_ns)
                self.record.commands.append(row)
            elif self.record.commands:
                self.record.commands[-1][columns] = row[columns]

        return keep

    def _on_chunk(self, message: ActionChunk) -> None:
        observed_ns = stamp_to_ns(message.observation_stamp)
        self.record.chunks.append((time.time_ns(), observed_ns, message.inference_time))

    def _on_policy_status(self, message: PolicyStatus) -> None:
        with self._changed:
            self.policy_status = message
            self._changed.notify_all()

    def _on_streamer_status(self, message: StreamerStatus) -> None:
        with self._changed:
            before = self.streamer_status
            if message.latency > 0 and (before is None or message.chunk_id != before.chunk_id):
                self.record.latencies_s.append(message.latency)
            self.streamer_status = message
            self._changed.notify_all()

    def _on_episode(self, message: String) -> None:
        with self._changed:
            self.episode = json.loads(message.data)
            self._changed.notify_all()

    def wait_for(
        self, what: str, done: Callable[[], bool], *, timeout_s: float, watch: Callable[[], None]
    ) -> None:
        """Block until ``done`` holds; ``watch`` runs at least twice a second and may raise."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not done():
                watch()
                if time.monotonic() > deadline:
                    raise DemoTimeout(
                        what,
                        found=f'nothing within {timeout_s:.0f} s ({self._reasons()})',
                        expected='it to happen',
                        remedy='read the logs of the processes',
                    )
                self._changed.wait(0.5)

    def _reasons(self) -> str:
        parts = []
        for name, status in (('policy', self.policy_status), ('streamer', self.streamer_status)):
            state = f'{status.state} {status.reason}'.strip() if status else 'no status yet'
            parts.append(f'{name}: {state}')
        return '; '.join(parts)

    def call(self, service: str, *, timeout_s: float = 10.0) -> None:
        """Call a Trigger service; raise DemoTimeout if it does not answer with success.

        Asked again when no answer comes: a server that was discovered a moment ago may not yet
        have discovered the other half of the client, and then its answer goes nowhere.
        """
        client = self.create_client(Trigger, service)
        try:
            answered = threading.Event()
            if client.wait_for_service(timeout_s):
                for _ in range(ATTEMPTS):
                    future = client.call_async(Trigger.Request())
                    future.add_done_callback(lambda _: answered.set())
                    if answered.wait(timeout_s / ATTEMPTS):
                        break
                if future.done() and future.result().success:
                    return
                reason = future.result().message if future.done() else 'no answer'
            else:
                reason = 'no such service'
        finally:
            self.destroy_client(client)
        raise DemoTimeout(f'service {service}', found=reason, expected='success')

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join()
        self.destroy_node()

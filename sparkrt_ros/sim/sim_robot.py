"""The embedded robot as a ROS 2 node: cameras and joint states out, joint commands in.

It speaks like a real arm under ros2_control with two camera drivers. Physics runs on its own
steady thread and drawing on another, so that neither waits for the other nor for a subscriber.
"""

from __future__ import annotations

import json
import sys
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.parameters import ParameterSet, ParameterSpec
from sparkrt_ros.nodes.shutdown import START_FAILED, StopToken, run_node
from sparkrt_ros.nodes.throttle import ThrottledLog
from sparkrt_ros.sim.arm import ARM_JOINTS, JOINT_NAMES
from sparkrt_ros.sim.episode import Episode
from sparkrt_ros.sim.pace import SteadyThread
from sparkrt_ros.sim.task import CAMERAS, Eyes, PickPlace

PARAMETERS = (
    ParameterSpec(
        name='seed',
        default=0,
        description='Seed of the first episode; every reset takes the next one.',
        kind='fixed',
        bounds=(0, 2**31 - 1),
    ),
    ParameterSpec(
        name='image_rate_hz',
        default=30.0,
        description='Pictures of each camera per second of simulated time [Hz].',
        kind='fixed',
        bounds=(1.0, 60.0),
    ),
    ParameterSpec(
        name='joint_rate_hz',
        default=100.0,
        description='Joint states per second of simulated time [Hz].',
        kind='fixed',
        bounds=(10.0, 200.0),
    ),
    ParameterSpec(
        name='realtime_factor',
        default=1.0,
        description='Simulated seconds per second; other than 1 is of use with publish_clock.',
        kind='fixed',
        bounds=(0.1, 4.0),
    ),
    ParameterSpec(
        name='publish_clock',
        default=False,
        description='Publish simulated time on /clock and stamp messages with it.',
        kind='fixed',
    ),
    ParameterSpec(
        name='time_limit_s',
        default=30.0,
        description='An episode fails this long after its first command [s, simulated].',
        kind='fixed',
        bounds=(1.0, 600.0),
    ),
)
EPISODE_RATE_HZ = 10.0
_MOST_LATE_S = 0.25


class SimRobot(Node):
    """The robot; ``task`` and ``episode`` are touched under ``_lock`` only."""

    def __init__(self, token: StopToken) -> None:
        super().__init__('sim_robot')
        self._token = token
        self.parameters = ParameterSet(self, PARAMETERS)
        self.parameters.set_phase(configured=True)
        self._log = ThrottledLog(self.get_logger())
        self._lock = threading.Lock()
        self._task = PickPlace(seed=self.parameters['seed'])
        self._episode = self._new_episode()
        self._sim_ns = 0
        self._since_joints = self._since_episode = 0
        self._eyes = Eyes()
        self._open_topics()
        self._physics, self._cameras = self._make_threads()
        self._joints_every = self._substeps(self.parameters['joint_rate_hz'])
        self._episode_every = self._substeps(EPISODE_RATE_HZ)

    def _open_topics(self) -> None:
        self._images = {
            camera: self.create_publisher(Image, f'{camera}_camera/image_raw', qos.CAMERA)
            for camera in CAMERAS
        }
        self._joints = self.create_publisher(JointState, 'joint_states', qos.STATUS)
        self._reports = self.create_publisher(String, '~/episode', qos.LATCHED)
        self._clock_out = (
            self.create_publisher(Clock, '/clock', qos.CAMERA)
            if self.parameters['publish_clock']
            else None
        )
        for topic, columns in (
            ('forward_position_controller/commands', slice(0, ARM_JOINTS)),
            ('gripper_controller/commands', slice(ARM_JOINTS, len(JOINT_NAMES))),
        ):
            self._listen(topic, columns)
        self.create_service(Trigger, '~/reset', self._on_reset)

    def _listen(self, topic: str, columns: slice) -> None:
        def take(message: Float64MultiArray) -> None:
            self._on_command(topic, columns, message.data)

        self.create_subscription(Float64MultiArray, topic, take, qos.STATE)

    def _make_threads(self) -> tuple[SteadyThread, SteadyThread]:
        factor = self.parameters['realtime_factor']
        step_s = self._task.spec.substep_s / factor
        image_s = 1.0 / (self.parameters['image_rate_hz'] * factor)
        return (
            SteadyThread(
                'physics',
                self._advance,
                period_s=step_s,
                most_ticks=max(round(_MOST_LATE_S / step_s), 1),
                failed=self._thread_failed,
            ),
            SteadyThread(
                'cameras',
                self._look,
                period_s=image_s,
                most_ticks=1,
                failed=self._thread_failed,
            ),
        )

    def autostart(self) -> None:
        """Start to move and to see; called once the node is in its executor."""
        for thread in (self._physics, self._cameras):
            thread.start()

    def take_down(self, *, timeout_s: float) -> bool:
        """End the threads; whether both have."""
        threads = (self._physics, self._cameras)
        for thread in threads:
            thread.stop()
        ended = [thread.join(timeout_s / len(threads)) for thread in threads]
        return all(ended)

    def _thread_failed(self, error: BaseException) -> None:
        self.get_logger().fatal(f'the simulation stopped: {type(error).__name__}: {error}')
        self._token.set(exit_code=START_FAILED)

    def _substeps(self, rate_hz: float) -> int:
        return max(round(1.0 / (rate_hz * self._task.spec.substep_s)), 1)

    def _new_episode(self) -> Episode:
        return Episode(self._task, time_limit_s=self.parameters['time_limit_s'])

    def _now(self) -> Time:
        if self._clock_out is None:
            return self.get_clock().now().to_msg()
        return _time(self._sim_ns)

    def _advance(self, ticks: int) -> None:
        """Physics thread: the substeps that are due, then what is due to be told."""
        joints = report = clock = None
        with self._lock:
            for _ in range(ticks):
                self._task.substep()
                self._sim_ns += round(self._task.spec.substep_s * 1e9)
            ended = self._episode.update()
            self._since_joints += ticks
            self._since_episode += ticks
            if self._since_joints >= self._joints_every:
                self._since_joints %= self._joints_every
                joints, clock = self._joint_state(), _time(self._sim_ns)
            if ended or self._since_episode >= self._episode_every:
                self._since_episode %= self._episode_every
                report = self._report()
        if clock is not None and self._clock_out is not None:
            self._clock_out.publish(Clock(clock=clock))
        if joints is not None:
            self._joints.publish(joints)
        if report is not None:
            self._reports.publish(String(data=json.dumps(report)))
        if ended and report is not None:
            self.get_logger().info(_sentence(report))

    def _report(self) -> dict[str, Any]:
        slipped_s = self._physics.slipped * self._task.spec.substep_s
        return {**self._episode.report(), 'slipped_s': round(slipped_s, 3)}

    def _joint_state(self) -> JointState:
        message = JointState()
        message.header.stamp = self._now()
        message.name = list(JOINT_NAMES)
        message.position = array('d', self._task.arm.positions_rad)
        message.velocity = array('d', self._task.arm.velocities_rad_s)
        return message

    def _look(self, _ticks: int) -> None:
        """Camera thread: one instant, drawn and published for both cameras."""
        with self._lock:
            picture, stamp = self._task.picture(), self._now()
        for camera, pixels in self._eyes.draw(picture).items():
            self._images[camera].publish(image_message(pixels, stamp, f'{camera}_camera_optical'))

    def _on_command(self, topic: str, columns: slice, data: Sequence[float]) -> None:
        """Take a command as ros2_control's forward command controller does, or refuse it."""
        values = np.asarray(data, dtype=np.float64)
        expected = columns.stop - columns.start
        if len(values) != expected or not np.isfinite(values).all():
            self._log.error(
                topic,
                f'{topic}: command ignored: found {values.tolist()}, '
                f'expected {expected} finite positions for {", ".join(JOINT_NAMES[columns])}',
            )
            return
        with self._lock:
            command = self._task.arm.commands_rad.copy()
            command[columns] = values
            self._task.arm.command(command)
            self._episode.commanded()

    def _on_reset(self, _request: Any, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self._task.reset(self._task.seed + 1)
            self._episode = self._new_episode()
            report = self._report()
        self._reports.publish(String(data=json.dumps(report)))
        response.success = True
        response.message = f'episode of seed {report["seed"]}'
        return response


def image_message(pixels: np.ndarray, stamp: Time, frame_id: str) -> Image:
    """A tight rgb8 image of (H, W, 3) uint8."""
    message = Image()
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    message.height, message.width = pixels.shape[:2]
    message.encoding = 'rgb8'
    message.step = 3 * message.width
    # An array of bytes is taken as it is; any other sequence would be checked byte by byte.
    message.data = array('B', pixels.tobytes())
    return message


def _time(nanoseconds: int) -> Time:
    return Time(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)


def _sentence(report: dict[str, Any]) -> str:
    outcome = 'success' if report['success'] else 'failed'
    return f'episode of seed {report["seed"]}: {outcome} after {report["elapsed_s"]:.2f} s'


def main() -> None:
    """Run the robot; the entry point of the executable ``sim_robot``."""
    cv2.setNumThreads(1)
    sys.exit(run_node(SimRobot))


if __name__ == '__main__':
    main()

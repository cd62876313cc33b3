"""Publishes commands on the outputs of a robot contract, or on ``~/preview`` in a dry run."""

from __future__ import annotations

import array
import importlib
from typing import Any

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import JointState

from sparkrt_ros.convert.commands import CommandSet, needed_message_types
from sparkrt_ros.convert.contract import OUTPUT_TYPES, RobotContract
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.guard_limits import Float64Array
from sparkrt_ros.nodes.silent_topics import Link, type_name

PREVIEW_TOPIC = '~/preview'


class CommandOutlet:
    """The command publishers of one robot; used by one thread at a time.

    enabled: False sends everything to ``~/preview`` alone.
    published: commands sent to the robot. undelivered: those of them that at least one output
    had no subscriber for.
    """

    def __init__(self, node: Node, contract: RobotContract, events: qos.QosEvents) -> None:
        self._node = node
        classes = {name: message_class(name) for name in needed_message_types(contract)}
        self._commands = CommandSet(contract, classes)
        self._publishers: list[Any] = [
            node.create_publisher(
                classes[OUTPUT_TYPES[group.type]],
                group.topic,
                qos.COMMAND,
                event_callbacks=events.for_publisher(group.topic),
            )
            for group in contract.outputs
        ]
        self._carries_velocity = [
            bool(contract.velocity_mask[contract.output_columns(group)].any())
            for group in contract.outputs
        ]
        self._preview = qos.create_report_publisher(node, JointState, PREVIEW_TOPIC, qos.COMMAND)
        self._preview_message = JointState(
            name=list(contract.action), position=array.array('d', bytes(8 * len(contract.action)))
        )
        self._preview_view = np.frombuffer(self._preview_message.position, dtype=np.float64)
        self.enabled = True
        self.reset_counters()

    def set_period(self, period_s: float) -> None:
        """Commands come this far apart from now on."""
        self._commands.set_period(period_s)

    def reset_counters(self) -> None:
        self.published = 0
        self.undelivered = 0

    def send(self, command: Float64Array, *, now_ns: int) -> None:
        """Publish (A,) SI values on every output. Raises ActionError with nothing published."""
        messages = self._commands.fill(command, stamp_ns=now_ns)
        if not self.enabled:
            fill_stamp(self._preview_message.header.stamp, now_ns)
            np.copyto(self._preview_view, command)
            self._preview.publish(self._preview_message)
            return
        delivered = True
        for publisher, message in zip(self._publishers, messages, strict=True):
            delivered = delivered and publisher.get_subscription_count() > 0
            publisher.publish(message)
        self.published += 1
        self.undelivered += not delivered

    def stop_velocities(self, command: Float64Array, *, now_ns: int) -> None:
        """Publish the outputs that carry velocities, which are 0 in ``command``."""
        if not self.enabled:
            return
        messages = self._commands.fill(command, stamp_ns=now_ns)
        for index, publisher in enumerate(self._publishers):
            if self._carries_velocity[index]:
                publisher.publish(messages[index])

    def links(self) -> list[Link]:
        """Every command topic, for whoever finds out why nobody takes commands from it."""
        return [
            Link(
                topic=publisher.topic_name,
                type_name=type_name(publisher.msg_type),
                profile=publisher.qos_profile,
                matched=publisher.get_subscription_count(),
                who='controller',
            )
            for publisher in self._publishers
        ]

    def unmatched(self) -> tuple[str, ...]:
        """Full names of the command topics that nobody subscribes to."""
        return tuple(p.topic_name for p in self._publishers if p.get_subscription_count() == 0)

    def close(self) -> None:
        for publisher in (*self._publishers, self._preview):
            self._node.destroy_publisher(publisher)
        self._publishers = []


def message_class(name: str) -> Any:
    """Class of a ROS type such as ``std_msgs/msg/Float64MultiArray``."""
    package, folder, kind = name.split('/')
    return getattr(importlib.import_module(f'{package}.{folder}'), kind)

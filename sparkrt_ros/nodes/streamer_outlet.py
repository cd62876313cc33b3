"""Publishes commands on the outputs of a robot contract, or on ``~/preview`` in a dry run."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from rclpy.node import Node
from sensor_msgs.msg import JointState

from sparkrt_ros.convert.commands import CommandSet, check_rows, needed_message_types
from sparkrt_ros.convert.contract import OUTPUT_TYPES, RobotContract
from sparkrt_ros.convert.time import fill_stamp
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.command_sender import CommandSender, Load, SendError
from sparkrt_ros.nodes.guard_limits import Float64Array
from sparkrt_ros.nodes.serialized_command import SerializedCommand
from sparkrt_ros.nodes.silent_topics import Link, type_name
from sparkrt_ros.nodes.streamer_values import Sent

PREVIEW_TOPIC = '~/preview'
NOTHING = Load(())


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
        # Messages of their own: the forms are made again by the control thread, at any time.
        self._shapes = CommandSet(contract, classes)
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
        self._size = len(contract.action)
        form = SerializedCommand(partial(_preview, contract.action), size=self._size)
        self._preview_form, self._preview_load = form, Load([(self._preview, form.content)])
        self._sender = CommandSender()
        self._serialize()
        # Of what is ready, and of each load that is not known to have been sent: whether every
        # output has a subscriber; None: it is a preview.
        self._delivered: bool | None = None
        self._scheduled: deque[bool | None] = deque()
        self.enabled = True
        self.reset_counters()

    def set_period(self, period_s: float) -> None:
        """Commands come this far apart from now on."""
        for commands in (self._commands, self._shapes):
            commands.set_period(period_s)
        self._serialize()

    def reset_counters(self) -> None:
        self.published = 0
        self.undelivered = 0

    def prepare(self, command: Float64Array, *, now_ns: int) -> None:
        """Serialize (A,) SI values for every output. Raises ActionError, with none of it ready."""
        self._ready, self._delivered = NOTHING, None
        (values,) = check_rows(command, size=self._size, where='command')
        if not self.enabled:
            self._preview_form.write(values, stamp_ns=now_ns)
            self._ready = self._preview_load
            return
        for form in self._forms:
            form.write(values, stamp_ns=now_ns)
        self._ready = self._load
        self._delivered = all(p.get_subscription_count() > 0 for p in self._publishers)

    def _serialize(self) -> None:
        """Make the forms of the messages; again where their times have changed."""
        self._forms = [
            SerializedCommand(partial(self._shape, index), size=self._size)
            for index in range(len(self._publishers))
        ]
        contents = (form.content for form in self._forms)
        self._load = Load(zip(self._publishers, contents, strict=True))
        self._ready = NOTHING

    def _shape(self, index: int, command: Float64Array, stamp_ns: int) -> Any:
        return self._shapes.fill(command, stamp_ns=stamp_ns)[index]

    @property
    def thread_ids(self) -> tuple[int, ...]:
        """Of the threads of which any sends what is scheduled."""
        return self._sender.thread_ids

    def schedule(self, due_ns: int) -> None:
        """See Outlet."""
        self._sender.load(self._ready, due_ns=due_ns)
        self._scheduled.append(self._delivered)

    def settle(self) -> Sequence[Sent]:
        """See Outlet. Raises SendError, unless ROS is shutting down."""
        try:
            return self._note(self._sender.settle())
        except SendError:
            if self._node.context.ok():
                raise
        return self._note(self._sender.take())

    def cancel(self) -> Sequence[Sent]:
        """See Outlet."""
        self._sender.cancel()
        sent = self._note(self._sender.take())
        self._scheduled.clear()
        return sent

    def publish(self) -> None:
        """See Outlet. Raises SendError, unless ROS is shutting down."""
        self.schedule(0)
        self.settle()

    def _note(self, sent: Sequence[Sent]) -> Sequence[Sent]:
        for _ in sent:
            delivered = self._scheduled.popleft()
            if delivered is not None:
                self.published += 1
                self.undelivered += not delivered
        return sent

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
        self._sender.close()
        for publisher in (*self._publishers, self._preview):
            self._node.destroy_publisher(publisher)
        self._publishers = []


def _preview(names: Sequence[str], command: Float64Array, stamp_ns: int) -> JointState:
    message = JointState(name=list(names), position=command.tolist())
    fill_stamp(message.header.stamp, stamp_ns)
    return message


def message_class(name: str) -> Any:
    """Class of a ROS type such as ``std_msgs/msg/Float64MultiArray``."""
    package, folder, kind = name.split('/')
    return getattr(importlib.import_module(f'{package}.{folder}'), kind)

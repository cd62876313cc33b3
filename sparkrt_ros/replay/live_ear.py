"""Hears everything the two live nodes say during a replay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from sparkrt.msg import ActionChunk, PolicyStatus, Trace, TraceEntry
from sparkrt_ros.convert.contract import OUTPUT_TYPES, RobotContract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.streamer_outlet import message_class

# Deeper than what the nodes keep, so that a slow reader loses nothing on its own side.
EVERY = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


class TraceSide:
    """The traces of one node, joined. newest: None before the first."""

    def __init__(self) -> None:
        self.entries: list[TraceEntry] = []
        self.newest: Trace | None = None
        self.messages = 0
        self.missing = 0
        self.last: dict[int, TraceEntry] = {}

    @property
    def clock_ns(self) -> int:
        """Up to which time the node has thought."""
        return 0 if self.newest is None else stamp_to_ns(self.newest.header.stamp)

    def take(self, trace: Trace) -> None:
        """Add the next trace; entries that never came are counted as ``missing``."""
        self.missing = trace.first - len(self.entries)
        self.newest = trace
        self.entries.extend(trace.entries)
        for entry in trace.entries:
            self.last[entry.kind] = entry
            self.messages += entry.kind == TraceEntry.MESSAGE


class LiveEar:
    """A node that listens, on a thread of its own.

    ``changed`` is notified after everything that arrives or is discovered; what was heard may be
    read while it is held. commands: by the name of the contract's output.
    """

    def __init__(self, contract: RobotContract, *, domain: int, namespace: str) -> None:
        self.changed = threading.Condition()
        self.policy, self.streamer = TraceSide(), TraceSide()
        self.chunks: list[ActionChunk] = []
        self.commands: dict[str, list[Any]] = {group.name: [] for group in contract.outputs}
        self.status: PolicyStatus | None = None
        self.heard = 0
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = Node(
            'parity_player',
            context=self._context,
            namespace=f'/{namespace.strip("/")}',
            use_global_arguments=False,
        )
        self._subscriptions = [
            self._hear(Trace, 'sparkrt/trace', self.policy.take, qos.TRACE),
            self._hear(Trace, 'action_streamer/trace', self.streamer.take, qos.TRACE),
            self._hear(ActionChunk, 'sparkrt/action_chunk', self.chunks.append, EVERY),
            self._hear(PolicyStatus, 'sparkrt/status', self._take_status, EVERY),
            *(
                self._hear(
                    message_class(OUTPUT_TYPES[group.type]),
                    group.topic,
                    self.commands[group.name].append,
                    EVERY,
                )
                for group in contract.outputs
            ),
        ]
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._ending: rclpy.task.Future[None] = rclpy.task.Future()
        self._thread = threading.Thread(target=self._spin, name='parity ear', daemon=True)
        self._thread.start()

    @property
    def told(self) -> int:
        """How much of what the nodes did has arrived; their periodic reports do not count."""
        commands = sum(len(heard) for heard in self.commands.values())
        return len(self.policy.entries) + len(self.streamer.entries) + len(self.chunks) + commands

    def unmatched(self) -> list[str]:
        """Topics that nobody publishes yet."""
        return [s.topic_name for s in self._subscriptions if s.get_publisher_count() == 0]

    def publisher(self, kind: type, topic: str, profile: QoSProfile) -> Any:
        """A publisher whose matches count as news."""
        events = PublisherEventCallbacks(matched=lambda _: self._noticed(lambda: None))
        return self.node.create_publisher(kind, topic, profile, event_callbacks=events)

    def close(self) -> None:
        """End the thread and leave the domain."""
        self._ending.set_result(None)
        self._thread.join()
        self._executor.shutdown(timeout_sec=0.0)
        self.node.destroy_node()
        self._context.try_shutdown()

    def _spin(self) -> None:
        self._executor.spin_until_future_complete(self._ending)

    def _take_status(self, status: PolicyStatus) -> None:
        self.status = status

    def _hear(
        self, kind: type, topic: str, take: Callable[[Any], object], profile: QoSProfile
    ) -> Any:
        return self.node.create_subscription(
            kind, topic, lambda message: self._noticed(lambda: take(message)), profile
        )

    def _noticed(self, note: Callable[[], object]) -> None:
        with self.changed:
            note()
            self.heard += 1
            self.changed.notify_all()

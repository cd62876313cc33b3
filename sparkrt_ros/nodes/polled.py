"""Subscriptions that nobody is called for: whoever needs their messages takes them, many at once.

Each wake-up of an rclpy executor costs more than a small message, and whoever else wants the
interpreter has to wait for it meanwhile: joint drivers publish at up to 1 kHz, and an action chunk
is wanted by the control thread, which wakes up often enough by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message

# What ages is looked for this often within the time it may be old.
POLLS_PER_AGE = 3.0
SLOWEST_POLL_HZ = 10.0
FASTEST_POLL_HZ = 500.0


def poll_rate_hz(max_ages_s: Iterable[float]) -> float:
    """How often to poll streams that may be as old as that."""
    rate_hz = max(POLLS_PER_AGE / min(max_ages_s, default=1.0), SLOWEST_POLL_HZ)
    return min(rate_hz, FASTEST_POLL_HZ)


class PolledGroup(CallbackGroup):
    """Keeps the executor away from its subscriptions for as long as ``polled`` is true."""

    def __init__(self, *, polled: bool = True) -> None:
        super().__init__()
        self.polled = polled

    def can_execute(self, entity: Any) -> bool:
        return not self.polled

    def beginning_execution(self, entity: Any) -> bool:
        return True

    def ending_execution(self, entity: Any) -> None:
        pass


class PolledSubscription:
    """A subscription that is polled always (no ``callback``), or while ``polled`` is set.

    callback: for what the executor takes. events: told of by the executor, or while it keeps away
    by :meth:`look_for_events`; None: there are none. A waiting executor would be woken for them by
    every message, again and again until somebody has taken it. count: messages that were polled.
    """

    def __init__(
        self,
        node: Node,
        kind: type,
        topic: str,
        profile: QoSProfile,
        *,
        callback: Callable[[Any], None] | None = None,
        events: SubscriptionEventCallbacks | None = None,
    ) -> None:
        self._node = node
        self._kind = kind
        self.count = 0
        self._group = PolledGroup(polled=callback is None)
        self.subscription = node.create_subscription(
            kind,
            topic,
            callback or _ignore,
            profile,
            callback_group=self._group,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )
        self._handlers = []
        if events is not None:
            self._handlers = events.create_event_handlers(
                self._group, self.subscription.handle, topic
            )
        for handler in self._handlers:
            node.add_waitable(handler)

    @property
    def topic_name(self) -> str:
        return str(self.subscription.topic_name)

    @property
    def polled(self) -> bool:
        return self._group.polled

    @polled.setter
    def polled(self, polled: bool) -> None:
        self._group.polled = polled

    def get_publisher_count(self) -> int:
        return int(self.subscription.get_publisher_count())

    def take(self) -> Iterator[Any]:
        """Every message that has arrived, in order; for one thread at a time."""
        handle = self.subscription.handle
        while taken := handle.take_message(self._kind, False):  # noqa: FBT003
            self.count += 1
            yield taken[0]

    def look_for_events(self) -> None:
        """Tell of what has happened, if the executor does not. By the thread of the executor."""
        context = self._node.context
        if not self.polled or context.handle is None:
            return
        for handler in self._handlers:
            with context.handle, handler:
                wait_set = rclpy_implementation.WaitSet(0, 0, 0, 0, 0, 1, context.handle)
                wait_set.clear_entities()
                handler.add_to_wait_set(wait_set)
                wait_set.wait(0)
                news = handler.take_data() if handler.is_ready(wait_set) else None
            if news is not None:
                handler.callback(news)

    def newest_first(self) -> Iterator[Any]:
        """As :meth:`take`, from the last to the first; what is not asked for stays unread.

        To make Python objects of a message takes several times as long as to fetch its bytes.
        """
        handle, waiting = self.subscription.handle, []
        while taken := handle.take_message(self._kind, True):  # noqa: FBT003
            waiting.append(taken[0])
        self.count += len(waiting)
        while waiting:
            yield deserialize_message(waiting.pop(), self._kind)

    def destroy(self) -> None:
        handlers, self._handlers = self._handlers, []
        for handler in handlers:
            self._node.remove_waitable(handler)
            handler.destroy()
        self._node.destroy_subscription(self.subscription)


def _ignore(_: Any) -> None:
    pass

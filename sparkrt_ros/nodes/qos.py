"""Every QoS profile of the nodes, by purpose, and the events that tell of a mismatch."""

from __future__ import annotations

import threading
from typing import Any

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_policy_name_from_kind,
)

from sparkrt_ros.nodes.silent_topics import disagree


def _profile(
    *, reliable: bool, depth: int, durability: DurabilityPolicy = DurabilityPolicy.VOLATILE
) -> QoSProfile:
    reliability = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=reliability,
        durability=durability,
    )


# Inputs. A best-effort subscription matches every publisher.
CAMERA = _profile(reliable=False, depth=5)
STATE = _profile(reliable=False, depth=20)
# Taken many at once, of which none should be missing: what is kept is shared by all publishers of
# a topic, and a fast one would crowd out one that seldom reports.
STATE_BATCH = _profile(reliable=False, depth=300)
# Outputs and what travels between the nodes. Reliable, since that satisfies every subscription.
COMMAND = _profile(reliable=True, depth=1)
CHUNK = _profile(reliable=True, depth=2)
# As many as may arrive between two commands: what is lost here nobody counts.
CHUNKS_TAKEN = _profile(reliable=True, depth=16)
PROGRESS = _profile(reliable=True, depth=1)
STATUS = _profile(reliable=True, depth=1)
# Each is judged, and the newest good one counts.
PROMPT = _profile(reliable=True, depth=10)
# Pictures for people: a slow viewer must not hold anything up.
DEBUG = _profile(reliable=False, depth=1)
DIAGNOSTICS = _profile(reliable=True, depth=10)
# Whoever comes late gets it all: what was done depends on everything before it.
TRACE = _profile(reliable=True, depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
LATCHED = _profile(reliable=True, depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def create_report_publisher(node: Node, kind: type, topic: str, profile: QoSProfile) -> Any:
    """A publisher of reports, which waits for no events: its subscribers are told of a mismatch
    by their own side, and each event that is waited for costs at every wake-up of the executor.
    """
    events = PublisherEventCallbacks(use_default_callbacks=False)
    return node.create_publisher(kind, topic, profile, event_callbacks=events)


class QosEvents:
    """Logs every incompatible endpoint with its topic and policy, and counts them.

    The middleware sends nothing to an incompatible endpoint and says so only by this event.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._incompatible: dict[str, str] = {}
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def incompatible(self) -> dict[str, str]:
        """Topic -> the policy that did not fit, for every topic where one still does not."""
        with self._lock:
            seen = dict(self._incompatible)
        return {topic: policy for topic, policy in seen.items() if disagree(self._node, topic)}

    def forget(self) -> None:
        """Start over, after the subscriptions and publishers are gone."""
        with self._lock:
            self._incompatible.clear()
            self._count = 0

    def for_subscription(self, topic: str) -> SubscriptionEventCallbacks:
        """Callbacks to pass as ``event_callbacks`` of a subscription to ``topic``."""

        def report(event: Any) -> None:
            self._report(topic, event, 'publisher offers', 'received from it')

        return SubscriptionEventCallbacks(incompatible_qos=report, use_default_callbacks=False)

    def for_publisher(self, topic: str) -> PublisherEventCallbacks:
        """Callbacks to pass as ``event_callbacks`` of a publisher on ``topic``."""

        def report(event: Any) -> None:
            self._report(topic, event, 'subscription requests', 'sent to it')

        return PublisherEventCallbacks(incompatible_qos=report, use_default_callbacks=False)

    def _report(self, topic: str, event: Any, who: str, consequence: str) -> None:
        policy = _policy_name(event.last_policy_kind)
        name = self._node.resolve_topic_name(topic)
        with self._lock:
            self._incompatible[name] = policy
            self._count += event.total_count_change
        self._node.get_logger().error(
            f"incompatible QoS on '{name}': a {who} another {policy}; "
            f'nothing is {consequence} until both sides agree'
        )


def _policy_name(kind: Any) -> str:
    return str(qos_policy_name_from_kind(kind)).replace('_QOS_POLICY', '').lower()

"""Why nothing comes on a topic, or nobody takes what goes out: the likely cause, named."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Infinite
from rclpy.node import Node
from rclpy.qos import (
    HistoryPolicy,
    LivelinessPolicy,
    QoSCompatibility,
    QoSProfile,
    qos_check_compatible,
)
from rclpy.subscription import Subscription

from sparkrt_ros.convert.contract_types import StreamTiming

PROFILE_VARIABLE = 'FASTDDS_DEFAULT_PROFILES_FILE'
# Longer than discovery and the slowest camera need.
PATIENCE_S = 2.0
# Between two looks at the graph for one topic.
LOOK_S = 1.0
MOST_SUGGESTIONS = 3
# Where nobody else is seen, the robot is elsewhere.
OUR_NODES = frozenset({'sparkrt', 'action_streamer'})


@dataclass(frozen=True, kw_only=True)
class Link:
    """One subscription or publisher of ours.

    topic: full name. type_name: as ``sensor_msgs/msg/Image``. matched: endpoints of the other
    side it is connected to. count: messages that came; for a publisher, None. patience_s: how long
    it may be silent. who: is expected at the other end.
    """

    topic: str
    type_name: str
    profile: QoSProfile
    matched: int
    count: int | None = None
    patience_s: float = PATIENCE_S
    who: str = 'driver'

    @property
    def is_input(self) -> bool:
        return self.count is not None


class Doctor:
    """Looks at the ROS graph as discovery sees it; some tenths of a millisecond each time."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def cause(self, link: Link) -> str:
        """Why nothing passes through ``link``, in words a user can act on."""
        try:
            return self._cause(link)
        except Exception as error:  # what is only a hint must not end a node
            return f'nothing passes on {link.topic}; looking for the cause failed: {error}'

    def _cause(self, link: Link) -> str:
        others = [info for info in self._other_side(link, link.topic) if not self._is_mine(info)]
        if not others:
            return self._nobody(link)
        same = [info for info in others if info.topic_type == link.type_name]
        if not same:
            return _other_type(link, others)
        problems = [_problem(link, info) for info in same]
        if link.matched == 0 and all(problems):
            return f'incompatible QoS with {_names(same)}: {problems[0]}'
        if not link.is_input:
            return f'{_names(same)} is known but not connected yet'
        return _stuck(link, same)

    def _other_side(self, link: Link, topic: str) -> list[Any]:
        if link.is_input:
            return list(self._node.get_publishers_info_by_topic(topic))
        return list(self._node.get_subscriptions_info_by_topic(topic))

    def _is_mine(self, info: Any) -> bool:
        mine = self._node.get_name(), self._node.get_namespace()
        return (info.node_name, info.node_namespace) == mine

    def _nobody(self, link: Link) -> str:
        verb = 'publishes on' if link.is_input else 'subscribes to'
        text = f'nobody {verb} {link.topic}'
        if OUR_NODES.issuperset({*self._node.get_node_names()} - {self._node.get_name()}):
            domain = os.environ.get('ROS_DOMAIN_ID', '0')
            return (
                f'{text}; no other node is seen in domain {domain}: compare ROS_DOMAIN_ID and '
                'ROS_AUTOMATIC_DISCOVERY_RANGE of both sides'
            )
        close = self._similar(link)
        if close:
            return f'{text}; there is {" and ".join(close)}: remap, or correct the contract'
        return f'{text}: is the {link.who} running, in this namespace?'

    def _similar(self, link: Link) -> list[str]:
        """Topics of this type with a node of somebody else at their other end, the most alike
        first.
        """
        names = [
            name
            for name, types in self._node.get_topic_names_and_types()
            if link.type_name in types
            and name != link.topic
            and any(i.node_name not in OUR_NODES for i in self._other_side(link, name))
        ]
        return difflib.get_close_matches(link.topic, names, n=MOST_SUGGESTIONS, cutoff=0.3)


class SilenceWatch:
    """Which inputs have been silent for how long, and why. One thread.

    tell: called with a line when an input falls silent for another reason than before, and when
    it speaks again.
    """

    def __init__(self, doctor: Doctor, *, tell: Callable[[str], object]) -> None:
        self._doctor = doctor
        self._tell = tell
        self._heard: dict[str, tuple[int | None, float]] = {}
        self._looked_s: dict[str, float] = {}
        self.causes: dict[str, str] = {}

    def update(self, inputs: Sequence[Link], *, now_s: float) -> None:
        """Look at the counters; ``now_s``: of a steady clock."""
        topics = {link.topic for link in inputs}
        for topic in self._heard.keys() - topics:
            del self._heard[topic]
            self.causes.pop(topic, None)
        for link in inputs:
            count, since_s = self._heard.get(link.topic, (None, now_s))
            if count != link.count:
                self._heard[link.topic] = (link.count, now_s)
                self._speaks(link.topic, first=count is None)
            elif now_s - since_s >= link.patience_s and self._may_look(link.topic, now_s):
                self._is_silent(link)

    def _may_look(self, topic: str, now_s: float) -> bool:
        may = now_s - self._looked_s.get(topic, now_s - LOOK_S) >= LOOK_S
        if may:
            self._looked_s[topic] = now_s
        return may

    def _speaks(self, topic: str, *, first: bool) -> None:
        if self.causes.pop(topic, None) is not None and not first:
            self._tell(f'{topic}: messages come again')

    def _is_silent(self, link: Link) -> None:
        cause = self._doctor.cause(link)
        if self.causes.get(link.topic) != cause:
            self.causes[link.topic] = cause
            self._tell(f'nothing comes: {cause}')


def input_link(
    subscription: Subscription[Any],
    *,
    count: int,
    patience_s: float = PATIENCE_S,
    who: str = 'driver',
) -> Link:
    """The link of a subscription; see Link for the options."""
    return Link(
        topic=subscription.topic_name,
        type_name=type_name(subscription.msg_type),
        profile=subscription.qos_profile,
        matched=subscription.get_publisher_count(),
        count=count,
        patience_s=patience_s,
        who=who,
    )


def disagree(node: Node, topic: str) -> bool:
    """Whether, as discovery sees it, a publisher and a subscription of ``topic`` do not fit."""
    publishers = node.get_publishers_info_by_topic(topic)
    subscriptions = node.get_subscriptions_info_by_topic(topic)
    pairs = [(p.qos_profile, s.qos_profile) for p in publishers for s in subscriptions]
    return any(_clash(publisher, subscription) for publisher, subscription in pairs)


def patience_s(timing: StreamTiming, *, count: int) -> float:
    """How long a stream may be silent: never for ever, but for values sent when they change."""
    if timing.align == 'hold':
        return math.inf if count else PATIENCE_S
    return max(PATIENCE_S, timing.max_age_s)


def type_name(kind: type) -> str:
    """ROS's name of a message class: ``sensor_msgs/msg/Image``."""
    return f'{kind.__module__.partition(".")[0]}/msg/{kind.__name__}'


def _other_type(link: Link, others: Sequence[Any]) -> str:
    found = ', '.join(sorted({info.topic_type for info in others}))
    return (
        f'{_names(others)} uses {link.topic} as {found}, expected {link.type_name}: correct the '
        'type in the contract, or the topic'
    )


def _problem(link: Link, info: Any) -> str:
    """Which policies do not fit; empty: they do."""
    pair = (info.qos_profile, link.profile) if link.is_input else (link.profile, info.qos_profile)
    return _clash(*pair)


def _clash(publisher: QoSProfile, subscription: QoSProfile) -> str:
    compatibility, reason = qos_check_compatible(_spelt_out(publisher), _spelt_out(subscription))
    if compatibility != QoSCompatibility.ERROR:
        return ''
    return str(reason).replace(';ERROR: ', ', ').removeprefix('ERROR: ').strip('; ')


def _spelt_out(profile: QoSProfile) -> QoSProfile:
    """What a default stands for, where the comparison would take it for a promise of its own."""

    def span(duration: Any) -> Any:
        return duration if duration.nanoseconds else Infinite

    automatic = profile.liveliness == LivelinessPolicy.SYSTEM_DEFAULT
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=profile.reliability,
        durability=profile.durability,
        liveliness=LivelinessPolicy.AUTOMATIC if automatic else profile.liveliness,
        deadline=span(profile.deadline),
        lifespan=span(profile.lifespan),
        liveliness_lease_duration=span(profile.liveliness_lease_duration),
    )


def _stuck(link: Link, others: Sequence[Any]) -> str:
    so_far = 'nothing came yet' if link.count == 0 else 'nothing comes any more'
    text = f'{_names(others)} is connected on {link.topic}, but {so_far}'
    if link.type_name.endswith('/Image') and not os.environ.get(PROFILE_VARIABLE):
        return (
            f'{text}: large pictures need {PROFILE_VARIABLE} set to config/fastdds.xml on both '
            'sides; if they have it, the driver is stuck'
        )
    return (
        f'{text}: the driver is stuck or paused; or, between hosts and containers, a firewall or '
        f'shared memory that is not shared (compare: ros2 topic hz {link.topic})'
    )


def _names(infos: Sequence[Any]) -> str:
    return ', '.join(sorted({_name(info) for info in infos}))


def _name(info: Any) -> str:
    """Discovery may know an endpoint before it knows whose it is."""
    if 'UNKNOWN' in info.node_name:
        return 'a node whose name is not known yet'
    return f'{info.node_namespace.rstrip("/")}/{info.node_name}'

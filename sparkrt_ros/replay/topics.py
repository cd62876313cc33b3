"""Which topics of a bag are the ones that a robot contract names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkrt_ros.convert.contract import (
    CAMERA_TYPES,
    OUTPUT_TYPES,
    STATE_TYPES,
    CameraSpec,
    OutputGroup,
    RobotContract,
    StateStream,
)
from sparkrt_ros.replay.bag import TopicInfo
from sparkrt_ros.runtime.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NeededTopic:
    """topic: as the contract writes it, relative to the robot's namespace unless it has a slash
    in front. type: ROS type. purpose: for messages.
    """

    topic: str
    type: str
    purpose: str

    def full_name(self, namespace: str) -> str:
        """The absolute name in ``namespace``."""
        if self.topic.startswith('/'):
            return self.topic
        return f'{_absolute(namespace)}/{self.topic}'


def needed_for_observations(
    cameras: Iterable[CameraSpec], streams: Iterable[StateStream]
) -> list[NeededTopic]:
    """What an observation is made of."""
    return [
        *(
            NeededTopic(topic=c.topic, type=CAMERA_TYPES[c.type], purpose=f'camera {c.name}')
            for c in cameras
        ),
        *(
            NeededTopic(topic=s.topic, type=STATE_TYPES[s.type], purpose=f'joints {s.name}')
            for s in streams
        ),
    ]


def needed_for_commands(contract: RobotContract) -> list[NeededTopic]:
    """What the robot was told."""
    return [output_topic(group) for group in contract.outputs]


def output_topic(group: OutputGroup) -> NeededTopic:
    """The topic of one output."""
    return NeededTopic(
        topic=group.topic, type=OUTPUT_TYPES[group.type], purpose=f'commands {group.name}'
    )


def resolve_topics(
    needed: Iterable[NeededTopic], topics: Mapping[str, TopicInfo], *, namespace: str = ''
) -> dict[str, str]:
    """Contract topic -> topic of the bag.

    Nothing is guessed: raises ConfigError, listing what is needed and what the bag has, where a
    topic is missing or of another type, and names the namespace in which all would be found.
    """
    wanted = list(needed)
    problems = [text for item in wanted if (text := _problem(item, topics, namespace))]
    if problems:
        raise ConfigError(
            'topics of the bag',
            found='; '.join(problems) + f'; the bag has {_listed(topics)}',
            expected=', '.join(
                f'{item.full_name(namespace)} [{item.type}] for {item.purpose}' for item in wanted
            ),
            remedy=_remedy(wanted, topics, namespace),
        )
    return {item.topic: item.full_name(namespace) for item in wanted}


def _problem(item: NeededTopic, topics: Mapping[str, TopicInfo], namespace: str) -> str:
    name = item.full_name(namespace)
    info = topics.get(name)
    if info is None:
        return f'no {name}'
    if info.type != item.type:
        return f'{name} of type {info.type or "unknown"}'
    return '' if info.count else f'{name} without a message'


def _remedy(
    wanted: list[NeededTopic], topics: Mapping[str, TopicInfo], namespace: str
) -> str | None:
    fitting = [
        other
        for other in _namespaces(wanted, topics)
        if other != _absolute(namespace)
        and not any(_problem(item, topics, other) for item in wanted)
    ]
    if len(fitting) == 1:
        return f'all of them are there in another namespace: add --namespace {fitting[0] or "/"}'
    if fitting:
        return f'choose the robot: --namespace {" or ".join(name or "/" for name in fitting)}'
    return 'correct the topics of the robot contract, or record the bag with them'


def _namespaces(wanted: list[NeededTopic], topics: Mapping[str, TopicInfo]) -> list[str]:
    """Every namespace in which one of the relative topics exists."""
    endings = [f'/{item.topic}' for item in wanted if not item.topic.startswith('/')]
    found = {
        name.removesuffix(ending) for name in topics for ending in endings if name.endswith(ending)
    }
    return sorted(found)


def _absolute(namespace: str) -> str:
    """``/robot1`` for any way of writing it, an empty text for the root."""
    stripped = namespace.strip('/')
    return f'/{stripped}' if stripped else ''


def _listed(topics: Mapping[str, TopicInfo]) -> str:
    items = [f'{info.name} [{info.type or "unknown"}, {info.count}]' for info in topics.values()]
    return ', '.join(items) or 'no topics'

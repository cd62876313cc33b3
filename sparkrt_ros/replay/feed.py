"""The messages of a bag, each to whoever would have subscribed to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.observation_intake import ObservationIntake
from sparkrt_ros.nodes.pose_merger import PoseMerger
from sparkrt_ros.nodes.streamer_core import Pose
from sparkrt_ros.replay.bag import Bag, BagMessage
from sparkrt_ros.replay.clock import CLOCK_TYPE, MessageTimes
from sparkrt_ros.replay.history import EventLog, TopicLog
from sparkrt_ros.replay.lazy import LazyMessage
from sparkrt_ros.replay.recorded import RecordedCommands
from sparkrt_ros.replay.topics import (
    NeededTopic,
    needed_for_commands,
    needed_for_observations,
    resolve_topics,
)
from sparkrt_ros.replay.watching import EventWarnings
from sparkrt_ros.runtime.errors import MessageError

Handler = Callable[[BagMessage, int], None]


class Feed:
    """What the two nodes subscribe to, and the recorded commands where they are wanted.

    on_jump: see ObservationBuffer. Raises ConfigError where the bag lacks a topic.
    histories: by topic of the bag, what came. pose: the newest one, None before the first and
    once taken.
    """

    def __init__(
        self,
        bag: Bag,
        loaded: LoadedPolicy,
        events: EventLog,
        times: MessageTimes,
        *,
        namespace: str,
        max_skew_s: float,
        with_commands: bool,
        on_jump: Callable[[int, int], None],
    ) -> None:
        contract = loaded.contract
        self.warn = EventWarnings(events)
        self.intake = ObservationIntake(
            contract,
            cameras=loaded.binding.cameras,
            with_state=loaded.capabilities.state_size > 0,
            max_skew_s=max_skew_s or contract.max_skew_s,
            warn=self.warn,
            on_jump=on_jump,
        )
        self.poses = PoseMerger(contract, self._keep_pose)
        self.recorded = RecordedCommands(contract) if with_commands else None
        self.histories: dict[str, TopicLog] = {}
        self._pose: Pose | None = None
        self._new_joints = False
        self._handlers: dict[str, list[Handler]] = {}
        names = _resolve(bag, loaded, times, namespace=namespace, with_commands=with_commands)
        self._connect(contract, names)
        self.topics = frozenset(names.values())

    def deliver(self, message: BagMessage, now_ns: int) -> None:
        """Hand over a message that arrives at ``now_ns``."""
        self.warn.now_ns = now_ns
        self.intake.buffer.advance(now_ns)
        for handler in self._handlers.get(message.topic, ()):
            handler(message, now_ns)

    def take_pose(self, now_ns: int) -> Pose | None:
        """The pose, if it is newer than at the last call."""
        if self._new_joints:
            self._new_joints = False
            self.poses.deliver(now_ns)
        pose, self._pose = self._pose, None
        return pose

    def _keep_pose(self, pose: Pose) -> None:
        self._pose = pose

    def _connect(self, contract: RobotContract, names: dict[str, str]) -> None:
        for camera in self.intake.cameras.values():
            log = self._log(camera.name, names[camera.topic])
            self._add(names[camera.topic], partial(self._image, camera.name, log))
        for stream in contract.state_streams:
            log = self._log(stream.name, names[stream.topic])
            self._add(names[stream.topic], partial(self._joints, stream.name, log))
        if self.recorded is not None:
            for group in contract.outputs:
                self._add(names[group.topic], partial(self.recorded.take, group.name))

    def _add(self, topic: str, handler: Handler) -> None:
        self._handlers.setdefault(topic, []).append(handler)

    def _log(self, name: str, topic: str) -> TopicLog:
        return self.histories.setdefault(topic, TopicLog(name=name, topic=topic))

    def _image(self, name: str, log: TopicLog, message: BagMessage, now_ns: int) -> None:
        stored = self.intake.image(name, LazyMessage(message), now_ns=now_ns)
        log.add(stamp_ns=_stamp_ns(message, now_ns), received_ns=now_ns, stored=stored)

    def _joints(self, name: str, log: TopicLog, message: BagMessage, now_ns: int) -> None:
        content = LazyMessage(message)
        stored = True
        if name in self.intake.state_streams:
            before = self.intake.bad_messages
            self.intake.joints(name, content, now_ns=now_ns)
            stored = self.intake.bad_messages == before
        try:
            self.poses.update(name, content, now_ns=now_ns)
            self._new_joints = True
        except MessageError:
            stored = False
        log.add(stamp_ns=_stamp_ns(message, now_ns), received_ns=now_ns, stored=stored)


def _resolve(
    bag: Bag, loaded: LoadedPolicy, times: MessageTimes, *, namespace: str, with_commands: bool
) -> dict[str, str]:
    """Contract topic -> topic of the bag, for everything that is read."""
    contract = loaded.contract
    needed = needed_for_observations(loaded.binding.cameras, contract.state_streams)
    if with_commands:
        needed += needed_for_commands(contract)
    if times.needs_clock:
        needed.append(
            NeededTopic(topic=times.clock_topic, type=CLOCK_TYPE, purpose='the time chosen')
        )
    return resolve_topics(needed, bag.topics, namespace=namespace)


def _stamp_ns(message: BagMessage, now_ns: int) -> int:
    """Of the header; of the arrival where there is none, or none that can be read."""
    try:
        return message.stamp_ns or now_ns
    except MessageError:
        return now_ns

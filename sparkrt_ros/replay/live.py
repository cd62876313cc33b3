"""Plays a bag into the running nodes and compares what they publish with the offline run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes.observation_intake import with_zero_stamps
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import pacing_config
from sparkrt_ros.replay.arms import ArmSpec, RunningArm, check_replayable, load_arm, node_values
from sparkrt_ros.replay.bag import Bag, BagMessage, open_bag
from sparkrt_ros.replay.clock import MessageTimes
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.replay.live_nodes import LiveNodes, LocalDomain
from sparkrt_ros.replay.live_offline import MessageKey, numbered
from sparkrt_ros.replay.live_player import Input, LivePlayer, Timed
from sparkrt_ros.replay.live_result import LiveResult
from sparkrt_ros.replay.live_verdict import Judge, Played
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.topics import needed_for_observations, resolve_topics

EAGER = ArmSpec(backend='eager')
START_LIMIT_S = 180.0

# Called with the number of a message within its topic; True: do not play it.
Withhold = Callable[[MessageKey], bool]


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """robot, checkpoint, parameters: of the policy node. form: what it serves.

    replay: its latency and rate are not used, since the nodes have their own. rate: None goes step
    by step, so that nothing is lost; 1.0 is as fast as it was recorded. withhold: messages of the
    bag that are not played. logs: folder for what the nodes print. seed: of the noise of a policy
    that draws any, the same for the nodes and offline.
    """

    bag: Path
    robot: str
    checkpoint: Path
    form: ArmSpec = EAGER
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    rate: float | None = None
    withhold: Withhold = lambda _: False
    logs: Path = Path('log/live')
    seed: int = 0


def run_live(
    options: LiveOptions, *, progress: Callable[[str], None] = lambda _: None
) -> LiveResult:
    """Start both nodes, play the bag to them, and judge. The bag is not written to.

    Needs ROS. Raises what ``run_parity`` raises, ProcessDied where a node ends, LiveStalled where
    one does not answer.
    """
    with LiveRun(options, progress=progress) as run:
        return run.judge(run.play())


class LiveRun(AbstractContextManager['LiveRun']):
    """A bag and a policy for one live replay; see ``run_live``."""

    def __init__(
        self, options: LiveOptions, *, progress: Callable[[str], None] = lambda _: None
    ) -> None:
        self._options, self._progress = options, progress
        self._parameters = {
            **options.parameters,
            **vars(options.form),
            'robot': options.robot,
            'checkpoint': str(options.checkpoint),
        }
        self._values = node_values(self._parameters)
        choice = str(self._values['observation.on_zero_stamp'])
        self._contract = with_zero_stamps(load_contract(options.robot), choice)
        self._stack = ExitStack()

    def __enter__(self) -> LiveRun:
        with ExitStack() as stack:
            self._bag = stack.enter_context(open_bag(self._options.bag))
            self._progress(f'loading {self._options.form}')
            self._arm = load_arm(self._options.form, values=self._values, contract=self._contract)
            stack.callback(self._arm.close)
            without = '' if self._options.rate is None else '--live-rate'
            check_replayable(self._arm.loaded, self._values, without=without)
            if self._arm.loaded.capabilities.noise_shape:
                self._parameters['vla.seed'] = self._options.seed
            namespace = self._options.replay.namespace
            self._inputs = make_inputs(self._bag, self._arm, namespace=namespace)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def play(self) -> Played:
        """Start both nodes, play the bag, end the nodes."""
        options, contract = self._options, self._contract
        namespace = options.replay.namespace
        with ExitStack() as stack:
            domain = stack.enter_context(LocalDomain())
            ear = LiveEar(contract, domain=domain.number, namespace=namespace)
            stack.callback(ear.close)
            nodes = LiveNodes(self._parameters, namespace=namespace, logs=options.logs)
            stack.enter_context(nodes)
            player = LivePlayer(
                ear,
                self._inputs.values(),
                period_ns=round(1e9 / contract.control_rate_hz),
                check=nodes.processes.check,
            )
            self._progress('starting the nodes')
            player.wait_ready(limit_s=START_LIMIT_S)
            self._progress('playing')
            messages = (
                timed
                for key, timed in timed_messages(self._bag, self._inputs, options.replay)
                if not options.withhold(key)
            )
            if options.rate is None:
                player.play(messages, max_chunks=options.replay.max_chunks)
            else:
                player.play_at(messages, rate=options.rate)
            return Played.of(ear, self._inputs, sent=player.sent)

    def judge(self, played: Played) -> LiveResult:
        """Compare what was heard with the offline run."""
        self._progress('comparing')
        judge = Judge(
            played,
            bag=self._bag,
            arm=self._arm,
            options=self._options.replay,
            replay={
                'pacing': pacing_config(self._values, self._arm.loaded),
                'task': str(self._values['prompt']),
                'max_skew_s': self._values['observation.max_skew_s'],
            },
            messages=lambda: self._considered(played.sent),
            seed=self._options.seed,
        )
        rate = self._options.rate
        return judge.step_by_step() if rate is None else judge.at_rate(rate)

    def _considered(self, sent: int) -> Iterator[tuple[MessageKey, BagMessage]]:
        """The messages up to the last that was played, those that were withheld included."""
        for key, timed in timed_messages(self._bag, self._inputs, self._options.replay):
            if timed.message is None:
                continue
            if not self._options.withhold(key):
                if sent == 0:
                    return
                sent -= 1
            yield key, timed.message


def make_inputs(bag: Bag, arm: RunningArm, *, namespace: str) -> dict[str, Input]:
    """What the nodes subscribe to, by topic of the bag. Raises ConfigError for what it lacks."""
    loaded = arm.loaded
    contract, cameras = loaded.contract, loaded.binding.cameras
    needed = needed_for_observations(cameras, contract.state_streams)
    names = resolve_topics(needed, bag.topics, namespace=namespace)
    readers: dict[str, tuple[list[str], list[str]]] = {}
    for camera in cameras:
        readers.setdefault(names[camera.topic], ([], []))[0].append(camera.name)
    for stream in contract.state_streams:
        to_policy, to_streamer = readers.setdefault(names[stream.topic], ([], []))
        to_policy += [stream.name] * (loaded.capabilities.state_size > 0)
        to_streamer.append(stream.name)
    return {
        topic: Input(
            topic=topic,
            type=bag.topics[topic].type,
            to_policy=tuple(to_policy),
            to_streamer=tuple(to_streamer),
        )
        for topic, (to_policy, to_streamer) in readers.items()
    }


def timed_messages(
    bag: Bag, inputs: Mapping[str, Input], options: ReplayOptions
) -> Iterator[tuple[MessageKey, Timed]]:
    """What is played when; a recorded /clock only tells the time."""
    times = MessageTimes(options.time)
    topics = {*inputs, times.clock_topic} if times.needs_clock else {*inputs}
    for key, message in numbered(bag.messages(topics, order=times.order)):
        time_ns = times.arrival_ns(message)
        if time_ns is not None:
            sent: BagMessage | None = message if message.topic in inputs else None
            yield key, Timed(time_ns=time_ns, message=sent)

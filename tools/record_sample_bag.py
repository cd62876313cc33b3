#!/usr/bin/env python3
"""Record the bags of `bags/` from the embedded robot, anew and the same each time.

    .venv/bin/python tools/record_sample_bag.py [--output bags] [--seed 11]

The simulated robot stands in for a bag that is being recorded, and is played like any other one:
in made-up time, through the code of the live nodes. Only that the policy really answers here, and
its commands move the arm. So what is recorded follows from the seed, the policy and the
arithmetic of the machine alone, and `sparkrt parity --against recorded` finds the same commands.
"""

from __future__ import annotations

import argparse
import heapq
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools')]

from sample_bag_files import Messages, write_mcap, write_sqlite  # noqa: E402

from sparkrt_ros.convert.commands import CommandSet  # noqa: E402
from sparkrt_ros.convert.contract import RobotContract, load_contract  # noqa: E402
from sparkrt_ros.convert.time import seconds_to_ns  # noqa: E402
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy, prepare  # noqa: E402
from sparkrt_ros.nodes.pacing import PacingConfig  # noqa: E402
from sparkrt_ros.nodes.policy_parameters import PolicySettings  # noqa: E402
from sparkrt_ros.replay.bag import BagMessage, TopicInfo  # noqa: E402
from sparkrt_ros.replay.bag_types import TypeLibrary  # noqa: E402
from sparkrt_ros.replay.commands import OfflineStreamer, Playing  # noqa: E402
from sparkrt_ros.replay.offline import Replay, ReplayOptions, playing_of  # noqa: E402
from sparkrt_ros.runtime.config import RuntimeConfig  # noqa: E402
from sparkrt_ros.runtime.types import FloatArray, Observation  # noqa: E402
from sparkrt_ros.sim.arm import JOINT_NAMES  # noqa: E402
from sparkrt_ros.sim.task import CAMERAS, PickPlace  # noqa: E402

CHECKPOINT = ROOT / 'checkpoints' / 'embedded_pick_place'
START_NS = 1_767_603_600_000_000_000  # 2026-01-05 09:00:00 UTC
MS = 1_000_000
STEP_NS = 5 * MS
JOINT_STEPS = 2
IMAGE_RATE_HZ = 30.0
# How long messages are on their way, and an inference takes on the robot's computer.
JOINTS_DELAY_NS, IMAGE_DELAY_NS = 300_000, 4 * MS
INFERENCE_S = 0.040
# After success the operator pauses the policy, and then stops recording.
PAUSE_NS, STOP_NS = 3000 * MS, 5000 * MS
LIMIT_NS = 12_000 * MS
SHORT_NS = 600 * MS
COMMANDS = 'std_msgs/msg/Float64MultiArray'


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One message as it arrived: ``kind`` is its ROS type, ``data`` CDR."""

    topic: str
    kind: str
    log_ns: int
    data: bytes


class SimulatedRobot:
    """A bag whose messages come into being while they are read.

    newest_command: asked before each step of physics; (5,) or None. pause: called once.
    """

    def __init__(self, *, seed: int, contract: RobotContract, limit_ns: int) -> None:
        self.recorded: list[Recorded] = []
        self._limit_ns = limit_ns
        self.newest_command: Callable[[], np.ndarray | None] = lambda: None
        self.pause: Callable[[], None] = lambda: None
        self.success_ns: int | None = None
        self._task = PickPlace(seed=seed)
        self._make = Messages()
        self._library = TypeLibrary()
        self._pictures = 0
        self._on_their_way: list[tuple[int, int, BagMessage]] = []
        kinds = {'joint_states': 'sensor_msgs/msg/JointState'}
        kinds |= {f'{camera}_camera/image_raw': 'sensor_msgs/msg/Image' for camera in CAMERAS}
        kinds |= {group.topic: COMMANDS for group in contract.outputs}
        self.topics = {
            f'/{topic}': TopicInfo(name=f'/{topic}', type=kind, count=1)
            for topic, kind in kinds.items()
        }

    def messages(
        self, topics: Collection[str] | None = None, *, order: str = 'log'
    ) -> Iterator[BagMessage]:
        """See Bag.messages; in order of arrival."""
        paused = False
        for step in range(1, self._limit_ns // STEP_NS):
            now_ns = START_NS + step * STEP_NS
            while self._on_their_way and self._on_their_way[0][0] <= now_ns:
                yield heapq.heappop(self._on_their_way)[2]
            self._advance(step, now_ns)
            since_ns = -1 if self.success_ns is None else now_ns - self.success_ns
            if since_ns >= PAUSE_NS and not paused:
                paused = True
                self.pause()
            if since_ns >= STOP_NS:
                return

    def record(self, topic: str, content: tuple[str, bytes], log_ns: int) -> Recorded:
        """Keep a message that went over a topic."""
        kind, data = content
        self.recorded.append(Recorded(topic=f'/{topic}', kind=kind, log_ns=log_ns, data=data))
        return self.recorded[-1]

    def _advance(self, step: int, now_ns: int) -> None:
        task = self._task
        command = self.newest_command()
        if command is not None:
            task.arm.command(command)
        task.substep()
        if step % JOINT_STEPS == 0:
            arm = task.arm
            content = self._make.joint_state(
                now_ns, JOINT_NAMES, arm.positions_rad, arm.velocities_rad_s
            )
            self._send('joint_states', content, now_ns + JOINTS_DELAY_NS)
        if (now_ns - START_NS) * IMAGE_RATE_HZ >= self._pictures * 1e9:
            self._pictures += 1
            for number, (camera, pixels) in enumerate(task.render().items(), start=1):
                content = self._make.image(now_ns, f'{camera}_camera_optical', pixels)
                self._send(f'{camera}_camera/image_raw', content, now_ns + number * IMAGE_DELAY_NS)
        if self.success_ns is None and task.success:
            self.success_ns = now_ns

    def _send(self, topic: str, content: tuple[str, bytes], log_ns: int) -> None:
        recorded = self.record(topic, content, log_ns)
        decoder: Any = self._library.decoder(recorded.kind, schema_encoding='', definition='')
        message = BagMessage(
            topic=recorded.topic, log_ns=log_ns, raw=recorded.data, decoder=decoder
        )
        heapq.heappush(self._on_their_way, (log_ns, len(self.recorded), message))


class SlowPolicy:
    """The policy, taking ``INFERENCE_S`` of made-up time."""

    def __init__(self, policy: Any, clock: Any) -> None:
        self._policy = policy
        self._clock = clock

    @property
    def last_timing(self) -> Any:
        return self._policy.last_timing

    def predict_chunk(self, observation: Observation) -> FloatArray:
        chunk: FloatArray = self._policy.predict_chunk(observation)
        self._clock.ahead_ns = seconds_to_ns(INFERENCE_S)
        return chunk

    def reset(self) -> None:
        self._policy.reset()


class HeardStreamer(OfflineStreamer):
    """A streamer whose commands are heard: ``sent`` has (time [ns], command (5,))."""

    def __init__(self, contract: RobotContract, playing: Playing) -> None:
        self.sent: list[tuple[int, np.ndarray]] = []
        super().__init__(contract, playing)

    def send(self, command: np.ndarray, *, now_ns: int) -> None:
        super().send(command, now_ns=now_ns)
        self.sent.append((now_ns, command.copy()))


class Studio(Replay):
    """A replay whose policy answers and whose commands are heard."""

    def __init__(self, robot: SimulatedRobot, loaded: LoadedPolicy) -> None:
        pacing = PacingConfig(
            mode=loaded.receipt['mode'],
            n_action_steps=loaded.receipt['n_action_steps'],
            dt_s=1.0 / loaded.contract.policy_rate_hz,
            inference_rate_hz=10.0,
            lead_margin_s=0.02,
            streamer_timeout_s=1.0,
        )
        bag: Any = robot
        super().__init__(bag, loaded, ReplayOptions(latency_s=INFERENCE_S), pacing=pacing)
        self._streamer = self._heard = HeardStreamer(loaded.contract, playing_of(loaded))
        robot.newest_command = self._newest
        robot.pause = self._pause
        self._robot = robot

    def record(self) -> None:
        """Play the episode and record the commands with it."""
        for _ in self:
            pass
        contract = self._contract
        commands = CommandSet(contract, {COMMANDS: lambda: SimpleNamespace(data=[])})
        make = Messages()
        for time_ns, row in self._heard.sent:
            messages = commands.fill(row, stamp_ns=time_ns)
            for group, message in zip(contract.outputs, messages, strict=True):
                self._robot.record(group.topic, make.multi_array(message.data), time_ns)

    def _stand_in(self, loaded: LoadedPolicy) -> Any:
        return SlowPolicy(loaded.policy, self._clock)

    def _newest(self) -> np.ndarray | None:
        return self._heard.sent[-1][1] if self._heard.sent else None

    def _pause(self) -> None:
        self._gate.pause()
        self._streamer.core.pause(self.position_ns)


def load() -> LoadedPolicy:
    """The shipped policy as its reference: eager, fp32, one thread of the CPU."""
    config = RuntimeConfig(backend='eager', precision='fp32', device='cpu', num_threads=1)
    settings = PolicySettings(checkpoint=str(CHECKPOINT), config=config)
    return prepare(settings, load_contract('embedded'))


def record(seed: int, *, limit_ns: int = LIMIT_NS) -> tuple[list[Recorded], bool]:
    """All messages in order of arrival, and whether the cube ended in the tray."""
    loaded = load()
    robot = SimulatedRobot(seed=seed, contract=loaded.contract, limit_ns=limit_ns)
    Studio(robot, loaded).record()
    ordered = sorted(robot.recorded, key=lambda message: message.log_ns)
    return ordered, robot.success_ns is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=ROOT / 'bags', help='folder of the bags')
    parser.add_argument('--seed', type=int, default=11, help='of the episode')
    options = parser.parse_args()
    torch.use_deterministic_algorithms(mode=True)
    recorded, success = record(options.seed)
    if not success:
        print(f'the episode of seed {options.seed} did not succeed; take another', file=sys.stderr)
        return 1
    whole, short = options.output / 'embedded_mcap', options.output / 'embedded_sqlite3'
    for folder in (whole, short):
        shutil.rmtree(folder, ignore_errors=True)
    write_mcap(whole, recorded)
    write_sqlite(short, [m for m in recorded if m.log_ns < START_NS + SHORT_NS])
    for file in sorted(p for folder in (whole, short) for p in folder.iterdir()):
        print(f'{file}: {file.stat().st_size} bytes')
    print(f'{len(recorded)} messages, {(recorded[-1].log_ns - recorded[0].log_ns) / 1e9:.2f} s')
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""What exists of a policy node between configure and cleanup, and what it tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rclpy.node import Node

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.observation_intake import ObservationIntake, Warn
from sparkrt_ros.nodes.observation_reader import ObservationReader
from sparkrt_ros.nodes.policy_health import PolicyFacts
from sparkrt_ros.nodes.policy_inputs import Arrived, PolicyInputs
from sparkrt_ros.nodes.policy_parameters import PolicySettings
from sparkrt_ros.nodes.policy_worker import Figures, PolicyWorker
from sparkrt_ros.nodes.qos import QosEvents
from sparkrt_ros.nodes.swap_rules import SwapReport


@dataclass(frozen=True, kw_only=True)
class Situation:
    """state, reason and the prompt: as in PolicyStatus.msg. epoch: of the next chunk.

    rates_hz: of each stream. silent: topic -> why nothing comes there.
    """

    state: str
    reason: str
    epoch: int
    swap: SwapReport
    rates_hz: Mapping[str, float]
    silent: Mapping[str, str]
    prompt: str = ''
    prompt_refused: str = ''


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A loaded policy with its inputs connected."""

    loaded: LoadedPolicy
    intake: ObservationIntake
    reader: ObservationReader
    inputs: PolicyInputs

    @classmethod
    def connect(
        cls,
        node: Node,
        loaded: LoadedPolicy,
        events: QosEvents,
        *,
        max_skew_s: float,
        warn: Warn,
        arrived: Arrived,
        hurry: Callable[[], bool],
        on_jump: Callable[[int, int], None],
    ) -> Serving:
        """Subscribe to what the policy needs. ``max_skew_s``: 0 for what the contract says."""
        intake = ObservationIntake(
            loaded.contract,
            cameras=loaded.binding.cameras,
            with_state=loaded.capabilities.state_size > 0,
            max_skew_s=max_skew_s or loaded.contract.max_skew_s,
            warn=warn,
            on_jump=on_jump,
        )
        reader = ObservationReader(intake, loaded.contract, loaded.capabilities, warn=warn)
        inputs = PolicyInputs(node, intake, events, arrived=arrived, hurry=hurry)
        return cls(loaded=loaded, intake=intake, reader=reader, inputs=inputs)

    @property
    def contract(self) -> RobotContract:
        return self.loaded.contract

    def received(self, now_ns: int) -> dict[str, int]:
        """Messages of each stream so far."""
        counters = self.intake.buffer.counters(now_ns)
        return {name: stream.received for name, stream in counters.items()}

    @property
    def bad_messages(self) -> int:
        """Messages that could not be used."""
        return self.intake.bad_messages + self.reader.bad_messages + self.inputs.failures

    def reads_as(self, loaded: LoadedPolicy) -> bool:
        """Whether another policy reads the same streams in the same form."""
        mine, other = self.loaded.capabilities, loaded.capabilities
        return (
            set(loaded.binding.cameras) == set(self.loaded.binding.cameras)
            and dict(other.image_shapes) == dict(mine.image_shapes)
            and bool(other.state_size) == bool(mine.state_size)
        )

    def with_policy(self, loaded: LoadedPolicy) -> Serving:
        """Another policy on the same inputs; see ``reads_as``."""
        return replace(self, loaded=loaded)

    def with_settings(self, settings: PolicySettings) -> Serving:
        """The same, its chunks used as ``settings`` say; another policy's settings are ignored."""
        if settings.to_load != self.loaded.settings.to_load:
            return self
        return replace(self, loaded=self.loaded.with_settings(settings))

    def describe(self) -> list[str]:
        """Lines for the log: what serves, and what is left aside."""
        receipt, cameras = self.loaded.receipt, self.loaded.binding.unused_cameras
        return [
            f'{receipt["policy"]} ({receipt["backend"]}, {receipt["precision"]}, '
            f'{receipt["device"]}, {receipt["mode"]}) ready in {self.loaded.load_s:.1f} s '
            f'for robot {self.contract.name}',
            *(f"camera '{camera.name}' is not used by this policy" for camera in cameras),
        ]


def gather_facts(
    situation: Situation,
    serving: Serving | None,
    worker: PolicyWorker | None,
    events: QosEvents,
    *,
    now_ns: int,
) -> PolicyFacts:
    """Everything the status and the diagnostics tell, at one time."""
    figures = Figures() if worker is None else worker.figures
    facts = PolicyFacts(
        state=situation.state,
        reason=situation.reason,
        epoch=situation.epoch,
        swap=situation.swap,
        rates_hz=situation.rates_hz,
        silent=situation.silent,
        figures=figures,
        prompt=situation.prompt,
        prompt_refused=situation.prompt_refused,
    )
    if serving is None:
        return facts
    return replace(
        facts,
        receipt=serving.loaded.receipt,
        load_s=serving.loaded.load_s,
        memory_bytes=serving.loaded.memory_bytes,
        streams=serving.intake.buffer.counters(now_ns),
        bad_messages=serving.bad_messages,
        unmatched=tuple(serving.inputs.unmatched()),
        incompatible=events.incompatible,
        incompatible_count=events.count,
        lost=dict(serving.inputs.lost),
    )

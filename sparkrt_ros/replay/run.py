"""One parity run: a bag, a robot, a policy, and the forms of it that are compared."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sparkrt_ros.convert.contract import RobotContract, load_contract
from sparkrt_ros.nodes.loaded_policy import LoadPolicy, load_from_folder
from sparkrt_ros.nodes.observation_intake import with_zero_stamps
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import pacing_config
from sparkrt_ros.replay.apart import ReplayApart, ReplayJob
from sparkrt_ros.replay.arms import ArmSpec, RunningArm, check_replayable, load_arm, node_values
from sparkrt_ros.replay.bag import Bag, open_bag
from sparkrt_ros.replay.judge import ThresholdTable
from sparkrt_ros.replay.lerobot import LeRobotFiles
from sparkrt_ros.replay.offline import Observed, Replay, ReplayOptions
from sparkrt_ros.replay.prefetch import Prefetch
from sparkrt_ros.replay.result import ParityResult
from sparkrt_ros.replay.summary import Findings, summarize
from sparkrt_ros.replay.worst import WorstFrames
from sparkrt_ros.runtime.errors import BackendError, ConfigError, ObservationError

# Called with what is being done and how much of it is done, 0 to 1; None: unknown.
Progress = Callable[[str, float | None], None]

REFERENCE = ArmSpec(backend='eager')
SERVED = ArmSpec()
BATCH_BYTES = 64_000_000
MOST_IN_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class ParityOptions:
    """robot, checkpoint: as the policy node's parameters. parameters: changes of the others.

    reference, candidates: the arms; what the node would serve where nothing is named.
    against_recorded: also compare commands with those in the bag. lerobot_actions: file to
    compare with; export: file to write the observations to. apart: whether the bag is replayed
    in a process of its own; None: where the policy runs on a GPU. The result is the same.
    """

    bag: Path
    robot: str
    checkpoint: Path
    reference: ArmSpec = REFERENCE
    candidates: tuple[ArmSpec, ...] = (SERVED,)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    thresholds: ThresholdTable = field(default_factory=ThresholdTable.make)
    seed: int = 0
    against_recorded: bool = False
    lerobot_actions: Path | None = None
    export: Path | None = None
    apart: bool | None = None


def run_parity(
    options: ParityOptions,
    *,
    progress: Progress = lambda text, share: None,
    load: LoadPolicy = load_from_folder,
) -> ParityResult:
    """Replay, infer with every arm, compare. The bag is not written to.

    Raises ConfigError, BagError, ContractError, CheckpointError or BackendError where a run
    cannot be made, and ObservationError where the bag yields no observation.
    """
    values = node_values(
        {**options.parameters, 'robot': options.robot, 'checkpoint': str(options.checkpoint)}
    )
    choice = str(values['observation.on_zero_stamp'])
    contract = with_zero_stamps(load_contract(options.robot), choice)
    _need_rosbags()
    with ExitStack() as stack:
        bag = stack.enter_context(open_bag(options.bag))
        run = _Run(options, bag, contract, values, stack, progress=progress, load=load)
        return run.run()


def _need_rosbags() -> None:
    if importlib.util.find_spec('rosbags') is None:
        raise ConfigError(
            'the Python package rosbags',
            found='nothing',
            expected='it, to decode messages without ROS',
            remedy='pip install "sparkrt-ros[bags]"',
        )


def _goes_apart(options: ParityOptions) -> bool:
    if options.apart is not None:
        return options.apart
    import torch

    devices = {spec.device for spec in (options.reference, *options.candidates)}
    return devices != {'cpu'} and torch.cuda.is_available()


class _Run:
    """What lives during one run; everything is closed by ``stack``."""

    def __init__(
        self,
        options: ParityOptions,
        bag: Bag,
        contract: RobotContract,
        values: Mapping[str, Value],
        stack: ExitStack,
        *,
        progress: Progress,
        load: LoadPolicy,
    ) -> None:
        self._options, self._bag, self._contract, self._values = options, bag, contract, values
        self._stack, self._progress, self._load = stack, progress, load
        self._arms: list[RunningArm] = []
        self._apart = stack.enter_context(ReplayApart()) if _goes_apart(options) else None
        self._begun_s = time.perf_counter()
        # What cannot be compared in the end should fail before minutes of work.
        self._add_arm(options.reference)
        foreign = options.lerobot_actions or options.export
        check_replayable(
            self._arms[0].loaded, values, without='files of observations' if foreign else ''
        )
        self._files = stack.enter_context(
            LeRobotFiles(
                self._arms[0].loaded,
                actions=options.lerobot_actions,
                export=options.export,
            )
        )
        self._replay: Replay | ReplayApart = self._make_replay(options.replay)
        for spec in options.candidates:
            self._add_arm(spec)
        self._check_reference()
        self._observed: list[Observed] = []
        self._worst = WorstFrames()

    def run(self) -> ParityResult:
        start_s = time.perf_counter()
        if self._apart is not None:
            self._apart.begin(self._job(self._options.replay))
            self._replay = self._apart
        with Prefetch(self._replay, ahead=self._batch_size(), name='replay') as source:
            for first in source:
                batch = [first, *source.waiting(self._batch_size() - 1)]
                self._infer(batch)
                self._show('comparing')
        if not self._observed:
            raise self._nothing_observed()
        self._progress('judging', None)
        findings = Findings(
            options=self._options,
            bag=self._bag,
            contract=self._contract,
            values=self._values,
            arms=self._arms,
            outcome=self._replay.outcome(),
            files=self._files,
            observed=self._observed,
            worst=self._worst,
            frames_of=self._frames_of,
            seconds={
                'load': start_s - self._begun_s,
                'replay': time.perf_counter() - start_s,
            },
        )
        return summarize(findings)

    def _infer(self, batch: list[Observed]) -> None:
        """Every arm on every observation; one arm at a time, since each wants all cores."""
        reference, seed = self._arms[0], self._options.seed
        noises = [reference.noise(seed, observed.record.index) for observed in batch]
        for arm in self._arms:
            for observed, noise in zip(batch, noises, strict=True):
                arm.infer(observed, noise=noise)
        count = len(batch)
        for back, (observed, noise) in enumerate(zip(batch, noises, strict=True)):
            self._files.add(observed.observation, noise=noise)
            rows = [arm.normalized[back - count] for arm in self._arms]
            self._note_worst(observed, rows)
            # Without its pictures an observation is small enough to keep for all of a bag.
            kept = replace(observed.observation, images={})
            self._observed.append(replace(observed, observation=kept))

    def _note_worst(self, observed: Observed, rows: list[Any]) -> None:
        """Keep the pictures of the chunk in which a candidate differs most."""
        images, index = observed.observation.images, observed.record.index
        for arm, row in zip(self._arms[1:], rows[1:], strict=True):
            error = float(np.abs(row.astype(np.float64) - rows[0]).max())
            self._worst.note(arm.label, self._arms[0].label, error, images)
        foreign = self._files.foreign
        if foreign is None or index >= len(foreign.normalized):
            return
        for arm, row in zip(self._arms, rows, strict=True):
            error = float(np.abs(row.astype(np.float64) - foreign.normalized[index]).max())
            self._worst.note(arm.label, foreign.label, error, images)

    def _add_arm(self, spec: ArmSpec) -> None:
        self._progress(f'loading {spec}', None)
        arm = load_arm(
            spec,
            values=self._values,
            contract=self._contract,
            taken=frozenset(arm.label for arm in self._arms),
            load=self._load,
        )
        self._stack.callback(arm.close)
        self._arms.append(arm)

    def _check_reference(self) -> None:
        problem = self._arms[0].not_as_asked
        if problem:
            raise BackendError(
                'reference', found=problem, expected=f'{self._options.reference} itself'
            )

    def _make_replay(self, options: ReplayOptions) -> Replay:
        job = self._job(options)
        return Replay(
            self._bag,
            self._arms[0].loaded,
            job.options,
            pacing=job.pacing,
            task=job.task,
            max_skew_s=job.max_skew_s,
        )

    def _job(self, options: ReplayOptions) -> ReplayJob:
        loaded = self._arms[0].loaded
        skew_s = self._values['observation.max_skew_s']
        assert isinstance(skew_s, float)
        return ReplayJob.of(
            self._options.bag,
            loaded,
            replace(options, with_commands=self._options.against_recorded),
            pacing=pacing_config(self._values, loaded),
            task=str(self._values['prompt']),
            max_skew_s=skew_s,
        )

    def _frames_of(self, index: int) -> Mapping[str, Any]:
        """The pictures of one chunk, replayed again up to there."""
        replay = self._make_replay(replace(self._options.replay, max_chunks=index + 1))
        for observed in replay:
            if observed.record.index == index:
                return observed.observation.images
        return {}

    def _batch_size(self) -> int:
        shapes = self._arms[0].loaded.capabilities.image_shapes.values()
        size = sum(int(np.prod(shape)) for shape in shapes) or 1
        return max(1, min(MOST_IN_BATCH, BATCH_BYTES // size))

    def _show(self, text: str) -> None:
        length_ns = max(1, self._bag.end_ns - self._bag.start_ns)
        share = (self._replay.position_ns - self._bag.start_ns) / length_ns
        self._progress(f'{text}, {len(self._observed)} chunks', min(1.0, max(0.0, share)))

    def _nothing_observed(self) -> ObservationError:
        reasons = self._replay.outcome().events.lines('stale', 'skew', 'dropped')
        return ObservationError(
            str(self._options.bag),
            found='no moment at which the policy could be asked: '
            + ('; '.join(reasons[:4]) or 'no message arrived'),
            expected='at least one observation with every stream',
            remedy='check the streams in the robot contract (max_age_s, clock, zero_stamp); '
            'for a bag of another clock try --time header or --time clock',
        )

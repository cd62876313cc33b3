"""What a finished replay amounts to: arms, comparisons, warnings, provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.replay.arms import RunningArm
from sparkrt_ros.replay.bag import Bag
from sparkrt_ros.replay.commands import offline_commands
from sparkrt_ros.replay.compare import compare_arms, compare_commands, units_of
from sparkrt_ros.replay.judge import self_check
from sparkrt_ros.replay.lerobot import LeRobotFiles
from sparkrt_ros.replay.offline import Observed, ReplayOutcome, playing_of
from sparkrt_ros.replay.provenance import Origins, provenance
from sparkrt_ros.replay.result import Arm, CommandTrack, Comparison, ParityResult
from sparkrt_ros.replay.worst import WorstFrames
from sparkrt_ros.runtime.types import ImageArray

if TYPE_CHECKING:
    from sparkrt_ros.replay.run import ParityOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """Everything that a run has gathered. frames_of: the pictures of any chunk, at some cost."""

    options: ParityOptions
    bag: Bag
    contract: RobotContract
    values: Mapping[str, Value]
    arms: Sequence[RunningArm]
    outcome: ReplayOutcome
    files: LeRobotFiles
    observed: Sequence[Observed]
    worst: WorstFrames
    frames_of: Callable[[int], Mapping[str, ImageArray]]
    seconds: Mapping[str, float]

    @property
    def stamps_ns(self) -> np.typing.NDArray[np.int64]:
        return np.array([o.record.reference_ns for o in self.observed], dtype=np.int64)


def summarize(findings: Findings) -> ParityResult:
    """Compare, judge, and gather; writes the export where one is wanted."""
    arms = [arm.result() for arm in findings.arms]
    foreign = findings.files.arm(findings.stamps_ns)
    checks = _self_checks(findings, arms[0])
    comparisons = _compare_chunks(findings, arms, foreign, checks)
    tracks, of_commands = _compare_commands(findings)
    comparisons += of_commands
    origins = Origins(
        options=findings.options,
        bag=findings.bag,
        contract=findings.contract,
        values=findings.values,
        arms=tuple(arms),
        counts=dict(findings.outcome.events.counts),
        bag_complete=findings.outcome.bag_complete,
        self_check=checks,
        seconds=findings.seconds,
    )
    facts = provenance(origins)
    findings.files.finish(_export_meta(findings, facts))
    return ParityResult(
        bag=str(findings.options.bag),
        robot=findings.contract.name,
        joint_names=findings.contract.action,
        units=units_of(findings.contract),
        dt_s=1.0 / findings.contract.policy_rate_hz,
        records=tuple(o.record for o in findings.observed),
        arms=tuple(arms) if foreign is None else (*arms, foreign),
        comparisons=tuple(comparisons),
        streams=findings.outcome.streams,
        events=tuple(findings.outcome.events.events),
        worst_frames=_worst_frames(findings, comparisons),
        provenance=facts,
        warnings=_warnings(findings),
        commands=tracks,
    )


def _self_checks(findings: Findings, reference: Arm) -> dict[str, dict[str, str]]:
    """By tier: whether its thresholds would catch a candidate that replays old input."""
    assert reference.normalized is not None
    tiers = dict.fromkeys(arm.served[1] for arm in findings.arms)
    table = findings.options.thresholds.tiers
    chunks = list(reference.normalized)
    return {tier: self_check(chunks, table[tier]) for tier in tiers}


def _compare_chunks(
    findings: Findings,
    arms: Sequence[Arm],
    foreign: Arm | None,
    checks: Mapping[str, Mapping[str, str]],
) -> list[Comparison]:
    table = findings.options.thresholds.tiers
    comparisons = []
    for number, (running, arm) in enumerate(zip(findings.arms, arms, strict=True)):
        tier = running.served[1]
        missed = [name for name, band in checks[tier].items() if band != 'fail']
        doubts = [f'this bag cannot show a candidate with {name}' for name in missed]
        failures = [f'{text} ({count} chunks)' for text, count in running.faults.items()]
        if running.not_as_asked:
            failures.append(running.not_as_asked)
        for other in (None if number == 0 else arms[0], foreign):
            if other is not None:
                comparisons.append(
                    compare_arms(arm, other, table[tier], failures=failures, doubts=doubts)
                )
    return comparisons


def _compare_commands(
    findings: Findings,
) -> tuple[tuple[CommandTrack, ...], list[Comparison]]:
    recording, script = findings.outcome.recording, findings.outcome.script
    if recording is None:
        return (), []
    templates = [o.chunk for o in findings.observed]
    tracks, comparisons = [], []
    for arm in findings.arms:
        track = offline_commands(
            findings.contract,
            script,
            arm.chunks(templates),
            playing=playing_of(arm.loaded),
            label=arm.label,
        )
        tracks.append(track)
        comparisons.append(
            compare_commands(
                track,
                recording,
                findings.contract,
                findings.options.thresholds.recorded,
                chunks=len(templates),
            )
        )
    return (*tracks, recording.track), comparisons


def _worst_frames(
    findings: Findings, comparisons: Sequence[Comparison]
) -> dict[str, Mapping[str, ImageArray]]:
    """By candidate: of its comparison with the first reference; else with another."""
    frames: dict[str, Mapping[str, ImageArray]] = {}
    for comparison in comparisons:
        if comparison.candidate in frames:
            continue
        if comparison.of_commands:
            frames[comparison.candidate] = findings.frames_of(comparison.worst_chunk)
        else:
            frames[comparison.candidate] = findings.worst.of(
                comparison.candidate, comparison.reference
            )
    return frames


def _warnings(findings: Findings) -> tuple[str, ...]:
    outcome = findings.outcome
    lines = [*outcome.bag_warnings]
    lines += outcome.events.lines('dropped', 'zero stamp', 'picture', 'jump', 'withheld')
    for output, (count, text) in outcome.malformed.items():
        lines.append(f'output {output}: {count} recorded commands left out: {text}')
    for arm in findings.arms:
        lines += arm.loaded.receipt['warnings']
    return tuple(dict.fromkeys(lines))


def _export_meta(findings: Findings, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        'bag': str(findings.options.bag),
        'bag_digest': facts['bag']['digest'],
        'robot': findings.contract.name,
        'contract_digest': findings.contract.digest,
        'task': str(findings.values['prompt']),
        'seed': findings.options.seed,
    }

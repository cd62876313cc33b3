"""Two arms, or two tracks of commands, put side by side and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.replay.judge import (
    CommandThresholds,
    Thresholds,
    judge_chunks,
    judge_commands,
)
from sparkrt_ros.replay.recorded import Recording, at_recorded_times
from sparkrt_ros.replay.result import BANDS, Arm, CommandTrack, Comparison, SpaceAgreement
from sparkrt_ros.runtime.parity import Agreement, compare, compare_each

_Floats = npt.NDArray[np.floating]
_NOTHING = Agreement(cosine=float('nan'), max_abs=float('nan'), p99_abs=float('nan'))


def compare_arms(
    candidate: Arm,
    reference: Arm,
    limits: Thresholds,
    *,
    failures: Sequence[str] = (),
    doubts: Sequence[str] = (),
) -> Comparison:
    """Compare in model space and in robot units; judged in model space.

    failures: reasons known beforehand why the candidate fails; doubts: why it cannot pass.
    """
    assert candidate.normalized is not None
    assert reference.normalized is not None
    band, reasons, verdict = judge_chunks(
        list(candidate.normalized), list(reference.normalized), limits
    )
    bands = [band, *('fail' for _ in failures), *('warn' for _ in doubts)]
    spaces = (
        space_agreement('model', candidate.normalized, reference.normalized),
        space_agreement('robot', candidate.actions, reference.actions),
    )
    return Comparison(
        candidate=candidate.label,
        reference=reference.label,
        band=max(bands, key=BANDS.index),
        reasons=(*failures, *reasons, *doubts),
        spaces=spaces,
        worst_chunk=worst_chunk(spaces[0]),
        follows_input=verdict is None or verdict.follows_input,
        thresholds=asdict(limits),
    )


def space_agreement(space: str, found: _Floats, wanted: _Floats) -> SpaceAgreement:
    """(N, T, A) of both: over everything, for each chunk and for each joint."""
    return SpaceAgreement(
        space=space,
        overall=compare(found, wanted),
        chunks=tuple(compare_each(found, wanted)),
        joints=tuple(compare_each(np.moveaxis(found, -1, 0), np.moveaxis(wanted, -1, 0))),
    )


def worst_chunk(agreement: SpaceAgreement) -> int:
    """Index of the chunk with the largest difference; 0 where none has any."""
    errors = np.nan_to_num([a.max_abs for a in agreement.chunks], nan=-1.0, posinf=np.inf)
    return int(np.argmax(errors)) if errors.size else 0


def compare_commands(
    track: CommandTrack,
    recording: Recording,
    contract: RobotContract,
    limits: CommandThresholds,
    *,
    chunks: int,
) -> Comparison:
    """Compare the policy's commands with the recorded ones, at the times of the latter, in SI."""
    found, wanted = at_recorded_times(track, recording), recording.track.commands
    ranges = contract.action_limits.high - contract.action_limits.low
    band, reasons = judge_commands(found, wanted, ranges, contract.action, limits)
    # Chunk i is the newest from its arrival on; before the first there is nothing to compare.
    newest = recording.chunks - 1
    agreement = SpaceAgreement(
        space='robot',
        overall=_where_known(found, wanted),
        chunks=tuple(_where_known(found[newest == i], wanted[newest == i]) for i in range(chunks)),
        joints=tuple(_where_known(f, w) for f, w in zip(found.T, wanted.T, strict=True)),
    )
    return Comparison(
        candidate=track.label,
        reference=recording.track.label,
        band=band,
        reasons=reasons,
        spaces=(agreement,),
        worst_chunk=worst_chunk(agreement),
        follows_input=True,
        thresholds=asdict(limits),
        of_commands=True,
    )


def _where_known(found: _Floats, wanted: _Floats) -> Agreement:
    known = ~(np.isnan(found) | np.isnan(wanted))
    return compare(found[known], wanted[known]) if known.any() else _NOTHING


def units_of(contract: RobotContract) -> tuple[str, ...]:
    """SI unit of each action; that of a range depends on the robot."""
    names: Mapping[str, str] = {
        'rad': 'rad',
        'deg': 'rad',
        'm': 'm',
        'mm': 'm',
        'm/s': 'm/s',
        'rad/s': 'rad/s',
        'deg/s': 'rad/s',
    }
    return tuple(names.get(joint.unit, 'rad or m') for joint in contract.action_joints)

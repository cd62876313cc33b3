"""Results of parity runs that never took place, for tests of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparkrt_ros.replay.result import (
    Arm,
    ChunkRecord,
    CommandTrack,
    Comparison,
    Event,
    ParityResult,
    SpaceAgreement,
    StreamHistory,
)
from sparkrt_ros.runtime.parity import compare

START_NS = 1_764_450_000_000_000_000
PERIOD_NS = 150_000_000
LIMITS = {'cosine': 0.9999, 'max_abs': 0.1, 'p99_abs': 0.05, 'warn': 0.5}
REFERENCE, GOOD, BAD, LEROBOT = (
    'eager, fp32',
    'cudagraph, fp32',
    'cudagraph, bf16',
    'lerobot 0.6.1',
)


def agreement(space: str, found: np.ndarray, wanted: np.ndarray) -> SpaceAgreement:
    pairs = list(zip(found, wanted, strict=True))
    joints = zip(np.moveaxis(found, -1, 0), np.moveaxis(wanted, -1, 0), strict=True)
    return SpaceAgreement(
        space=space,
        overall=compare(found, wanted),
        chunks=tuple(compare(a, b) for a, b in pairs),
        joints=tuple(compare(a, b) for a, b in joints),
    )


def arm(label: str, actions: np.ndarray, *, seconds: float | None = 0.01, **options: Any) -> Arm:
    spread = np.linspace(0.9, 1.4, len(actions))
    values = {
        'normalized': (2 * actions).astype(np.float32),
        'inference_s': np.empty(0) if seconds is None else seconds * spread,
        'receipt': {'backend': label, 'regions': {'model': {'runs': 3}}},
        **options,
    }
    return Arm(label=label, actions=actions, **values)


def comparison(candidate: Arm, reference: Arm, **options: Any) -> Comparison:
    spaces = [agreement('robot', candidate.actions, reference.actions)]
    if candidate.normalized is not None and reference.normalized is not None:
        spaces.insert(0, agreement('model', candidate.normalized, reference.normalized))
    errors = [chunk.max_abs for chunk in spaces[0].chunks]
    values = {
        'band': 'pass',
        'reasons': (),
        'worst_chunk': int(np.argmax(errors)),
        'follows_input': True,
        'thresholds': LIMITS,
        **options,
    }
    return Comparison(
        candidate=candidate.label, reference=reference.label, spaces=tuple(spaces), **values
    )


def actions_of(chunks: int, rows: int, joints: int) -> np.ndarray:
    time = np.arange(chunks)[:, None] * 0.15 + np.arange(rows) * 0.05
    return np.sin(time[..., None] * (1 + np.arange(joints) / 3)) + 0.1


def records(count: int) -> tuple[ChunkRecord, ...]:
    return tuple(
        ChunkRecord(
            index=index,
            reference_ns=START_NS + index * PERIOD_NS,
            taken_ns=START_NS + index * PERIOD_NS + 20_000_000,
            samples_ns={'front': START_NS + index * PERIOD_NS},
            ages_s={'front': 0.02, 'joint_states': 0.004},
            skew_s=0.016,
        )
        for index in range(count)
    )


def stream(name: str, topic: str, *, messages: int, period_ns: int) -> StreamHistory:
    stamps = START_NS + np.arange(messages, dtype=np.int64) * period_ns
    return StreamHistory(
        name=name, topic=topic, stamps_ns=stamps, received_ns=stamps + 3_000_000, dropped=2
    )


def events() -> tuple[Event, ...]:
    return (
        Event(time_ns=START_NS + PERIOD_NS, kind='dropped', stream='front', text='a broken JPEG'),
        Event(time_ns=START_NS + 3 * PERIOD_NS, kind='stale', stream='/wrist', text='0.4 s old'),
        Event(time_ns=START_NS + 4 * PERIOD_NS, kind='skew', stream='front', text='0.2 s apart'),
        Event(time_ns=START_NS + 5 * PERIOD_NS, kind='jump', stream='', text='back by 3 s'),
        Event(time_ns=START_NS + 6 * PERIOD_NS, kind='zero stamp', stream='front', text='no time'),
    )


def frames(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return {'observation.images.front': coarse.repeat(8, axis=0).repeat(8, axis=1)}


def sample(*, chunks: int = 12, rows: int = 10, joints: int = 3, **changes: Any) -> ParityResult:
    """A reference, an identical candidate, one that is off and one computed by LeRobot."""
    truth = actions_of(chunks, rows, joints)
    reference = arm(REFERENCE, truth)
    good = arm(GOOD, truth.copy(), seconds=0.002)
    bad = arm(BAD, truth + 0.03 * np.sin(7 * truth), seconds=0.001)
    lerobot = arm(LEROBOT, truth + 1e-7, seconds=None)
    result = ParityResult(
        bag='/data/bags/pick.mcap',
        robot='tiny',
        joint_names=tuple(f'joint_{index}' for index in range(joints)),
        units=('rad',) * (joints - 1) + ('m',),
        dt_s=0.05,
        records=records(chunks),
        arms=(reference, good, bad, lerobot),
        comparisons=(
            comparison(good, reference),
            comparison(bad, reference, band='fail', reasons=('cosine 0.9 below 0.9999',)),
            comparison(reference, lerobot),
        ),
        streams=(
            stream('front', '/front/image', messages=5 * chunks, period_ns=30_000_000),
            stream('wrist', '/wrist', messages=3 * chunks, period_ns=30_000_000),
        ),
        events=events(),
        worst_frames={GOOD: frames(1), BAD: frames(2), REFERENCE: frames(3)},
        provenance={'bag': {'digest': 'ab' * 32}, 'environment': {'torch': '2.13.0'}},
        warnings=('a topic without a schema was left out',),
    )
    return replace(result, **changes)


def with_commands(result: ParityResult) -> ParityResult:
    """Also against recorded commands: the last joint was recorded at a tenth of the rate."""
    times = START_NS + np.arange(0, len(result.records) * PERIOD_NS, 10_000_000, dtype=np.int64)
    phase = (times - START_NS) * 1e-9
    sent = np.sin(phase[:, None] * (1 + np.arange(len(result.joint_names))))
    recorded = sent + 0.02
    recorded[np.arange(len(times)) % 10 != 0, -1] = np.nan
    # Nothing was recorded while chunk 2 was the newest.
    taken = [record.taken_ns for record in result.records]
    recorded[(times >= taken[2]) & (times < taken[3])] = np.nan
    known = ~np.isnan(recorded)
    space = SpaceAgreement(
        space='robot',
        overall=compare(sent[known], recorded[known]),
        chunks=tuple(compare([0.0], [0.02]) for _ in result.records),
        joints=tuple(
            compare(sent[known[:, j], j], recorded[known[:, j], j]) for j in range(sent.shape[1])
        ),
    )
    judged = Comparison(
        candidate=REFERENCE,
        reference='recorded',
        band='warn',
        reasons=('joint_0: 7.0% of its range',),
        spaces=(space,),
        worst_chunk=4,
        follows_input=True,
        thresholds={'rms_of_motion': 1.0, 'warn': 0.5},
        of_commands=True,
    )
    tracks = (
        CommandTrack(label=REFERENCE, times_ns=times, commands=sent),
        CommandTrack(label='recorded', times_ns=times + 1_000_000, commands=recorded),
    )
    return replace(result, comparisons=(*result.comparisons, judged), commands=tracks)

"""A parity run as JSON: for CI, for comparing runs, and as evidence.

All but ``provenance.measured`` and ``provenance.environment`` is the same, to the last byte, for
the same bag, policy, options and seed on one machine. Numbers that are not finite become null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkrt_ros.replay.result import Comparison, ParityResult, SpaceAgreement
from sparkrt_ros.runtime.whole_file import write_whole

FORMAT = 'sparkrt-parity-1'


def receipt(result: ParityResult) -> dict[str, Any]:
    """Everything but arrays and pictures, in plain values."""
    content = {
        'format': FORMAT,
        'band': result.band,
        'bag': result.bag,
        'robot': result.robot,
        'joints': dict(zip(result.joint_names, result.units, strict=True)),
        'dt_s': result.dt_s,
        'comparisons': [_comparison(c, result.joint_names) for c in result.comparisons],
        'chunks': [asdict(record) for record in result.records],
        'streams': [
            {
                'name': stream.name,
                'topic': stream.topic,
                'messages': len(stream.stamps_ns),
                'dropped': stream.dropped,
            }
            for stream in result.streams
        ],
        'events': [asdict(event) for event in result.events],
        'warnings': list(result.warnings),
        'provenance': result.provenance,
    }
    plain: dict[str, Any] = _plain(content)
    return plain


def write_receipt(result: ParityResult, path: Path) -> None:
    """Write the receipt. Raises FileNotWritten where that is impossible."""
    text = json.dumps(receipt(result), indent=1, allow_nan=False)
    write_whole(path, text + '\n')


def _comparison(comparison: Comparison, names: Sequence[str]) -> dict[str, Any]:
    return {
        'candidate': comparison.candidate,
        'reference': comparison.reference,
        'of': 'commands' if comparison.of_commands else 'chunks',
        'band': comparison.band,
        'reasons': list(comparison.reasons),
        'follows_input': comparison.follows_input,
        'thresholds': dict(comparison.thresholds),
        'worst_chunk': comparison.worst_chunk,
        'spaces': {space.space: _space(space, names) for space in comparison.spaces},
    }


def _space(space: SpaceAgreement, names: Sequence[str]) -> dict[str, Any]:
    return {
        'overall': asdict(space.overall),
        'joints': {
            name: asdict(agreement) for name, agreement in zip(names, space.joints, strict=True)
        },
        'chunks': [asdict(agreement) for agreement in space.chunks],
    }


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value

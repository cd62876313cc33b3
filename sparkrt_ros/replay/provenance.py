"""Where the numbers come from: digests, options, versions, machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.replay.bag import Bag
from sparkrt_ros.replay.result import Arm

if TYPE_CHECKING:
    from sparkrt_ros.replay.run import ParityOptions

_LIBRARIES = ('numpy', 'torch', 'opencv-python-headless', 'rosbags', 'safetensors')


@dataclass(frozen=True, kw_only=True, eq=False)
class Origins:
    """What provenance is made of. self_check: by tier, see judge.self_check."""

    options: ParityOptions
    bag: Bag
    contract: RobotContract
    values: Mapping[str, Value]
    arms: tuple[Arm, ...]
    counts: Mapping[str, int]
    bag_complete: bool
    self_check: Mapping[str, Mapping[str, str]]
    seconds: Mapping[str, float]


def provenance(origins: Origins) -> dict[str, Any]:
    """Plain values, ready for JSON.

    All but ``measured`` and ``environment`` depends on the bag, the policy and the options alone.
    """
    options, bag, contract = origins.options, origins.bag, origins.contract
    receipt = origins.arms[0].receipt
    return {
        'bag': {
            'path': str(options.bag),
            'digest': bag.digest(),
            'storage': bag.storage,
            'complete': origins.bag_complete,
            'start_ns': bag.start_ns,
            'duration_s': (bag.end_ns - bag.start_ns) / 1e9,
        },
        'checkpoint': {'folder': receipt['folder'], 'digest': receipt['digest']},
        'contract': {
            'name': contract.name,
            'source': contract.source,
            'digest': contract.digest,
        },
        'options': _options(options),
        'parameters': {name: _plain(value) for name, value in origins.values.items()},
        'arms': {arm.label: _arm(arm) for arm in origins.arms},
        'self_check': {tier: dict(bands) for tier, bands in origins.self_check.items()},
        'events': dict(origins.counts),
        'environment': _environment(receipt['device']),
        'measured': _measured(origins),
    }


def actions_digest(arm: Arm) -> str:
    """Hex SHA-256 of the actions (N, T, A) as they leave the node: SI, float64, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(arm.actions, dtype='<f8').data).hexdigest()


def _options(options: ParityOptions) -> dict[str, Any]:
    return {
        'reference': asdict(options.reference),
        'candidates': [asdict(spec) for spec in options.candidates],
        'replay': {k: v for k, v in asdict(options.replay).items() if k != 'with_commands'},
        'thresholds': {
            'tiers': {name: asdict(limits) for name, limits in options.thresholds.tiers.items()},
            'recorded': asdict(options.thresholds.recorded),
        },
        'seed': options.seed,
        'against_recorded': options.against_recorded,
        'lerobot_actions': None
        if options.lerobot_actions is None
        else str(options.lerobot_actions),
    }


def _arm(arm: Arm) -> dict[str, Any]:
    kept = ('backend', 'precision', 'device', 'mode', 'n_action_steps', 'num_threads', 'refused')
    known = {key: arm.receipt[key] for key in (*kept, 'notes') if key in arm.receipt}
    return {**known, 'actions_sha256': actions_digest(arm)}


def _measured(origins: Origins) -> dict[str, Any]:
    """Times, which differ from run to run."""
    replayed_s = max(origins.seconds['replay'], 1e-9)
    length_s = (origins.bag.end_ns - origins.bag.start_ns) / 1e9
    inference = {
        arm.label: dict(zip(('p50_s', 'p99_s', 'max_s'), _spread(arm), strict=True))
        for arm in origins.arms
    }
    return {
        'seconds': dict(origins.seconds),
        'times_real_time': length_s / replayed_s,
        'inference': inference,
    }


def _spread(arm: Arm) -> list[float]:
    values = np.percentile(arm.inference_s, (50, 99, 100), method='higher')
    return [float(value) for value in values]


def _environment(device: str) -> dict[str, Any]:
    import torch

    from sparkrt_ros.runtime.bench_machine import machine_facts

    libraries = {name: found for name in _LIBRARIES if (found := _version(name))}
    return {**machine_facts(torch.device(device)), 'libraries': libraries}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plain(value: Value) -> Any:
    return list(value) if isinstance(value, tuple) else value

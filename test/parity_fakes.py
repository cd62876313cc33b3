"""Policies whose every output is known, loaded like real ones; and replays without a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from bag_factory import SECOND, START_NS, Recorded, write_mcap
from parity_bags import JOINTS

from sparkrt_ros.convert.contract import check_contract, load_contract
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.policy_parameters import PolicySettings, pacing_config
from sparkrt_ros.replay.arms import node_values
from sparkrt_ros.replay.bag import Bag, open_bag
from sparkrt_ros.replay.offline import Observed, Replay, ReplayOptions
from sparkrt_ros.runtime.errors import ActionError
from sparkrt_ros.runtime.types import Capabilities, Observation

ROWS, STEPS = 8, 4
CAMERA_KEYS = ('observation.images.front', 'observation.images.wrist')
See = Callable[[list[Observation]], Observation]


def capabilities(**changes: Any) -> Capabilities:
    values: dict[str, Any] = {
        'model_type': 'toy',
        'image_shapes': dict.fromkeys(CAMERA_KEYS, (3, 64, 64)),
        'state_size': len(JOINTS),
        'environment_state_size': 0,
        'action_size': len(JOINTS),
        'chunk_size': ROWS,
        'n_action_steps': STEPS,
    }
    return Capabilities(**{**values, **changes})


def newest(seen: list[Observation]) -> Observation:
    return seen[-1]


class ToyPolicy:
    """Row i is the state, moved by what the pictures show; its own units are half the network's.

    see: which of all observations so far it looks at. alter: changes the normalised chunk
    (index, chunk). Given noise is added.
    """

    last_timing = SimpleNamespace(preprocess_s=0.0, model_s=0.0, postprocess_s=0.0, stages_s={})

    def __init__(
        self,
        *,
        see: See = newest,
        alter: Callable[[int, np.ndarray], np.ndarray] = lambda index, chunk: chunk,
        receipt: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        self.capabilities = capabilities(**changes)
        self.seen: list[Observation] = []
        self.noises: list[np.ndarray | None] = []
        self.resets = 0
        self.closed = False
        self._see, self._alter = see, alter
        self._receipt = dict(receipt or {})
        self.memory_bytes: dict[str, int] = {}

    @property
    def receipt(self) -> dict[str, Any]:
        return {
            'policy': 'toy',
            'folder': '/toy',
            'digest': 'd1',
            'backend': 'eager',
            'precision': 'fp32',
            'device': 'cpu',
            'mode': 'queue',
            'n_action_steps': self.capabilities.n_action_steps,
            'temporal_ensemble_coeff': None,
            'num_threads': torch.get_num_threads(),
            'warnings': [],
            'refused': [],
            'notes': [],
            **self._receipt,
        }

    def predict_both(self, observation: Observation, *, noise: Any = None) -> Any:
        self.seen.append(observation)
        self.noises.append(None if noise is None else noise.numpy().copy())
        used = self._see(self.seen)
        assert used.state is not None
        light = [float(used.images[key].mean()) / 255 for key in CAMERA_KEYS]
        ramp = np.arange(ROWS, dtype=np.float32)[:, None] / 100
        chunk = used.state + ramp + np.float32(light[0] - light[1])
        chunk = self._alter(len(self.seen) - 1, chunk.astype(np.float32))
        if noise is not None:
            chunk = chunk + noise.numpy()
        if not np.isfinite(chunk).all():
            raise ActionError('policy output', found='NaN', expected='finite actions')
        return chunk, chunk / 2

    def reset(self) -> None:
        self.resets += 1

    def warm_up(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class ToyLoader:
    """``load`` of a run: gives one policy for each arm, in order."""

    def __init__(self, *policies: ToyPolicy) -> None:
        self.policies = list(policies)
        self.configs: list[Any] = []

    def __call__(self, folder: Path, *, config: Any, **_: Any) -> Any:
        self.configs.append(config)
        policy = self.policies[len(self.configs) - 1]
        policy._receipt.setdefault(
            'backend', {'auto': 'fused'}.get(config.backend, config.backend)
        )
        policy._receipt.setdefault('precision', config.precision)
        return policy


def loaded_toy(robot: Path, policy: ToyPolicy | None = None) -> LoadedPolicy:
    policy = ToyPolicy() if policy is None else policy
    contract = load_contract(robot)
    return LoadedPolicy(
        policy=policy,  # type: ignore[arg-type]
        capabilities=policy.capabilities,
        contract=contract,
        binding=check_contract(contract, policy.capabilities),
        settings=PolicySettings.of(node_values({'checkpoint': '/toy'})),
        receipt=policy.receipt,
        load_s=0.0,
    )


def make_replay(
    bag: Bag,
    robot: Path,
    *,
    policy: ToyPolicy | None = None,
    parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> Replay:
    loaded = loaded_toy(robot, policy)
    values = node_values(parameters or {})
    return Replay(bag, loaded, ReplayOptions(**options), pacing=pacing_config(values, loaded))


class ReplayRig:
    """Replays of the bags it writes."""

    def __init__(self, folder: Path, robot: Path) -> None:
        self._folder, self._robot = folder, robot
        self.replay: Replay

    def observe(self, messages: list[Recorded], **options: Any) -> list[Observed]:
        self.bag = self._folder / f'bag{len(list(self._folder.glob("*.mcap")))}.mcap'
        write_mcap(self.bag, messages)
        return self.observe_bag(self.bag, **options)

    def observe_bag(self, path: Path, **options: Any) -> list[Observed]:
        robot = options.pop('robot', self._robot)
        with open_bag(path) as bag:
            self.replay = make_replay(bag, robot, **options)
            return list(self.replay)

    def kinds(self) -> set[str]:
        return {event.kind for event in self.replay.events.events}


def seen(observed: list[Observed]) -> list[tuple[bytes, ...]]:
    """Pictures and state alone."""
    return [
        (
            *(image.tobytes() for image in o.observation.images.values()),
            o.observation.state.tobytes(),
        )
        for o in observed
    ]


def taken_s(observed: list[Observed]) -> list[float]:
    return [(o.record.taken_ns - START_NS) / SECOND for o in observed]

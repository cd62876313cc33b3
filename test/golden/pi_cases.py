"""The Pi0 and Pi0.5 variants that the golden files cover, as data; needs no torch, no LeRobot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from seeded_weights import FloatArray, seeded_image, seeded_tensor, seeded_vector

IMAGE_SIDE = 42
"""Pixels along a side of what the vision tower sees: 3 by 3 patches of 14."""
CHUNK_SIZE = 6
MAX_DIM = 32
PROMPT_LENGTH = 24
VOCABULARY = 640

TINY_LANGUAGE: Mapping[str, int] = {
    'width': 48, 'depth': 3, 'mlp_dim': 96, 'num_heads': 4, 'num_kv_heads': 1, 'head_dim': 16
}  # fmt: skip
TINY_EXPERT: Mapping[str, int] = {
    'width': 32, 'depth': 3, 'mlp_dim': 64, 'num_heads': 4, 'num_kv_heads': 1, 'head_dim': 16
}  # fmt: skip
TINY_VISION: Mapping[str, int] = {
    'hidden_size': 24, 'num_hidden_layers': 2, 'intermediate_size': 40, 'num_attention_heads': 2
}  # fmt: skip
"""What LeRobot's sizes are replaced with; ours calls them tiny and tiny_expert."""


@dataclass(frozen=True, kw_only=True)
class PiCase:
    """One network. cameras: short name -> (height, width), in the order of the configuration."""

    kind: str
    cameras: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {'front': (48, 64), 'wrist': (61, 33), 'side': (42, 42)}
    )
    state_size: int = 7
    action_size: int = 7
    dtype: str = 'float32'
    options: Mapping[str, Any] = field(default_factory=dict)

    def input_features(self) -> dict[str, dict[str, Any]]:
        """Features as ``config.json`` writes them."""
        features: dict[str, dict[str, Any]] = {
            f'observation.images.{name}': {'type': 'VISUAL', 'shape': [3, *size]}
            for name, size in self.cameras.items()
        }
        features['observation.state'] = {'type': 'STATE', 'shape': [self.state_size]}
        return features

    def output_features(self) -> dict[str, dict[str, Any]]:
        return {'action': {'type': 'ACTION', 'shape': [self.action_size]}}

    def fields(self) -> dict[str, Any]:
        """What differs from LeRobot's defaults, apart from features and the names of sizes."""
        return {
            'image_resolution': (IMAGE_SIDE, IMAGE_SIDE),
            'chunk_size': CHUNK_SIZE,
            'n_action_steps': CHUNK_SIZE,
            'dtype': self.dtype,
            **self.options,
        }


@dataclass(frozen=True, kw_only=True)
class PiInputs:
    """One prediction. counts: tokens of text of every sample; absent: cameras that are not there.

    rtc: schedule, delay, horizon and rows of the previous chunk.
    """

    counts: tuple[int, ...] = (13,)
    absent: tuple[str, ...] = ()
    steps: int = 10
    rtc: tuple[str, int, int, int] | None = None

    @property
    def batch(self) -> int:
        return len(self.counts)

    def images(self, case: PiCase, seed: str) -> dict[str, np.ndarray]:
        """(B, H, W, 3) uint8 by policy key, of the cameras that are there."""
        return {
            f'observation.images.{name}': np.stack(
                [seeded_image(f'{seed}/{name}/{sample}', *size) for sample in range(self.batch)]
            )
            for name, size in case.cameras.items()
            if name not in self.absent
        }

    def state(self, case: PiCase, seed: str) -> FloatArray:
        """(B, S), already scaled."""
        return seeded_vector(f'{seed}/state', (self.batch, case.state_size))

    def tokens(self, seed: str) -> np.ndarray:
        """(B, PROMPT_LENGTH) int64, padded with 0."""
        drawn = seeded_vector(f'{seed}/tokens', (self.batch, PROMPT_LENGTH))
        tokens = ((drawn + 2) / 4 * VOCABULARY).astype(np.int64).clip(1, VOCABULARY - 1)
        return np.where(self.mask(), tokens, 0)

    def mask(self) -> np.ndarray:
        """(B, PROMPT_LENGTH) bool."""
        return np.arange(PROMPT_LENGTH) < np.array(self.counts)[:, None]

    def noise(self, seed: str) -> FloatArray:
        return seeded_vector(f'{seed}/noise', (self.batch, CHUNK_SIZE, MAX_DIM))

    def previous(self, case: PiCase, seed: str) -> FloatArray:
        """(rows, A): the chunk to continue, scaled."""
        assert self.rtc is not None
        return seeded_vector(f'{seed}/previous', (self.rtc[3], case.action_size))


PI_CASES: Mapping[str, PiCase] = {
    'pi05': PiCase(kind='pi05'),
    'pi05_bf16': PiCase(kind='pi05', dtype='bfloat16'),
    'pi05_empty_camera': PiCase(
        kind='pi05', cameras={'front': (42, 42)}, options={'empty_cameras': 2}
    ),
    'pi0': PiCase(kind='pi0'),
    'pi0_bf16': PiCase(kind='pi0', dtype='bfloat16'),
}

_COMMON: Mapping[str, PiInputs] = {
    'all': PiInputs(),
    'short_prompt': PiInputs(counts=(2,)),
    'full_prompt': PiInputs(counts=(PROMPT_LENGTH,)),
    'batch': PiInputs(counts=(4, 20)),
    'first_camera_missing': PiInputs(absent=('front',)),
    'middle_camera_missing': PiInputs(counts=(9, 17), absent=('wrist',)),
    'three_steps': PiInputs(steps=3),
}
_RTC: Mapping[str, PiInputs] = {
    'rtc_linear': PiInputs(rtc=('LINEAR', 1, 4, 5)),
    'rtc_exp': PiInputs(rtc=('EXP', 2, 5, 6)),
    'rtc_short': PiInputs(rtc=('LINEAR', 1, 5, 3)),
}
PI_INPUTS: Mapping[str, Mapping[str, PiInputs]] = {
    'pi05': {**_COMMON, **_RTC},
    'pi05_bf16': {name: _COMMON[name] for name in ('all', 'batch', 'middle_camera_missing')},
    'pi05_empty_camera': {'all': _COMMON['all']},
    'pi0': {**_COMMON, 'rtc_linear': _RTC['rtc_linear']},
    'pi0_bf16': {name: _COMMON[name] for name in ('all', 'batch', 'middle_camera_missing')},
}
"""Case -> name -> inputs; each has a golden chunk CASE/NAME."""


def pi_tensor(name: str, shape: tuple[int, ...]) -> FloatArray:
    """The weight LeRobot calls ``name`` (without ``model.``), of a scale that keeps values alive.

    Norms here are ``1 + weight``, and patches are summed over hundreds of pixels.
    """
    if name.endswith(('layernorm.weight', 'norm.weight')) and 'vision' not in name:
        return seeded_vector(name, shape) * np.float32(0.2)
    if 'patch_embedding.weight' in name:
        return seeded_vector(name, shape) * np.float32(0.06)
    return seeded_tensor(name, shape)


@dataclass(frozen=True, kw_only=True)
class PiSession:
    """A whole policy, processors included, that predicts for each of ``tasks``.

    modes: normalisation by feature type. play: whether select_action is played as well.
    """

    policy: PiCase
    modes: Mapping[str, str]
    tasks: tuple[str, ...]
    folder: str

    def observation(self, step: int) -> dict[str, np.ndarray]:
        """Images (H, W, 3) uint8 and the state (S,) in units of the dataset, by policy key."""
        values: dict[str, np.ndarray] = {}
        for name, size in self.policy.cameras.items():
            values[f'observation.images.{name}'] = seeded_image(
                f'{self.folder}/{step}/{name}', *size
            )
        # Beyond the quantiles here and there, where bins below 0 and above 255 begin.
        spread = seeded_vector(f'{self.folder}/{step}/state', (self.policy.state_size,))
        values['observation.state'] = spread * np.float32(0.8)
        return values

    def noise(self, step: int) -> FloatArray:
        return seeded_vector(f'{self.folder}/{step}/noise', (1, CHUNK_SIZE, MAX_DIM))


_TASKS = (
    'pick up the red cube',
    '  pick_up the\nblue cube  ',
    'Öffne die Schublade 7',
    'put the red cube into the box\n',
    'pick up the red cube and put it into the green box, then open the door and come back to the '
    'start',
    '',
)

PI_SESSIONS: Mapping[str, PiSession] = {
    'pi05': PiSession(
        policy=PiCase(
            kind='pi05',
            cameras={'front': (48, 64), 'wrist': (61, 33)},
            options={'tokenizer_max_length': 48, 'n_action_steps': 4},
        ),
        modes={'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'},
        tasks=_TASKS,
        folder='lerobot_pi05_folder',
    ),
    'pi05_relative': PiSession(
        policy=PiCase(
            kind='pi05',
            cameras={'front': (42, 42)},
            options={
                'tokenizer_max_length': 64,
                'use_relative_actions': True,
                'action_feature_names': [*(f'joint_{n}.pos' for n in range(6)), 'GRIPPER.pos'],
            },
        ),
        modes={'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'},
        tasks=_TASKS[:2],
        folder='lerobot_pi05_relative_folder',
    ),
    'pi0': PiSession(
        policy=PiCase(
            kind='pi0',
            cameras={'front': (48, 64), 'wrist': (61, 33)},
            options={'tokenizer_max_length': 24},
        ),
        modes={'VISUAL': 'IDENTITY', 'STATE': 'MEAN_STD', 'ACTION': 'MEAN_STD'},
        tasks=_TASKS,
        folder='lerobot_pi0_folder',
    ),
}
"""Predicted for through LeRobot's own processors, which are saved in ``folder``."""

_RTC_SPANS = ((0, 4, 8), (2, 6, 10), (3, 3, 8), (5, 2, 8), (0, 12, 8), (1, 50, 50))
RTC_WEIGHTS = tuple(
    (schedule, delay, horizon, rows)
    for schedule in ('ZEROS', 'ONES', 'LINEAR', 'EXP')
    for delay, horizon, rows in (
        (0, 4, 8),
        (2, 6, 10),
        (3, 3, 8),
        (5, 2, 8),
        (0, 12, 8),
        (1, 50, 50),
    )
)
"""Schedule, delay, horizon and rows of every golden vector of weights."""

IMAGE_SIZES = ((480, 640), (42, 42), (100, 42), (31, 200), (43, 43), (20, 21), (84, 63))
"""Pictures that are scaled into a square of IMAGE_SIDE."""

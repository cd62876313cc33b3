"""Pi0 and Pi0.5 as this project builds them, with the weights that LeRobot had."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent / 'golden'
sys.path.append(str(GOLDEN))

from pi_cases import (  # noqa: E402
    PI_CASES,
    PI_SESSIONS,
    PiCase,
    PiInputs,
    PiSession,
    pi_tensor,
)

from sparkrt_ros.runtime.checkpoint.features import STATE_KEY, FeatureSpec, FeatureType  # noqa: E402
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config, PiConfig  # noqa: E402
from sparkrt_ros.runtime.checkpoint.pi_tensors import UNREAD_WEIGHTS, required_shapes  # noqa: E402
from sparkrt_ros.runtime.host_inputs import COUNTS_KEY, TOKENS_KEY  # noqa: E402
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter  # noqa: E402
from sparkrt_ros.runtime.vla_config import VlaConfig  # noqa: E402

__all__ = ['PI_CASES', 'PI_SESSIONS', 'PiCase', 'PiInputs', 'PiSession']

CPU = torch.device('cpu')
CONFIGS = {'pi0': Pi0Config, 'pi05': Pi05Config}
TOKENIZER = GOLDEN / 'pi_tokenizer'


def features(raw: dict[str, dict[str, Any]]) -> dict[str, FeatureSpec]:
    return {
        key: FeatureSpec(key=key, type=FeatureType(value['type']), shape=tuple(value['shape']))
        for key, value in raw.items()
    }


def make_config(case: PiCase, **changes: Any) -> PiConfig:
    return CONFIGS[case.kind](
        input_features=features(case.input_features()),
        output_features=features(case.output_features()),
        paligemma_variant='tiny',
        action_expert_variant='tiny_expert',
        **{**case.fields(), **changes},
    )


def make_weights(config: PiConfig) -> dict[str, torch.Tensor]:
    """By LeRobot's names, the language heads included; not to be changed in place."""
    shapes = required_shapes(config)
    decoders = (config.sizes.language, config.sizes.expert)
    for head, sizes in zip(UNREAD_WEIGHTS, decoders, strict=True):
        shapes[head] = (sizes.vocabulary, sizes.width)
    return {name: _weight(name, shape) for name, shape in shapes.items()}


@functools.cache
def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(pi_tensor(name, shape))


def make_adapter(case: PiCase, *, vla: VlaConfig | None = None, **changes: Any) -> PiAdapter:
    config = make_config(case, **changes)
    return PiAdapter(config, make_weights(config), device=CPU, vla=vla)


def make_batch(case: PiCase, inputs: PiInputs, seed: str) -> dict[str, torch.Tensor]:
    """What preprocessing gives the adapter."""
    batch = {
        key: (torch.from_numpy(value).float() / 255).permute(0, 3, 1, 2).contiguous()
        for key, value in inputs.images(case, seed).items()
    }
    batch[STATE_KEY] = torch.from_numpy(inputs.state(case, seed))
    batch[TOKENS_KEY] = torch.from_numpy(inputs.tokens(seed))
    batch[COUNTS_KEY] = torch.tensor(inputs.counts)
    return batch


def write_pi_folder(name: str, target: Path, *, tokenizer: bool = True, **changes: Any) -> Path:
    """Write the whole policy folder of a session case to ``target``, and return it.

    changes: of ``config.json``, as far as they leave the weights alone (``chunk_size``).
    """
    session = PI_SESSIONS[name]
    shutil.copytree(GOLDEN / session.folder, target)
    config = target / 'config.json'
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    weights = make_weights(make_config(session.policy))
    prefixed = {f'model.{key}': value for key, value in weights.items()}
    save_file(prefixed, target / 'model.safetensors')
    if tokenizer:
        shutil.copytree(TOKENIZER, target / 'tokenizer')
    return target

"""Write the golden files of test/golden from a real LeRobot.

Run it in an environment with lerobot 0.6.1 (nothing of sparkrt needs to be installed there):

    python tools/make_golden.py

Weights and inputs are derived from names (test/golden/seeded_weights.py), so the files hold
LeRobot's outputs and nothing else. test/golden/README.md describes each file.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parent.parent / 'test' / 'golden'
sys.path.insert(0, str(GOLDEN))

from act_cases import (  # noqa: E402
    ACT_CASES,
    ENSEMBLE_COEFFS,
    ENSEMBLE_SHAPE,
    ENSEMBLE_STEPS,
    KEY_CASES,
    SESSION_CASES,
    ActCase,
    SessionCase,
    ensemble_chunk,
)
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature  # noqa: E402
from lerobot.policies.act.configuration_act import ACTConfig  # noqa: E402
from lerobot.policies.act.modeling_act import ACTPolicy, ACTTemporalEnsembler  # noqa: E402
from lerobot.policies.act.processor_act import make_act_pre_post_processors  # noqa: E402
from lerobot.policies.utils import prepare_observation_for_inference  # noqa: E402
from lerobot.processor import (  # noqa: E402
    NormalizerProcessorStep,
    TransitionKey,
    UnnormalizerProcessorStep,
)
from normalization_cases import (  # noqa: E402
    NORMALIZATION_FEATURES,
    NORMALIZATION_MODES,
    normalization_input,
    normalization_statistics,
)
from seeded_weights import seeded_statistics, seeded_tensor  # noqa: E402

LEROBOT_VERSION = '0.6.1'
CPU = torch.device('cpu')


def policy_features(features: dict[str, dict[str, Any]]) -> dict[str, PolicyFeature]:
    return {
        key: PolicyFeature(type=FeatureType(value['type']), shape=tuple(value['shape']))
        for key, value in features.items()
    }


def make_policy(case: ActCase, **options: Any) -> ACTPolicy:
    """LeRobot's policy for a case, with every weight derived from its name."""
    config = ACTConfig(
        input_features=policy_features(case.input_features()),
        output_features=policy_features(case.output_features()),
        pretrained_backbone_weights=None,
        device='cpu',
        push_to_hub=False,
        **case.options,
        **options,
    )
    policy = ACTPolicy(config)
    state = policy.model.state_dict()
    weights = {key: seeded_tensor(key, tuple(value.shape)) for key, value in state.items()}
    policy.model.load_state_dict({key: torch.from_numpy(w) for key, w in weights.items()})
    return policy.eval()


def model_inputs(case: ActCase, seed: str, *, batch: int) -> dict[str, torch.Tensor]:
    """Images in [0, 1], channels first; vectors as they are."""
    inputs = {}
    for key, value in case.observation(seed, batch=batch).items():
        tensor = torch.from_numpy(value)
        if tensor.dtype == torch.uint8:
            tensor = (tensor.type(torch.float32) / 255).permute(0, 3, 1, 2).contiguous()
        inputs[key] = tensor
    # Without a state, LeRobot still reads this key, for its device alone.
    inputs.setdefault('observation.state', torch.zeros(batch, 1))
    return inputs


def make_chunks(folder: Path) -> None:
    """act_chunks.npz: the network alone."""
    chunks = {}
    for name, case in ACT_CASES.items():
        policy = make_policy(case)
        for batch in (1, 2):
            chunk = policy.predict_action_chunk(model_inputs(case, name, batch=batch))
            chunks[f'{name}/{batch}'] = chunk.numpy()
    np.savez_compressed(folder / 'act_chunks.npz', **chunks)


def make_keys(folder: Path) -> None:
    """act_keys.json: names and shapes of a whole policy, with the prefix LeRobot saves."""
    cases = {name: ACT_CASES[name] for name in KEY_CASES}
    cases |= {f'session/{name}': case.policy for name, case in SESSION_CASES.items()}
    lines = []
    for name, case in cases.items():
        state = make_policy(case).state_dict()
        shapes = {key: list(value.shape) for key, value in state.items()}
        lines.append(f'{json.dumps(name)}: {json.dumps(shapes)}')
    (folder / 'act_keys.json').write_text('{\n' + ',\n'.join(lines) + '\n}\n')


def make_sessions(folder: Path) -> None:
    """act_sessions.npz, and one policy folder per session as LeRobot saves it."""
    results = {}
    for name, case in SESSION_CASES.items():
        policy, pre, post = make_session(case)
        results[f'{name}/actions'] = play(case, policy, pre, post)
        chunk = policy.predict_action_chunk(pre(packed(case, 0)))
        results[f'{name}/chunk'] = post(chunk).numpy()[0]
        save_folder(folder / case.folder, policy, pre, post)
    np.savez_compressed(folder / 'act_sessions.npz', **results)


def save_folder(target: Path, policy: ACTPolicy, pre: Any, post: Any) -> None:
    """What save_pretrained writes, short of the weights: those follow from their names."""
    target.mkdir(exist_ok=True)
    for stale in target.iterdir():
        stale.unlink()
    policy.config._save_pretrained(target)
    pre.save_pretrained(target)
    post.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)


def make_session(case: SessionCase) -> tuple[ACTPolicy, Any, Any]:
    modes = {key: NormalizationMode(mode) for key, mode in case.modes.items()}
    policy = make_policy(case.policy, normalization_mapping=modes)
    features = {**case.policy.input_features(), **case.policy.output_features()}
    statistics = {
        key: {stat: torch.from_numpy(value) for stat, value in values.items()}
        for key, values in seeded_statistics(features).items()
    }
    pre, post = make_act_pre_post_processors(policy.config, statistics)
    return policy, pre, post


def packed(case: SessionCase, step: int) -> dict[str, Any]:
    return prepare_observation_for_inference(case.observation(step), CPU)


def play(case: SessionCase, policy: ACTPolicy, pre: Any, post: Any) -> np.ndarray:
    """(steps, A): what select_action yields at each step, after the postprocessor."""
    policy.reset()
    actions = []
    for step in range(case.steps):
        if step == case.reset_before:
            policy.reset()
            pre.reset()
            post.reset()
        actions.append(post(policy.select_action(pre(packed(case, step)))).numpy()[0])
    return np.stack(actions)


def make_ensemble(folder: Path) -> None:
    """ensemble.npz: LeRobot's temporal ensembler on seeded chunks, with its own weights."""
    results = {}
    for coefficient in ENSEMBLE_COEFFS:
        ensembler = ACTTemporalEnsembler(coefficient, ENSEMBLE_SHAPE[0])
        chunks = (ensemble_chunk(coefficient, step) for step in range(ENSEMBLE_STEPS))
        actions = [ensembler.update(torch.from_numpy(chunk)[None]).numpy()[0] for chunk in chunks]
        results[f'{coefficient}/actions'] = np.stack(actions)
        results[f'{coefficient}/weights'] = ensembler.ensemble_weights.numpy()
    np.savez_compressed(folder / 'ensemble.npz', **results)


def make_normalization(folder: Path) -> None:
    """normalization.npz: every mode forward and back on every kind of feature."""
    results = {}
    features = policy_features(NORMALIZATION_FEATURES)
    statistics = normalization_statistics()
    for mode in NORMALIZATION_MODES:
        norm_map = dict.fromkeys(FeatureType, NormalizationMode(mode))
        arguments = {'features': features, 'norm_map': norm_map, 'stats': statistics}
        steps = {
            'forward': NormalizerProcessorStep(**arguments),
            'inverse': UnnormalizerProcessorStep(**arguments),
        }
        for direction, step in steps.items():
            inputs = {
                key: torch.from_numpy(normalization_input(key, direction)) for key in features
            }
            action = inputs.pop('action')
            outputs = step({TransitionKey.OBSERVATION: inputs, TransitionKey.ACTION: action})
            arrays = {
                **outputs[TransitionKey.OBSERVATION],
                'action': outputs[TransitionKey.ACTION],
            }
            for key, value in arrays.items():
                results[f'{mode}/{direction}/{key}'] = value.numpy()
    np.savez_compressed(folder / 'normalization.npz', **results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--output', type=Path, default=GOLDEN, help='folder to write into')
    folder = parser.parse_args().output
    if version('lerobot') != LEROBOT_VERSION:
        sys.exit(
            f'found lerobot {version("lerobot")}; these files are defined by {LEROBOT_VERSION}'
        )
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for make in (make_chunks, make_keys, make_sessions, make_ensemble, make_normalization):
        make(folder)
    versions = {name: version(name) for name in ('lerobot', 'torch', 'torchvision', 'numpy')}
    (folder / 'versions.json').write_text(json.dumps(versions, indent=2) + '\n')


if __name__ == '__main__':
    main()

"""Let LeRobot itself predict actions for observations that sparkrt exported.

Run it in an environment that has LeRobot 0.6 (nothing of sparkrt needs to be installed there):

    sparkrt parity BAG … --export-observations observations.npz
    python tools/lerobot_actions.py POLICY_FOLDER observations.npz actions.npz
    sparkrt parity BAG … --against lerobot actions.npz

docs/parity.md describes both files. The policy is LeRobot's own class with its own pre- and
postprocessor. One row at a time on one CPU thread: the same input yields the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

OBSERVATIONS_FORMAT = 'sparkrt-observations-1'
ACTIONS_FORMAT = 'sparkrt-actions-1'
WEIGHTS = 'model.safetensors'
PRECISIONS = {'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}
COPIED = ('observations_digest', 'bag_digest', 'checkpoint_digest')
NEEDED = (*COPIED, 'weights_sha256', 'chunk_size', 'action_size')


class Refused(Exception):
    """What was given does not fit together; the text says what, and what to do."""


def read_observations(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of an observation file, by name, and its ``meta``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise Refused(f'{path}: no readable .npz file ({error})') from error
    if 'meta' not in arrays or 'stamps_ns' not in arrays:
        raise Refused(f'{path}: found {sorted(arrays)}, expected also meta and stamps_ns')
    meta = json.loads(str(arrays.pop('meta')))
    if meta.get('format') != OBSERVATIONS_FORMAT:
        raise Refused(
            f'{path}: format is {meta.get("format")!r}, this script reads {OBSERVATIONS_FORMAT!r}'
        )
    missing = [key for key in NEEDED if key not in meta]
    if missing:
        raise Refused(f'{path}: its meta lacks {", ".join(missing)}')
    count = len(arrays['stamps_ns'])
    for name, array in arrays.items():
        if len(array) != count:
            raise Refused(f'{path}: {name} has {len(array)} rows, stamps_ns has {count}')
    return arrays, meta


def check_weights(folder: Path, meta: Mapping[str, Any]) -> str:
    """The digest of the weights in ``folder``, which must be those sparkrt had."""
    digest = hashlib.sha256()
    with (folder / WEIGHTS).open('rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = digest.hexdigest()
    if found != meta['weights_sha256']:
        raise Refused(
            f'{folder / WEIGHTS}: sha256 is {found}, the observations were exported for '
            f'{meta["weights_sha256"]}; give the policy folder that sparkrt used'
        )
    return found


def rows(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[dict[str, np.ndarray], Any]]:
    """Each observation as LeRobot takes it, and its noise or None."""
    keys = [name for name in arrays if name.startswith('observation.')]
    for index in range(len(arrays['stamps_ns'])):
        noise = arrays['noise'][index] if 'noise' in arrays else None
        yield {key: arrays[key][index].copy() for key in keys}, noise


class Peer:
    """LeRobot's policy with its processors, loaded from a folder."""

    def __init__(self, folder: Path, *, device: str) -> None:
        import torch
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors

        config = PreTrainedConfig.from_pretrained(folder)
        if config.n_obs_steps != 1:
            raise Refused(
                f'{folder}: the policy reads {config.n_obs_steps} observations at once; '
                'single rows can only be given to a policy that reads one'
            )
        config.device = device
        if hasattr(config, 'pretrained_backbone_weights'):
            # Otherwise they are fetched, only to be overwritten by those of the folder.
            config.pretrained_backbone_weights = None
        policy = get_policy_class(config.type).from_pretrained(folder, config=config, strict=True)
        self.policy = policy.to(device).eval()
        self.device = torch.device(device)
        self.pre, self.post = make_pre_post_processors(
            config,
            pretrained_path=str(folder),
            preprocessor_overrides=_on_device(folder / 'policy_preprocessor.json', device),
            postprocessor_overrides=_on_device(folder / 'policy_postprocessor.json', 'cpu'),
        )

    @property
    def precision(self) -> str:
        name = str(next(self.policy.parameters()).dtype).removeprefix('torch.')
        return PRECISIONS.get(name, name)

    def check_features(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse observations that lack something the policy reads."""
        missing = set(self.policy.config.input_features) - set(arrays)
        if missing:
            raise Refused(
                f'the policy reads {sorted(missing)}, which the observations lack; they hold '
                f'{sorted(arrays)}'
            )

    def predict(
        self, observation: dict[str, np.ndarray], *, task: str, noise: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(T, A) in model space and in policy units, after a reset."""
        import torch
        from lerobot.policies.utils import prepare_observation_for_inference

        for part in (self.policy, self.pre, self.post):
            part.reset()
        options = {} if noise is None else {'noise': torch.from_numpy(noise)[None].to(self.device)}
        with torch.inference_mode():
            batch = prepare_observation_for_inference(observation, self.device, task=task)
            chunk = self.policy.predict_action_chunk(self.pre(batch), **options)
            normalized = chunk.float().cpu().numpy()[0].copy()
            actions = self.post(chunk).float().cpu().numpy()[0].copy()
        return normalized, actions


def _on_device(pipeline: Path, device: str) -> dict[str, Any]:
    """Puts a pipeline's output on ``device``, whatever the policy was trained on."""
    steps = json.loads(pipeline.read_text(encoding='utf-8'))['steps']
    names = {step.get('registry_name') for step in steps}
    return {'device_processor': {'device': device}} if 'device_processor' in names else {}


def set_up_torch(threads: int) -> None:
    """Full precision, and the same bytes in every run."""
    # cuBLAS reads it when it starts.
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)


def predict_all(
    peer: Peer, arrays: Mapping[str, np.ndarray], *, task: str
) -> tuple[np.ndarray, np.ndarray]:
    """(N, T, A) in model space and in policy units."""
    count = len(arrays['stamps_ns'])
    done = []
    for index, (observation, noise) in enumerate(rows(arrays), start=1):
        done.append(peer.predict(observation, task=task, noise=noise))
        if index % max(count // 10, 1) == 0 or index == count:
            print(f'{index} of {count}', file=sys.stderr)
    normalized, actions = zip(*done, strict=True)
    return np.stack(normalized), np.stack(actions)


def write_actions(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an archive under exactly this name, whole or not at all."""
    unfinished = path.with_name(f'{path.name}.part')
    with unfinished.open('wb') as file:
        np.savez_compressed(file, **arrays)
    unfinished.replace(path)


def run(folder: Path, observations: Path, output: Path, *, device: str, threads: int) -> None:
    arrays, meta = read_observations(observations)
    if not len(arrays['stamps_ns']):
        raise Refused(f'{observations}: holds no observation')
    weights = check_weights(folder, meta)
    set_up_torch(threads)
    peer = Peer(folder, device=device)
    peer.check_features(arrays)
    normalized, actions = predict_all(peer, arrays, task=meta.get('task', ''))
    expected = (len(actions), meta['chunk_size'], meta['action_size'])
    if actions.shape != expected:
        raise Refused(f'LeRobot predicted actions of shape {actions.shape}, not {expected}')
    versions = {name: version(name) for name in ('lerobot', 'torch', 'numpy')}
    told = {
        'format': ACTIONS_FORMAT,
        **{key: meta[key] for key in COPIED},
        'weights_sha256': weights,
        'producer': f'lerobot {versions["lerobot"]}',
        'versions': {**versions, 'python': platform.python_version()},
        'device': device,
        'precision': peer.precision,
    }
    write_actions(
        output,
        {
            'actions': actions,
            'normalized': normalized,
            'stamps_ns': arrays['stamps_ns'],
            'meta': np.array(json.dumps(told)),
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=Path, help='the policy folder sparkrt was given')
    parser.add_argument('observations', type=Path, help='from sparkrt parity')
    parser.add_argument('output', type=Path, help='file to write, for --against lerobot')
    parser.add_argument('--device', default='cpu', help='where LeRobot computes (default: cpu)')
    parser.add_argument('--threads', type=int, default=1, help='CPU threads (default: 1)')
    options = parser.parse_args()
    try:
        run(
            options.folder,
            options.observations,
            options.output,
            device=options.device,
            threads=options.threads,
        )
    except (Refused, OSError, json.JSONDecodeError) as error:
        print(f'lerobot_actions: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())

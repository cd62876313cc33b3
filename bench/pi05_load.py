"""From a folder of a full-size Pi0.5 or Pi0 on a local disk to a policy that serves.

    python bench/pi05_load.py --views 3 --tokens 200

Writes a folder of random weights first (7 GB, in bf16), drops it again unless ``--keep`` names
one, and loads it in a process of its own, as a node does: seconds of importing, of each stage,
and of the first chunk, then the time of later chunks and the memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'bench')]
GOLDEN = ROOT / 'test' / 'golden'
CAMERAS = ('front', 'wrist', 'side')
SIZE = (480, 640)
CHUNKS = 20


def write_folder(folder: Path, options: argparse.Namespace) -> int:
    """A folder as LeRobot saves it, its weights random; return their bytes."""
    import torch
    from pi05_arms import RandomWeights
    from safetensors.torch import save_file

    from sparkrt_ros.runtime.checkpoint.config_file import read_config

    kind = 'pi0' if options.pi0 else 'pi05'
    shutil.copytree(GOLDEN / f'lerobot_{kind}_folder', folder, dirs_exist_ok=True)
    features = edit(folder / 'config.json', lambda config: enlarge(config, options))
    for name in ('policy_preprocessor.json', 'policy_postprocessor.json'):
        edit(folder / name, lambda steps: adapt(steps, features, options))
    config, _ = read_config(folder)
    weights: Any = RandomWeights(config, device=torch.device(options.device))
    tensors = {name: weights[name].to(torch.bfloat16).cpu() for name in weights}
    save_file(tensors, folder / 'model.safetensors')
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Change a JSON file in place; return what ``change`` does."""
    content = json.loads(path.read_text())
    result = change(content)
    path.write_text(json.dumps(content, indent=2))
    return result


def enlarge(config: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The sizes of the released policies, and as many cameras as asked for; their features."""
    config |= {'tokenizer_max_length': options.tokens, 'dtype': 'bfloat16'}
    config |= {'chunk_size': 50, 'n_action_steps': 50}
    if not options.tiny:
        config |= {'paligemma_variant': 'gemma_2b', 'action_expert_variant': 'gemma_300m'}
        config |= {'image_resolution': [224, 224]}
    kept = {key: one for key, one in config['input_features'].items() if one['type'] != 'VISUAL'}
    cameras = [f'observation.images.{name}' for name in CAMERAS[: options.views]]
    seen = {key: {'type': 'VISUAL', 'shape': [3, *SIZE]} for key in cameras}
    config['input_features'] = {**seen, **kept}
    return {**config['input_features'], **config['output_features']}


def adapt(pipeline: dict[str, Any], features: dict[str, Any], options: argparse.Namespace) -> None:
    """The same features and length of prompts in a pipeline."""
    for step in pipeline['steps']:
        if 'features' in step['config']:
            step['config']['features'] = features
        if 'max_length' in step['config']:
            step['config']['max_length'] = options.tokens


def load_and_report(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """In a fresh process: seconds of everything up to the first chunk, then chunks."""
    begin = time.perf_counter()
    marks: list[tuple[str, float]] = []

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter() - begin))

    import numpy as np
    import torch

    from sparkrt_ros.runtime.build_watch import BuildWatch
    from sparkrt_ros.runtime.config import RuntimeConfig
    from sparkrt_ros.runtime.policy import load_policy
    from sparkrt_ros.runtime.types import Observation
    from sparkrt_ros.runtime.vla_config import VlaConfig

    mark('imported')
    config = RuntimeConfig(
        device=options.device,
        precision=options.precision,
        vla=VlaConfig(tokenizer=str(GOLDEN / 'pi_tokenizer')),
    )
    policy = load_policy(folder, config=config, watch=BuildWatch(stage=mark))
    mark('loaded')
    random, capabilities = np.random.default_rng(0), policy.capabilities
    observation = Observation(
        images={
            key: random.integers(0, 256, (*shape[1:], 3), dtype=np.uint8)
            for key, shape in capabilities.image_shapes.items()
        },
        state=random.standard_normal(capabilities.state_size).astype(np.float32),
        task='pick up the cube',
    )
    policy.predict_chunk(observation)
    mark('first chunk')
    seconds = []
    for _ in range(CHUNKS):
        start = time.perf_counter()
        policy.predict_chunk(observation)
        seconds.append(time.perf_counter() - start)
    on_gpu = torch.cuda.is_available() and options.device != 'cpu'
    return {
        'marks_s': marks,
        'active_s': dict(marks)['loaded'],
        'chunk_p50_ms': float(np.median(seconds)) * 1e3,
        'resident_gb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        'device_gb': torch.cuda.memory_allocated() / 1e9 if on_gpu else 0.0,
        'device_peak_gb': torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0,
        'receipt': policy.receipt,
    }


def show(result: dict[str, Any]) -> None:
    before = 0.0
    print(f'{"":14} {"at [s]":>8} {"took [s]":>9}')
    for name, at in result['marks_s']:
        print(f'{name:14} {at:8.2f} {at - before:9.2f}')
        before = at
    for key in ('chunk_p50_ms', 'resident_gb', 'device_gb', 'device_peak_gb'):
        print(f'{key}: {result[key]:.2f}')
    receipt = result['receipt']
    print({key: receipt.get(key) for key in ('backend', 'precision', 'refused')})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--views', type=int, choices=(1, 2, 3), default=3, help='cameras')
    parser.add_argument('--tokens', type=int, default=200, help='longest prompt')
    parser.add_argument('--pi0', action='store_true', help='Pi0 instead of Pi0.5')
    parser.add_argument('--tiny', action='store_true', help='a network of a few kilobytes')
    parser.add_argument('--device', default='cuda', help='cpu, cuda or cuda:N')
    parser.add_argument('--precision', default='bf16', help='tier asked for')
    parser.add_argument('--keep', type=Path, help='folder to write, and to leave; used if there')
    parser.add_argument('--json', type=Path, help='also write everything here')
    parser.add_argument('--load', type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.load:
        print(json.dumps(load_and_report(options.load, options), default=str))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / 'policy'
        if not (folder / 'model.safetensors').is_file():
            start = time.perf_counter()
            size = write_folder(folder, options)
            print(f'{folder}: {size / 1e9:.2f} GB written in {time.perf_counter() - start:.1f} s')
        command = [sys.executable, __file__, '--load', str(folder), '--device', options.device]
        command += ['--precision', options.precision]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(found.splitlines()[-1])
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())

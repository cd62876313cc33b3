"""Pi0.5 and Pi0 at full size with random weights: ours beside LeRobot, on the same inputs.

    python bench/pi05.py --views 3 --tokens 200 --json pi05.json

Weights are drawn on the device. Every figure of an arm is from uint8 frames in host memory to
actions in host memory; arms take turns. An arm that cannot run is named with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec('sparkrt_ros') is None:
    sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / 'bench'))

from pi05_arms import (  # noqa: E402
    Arm,
    Arms,
    RandomWeights,
    free,
    lerobot_arms,
    make_config,
    make_prompt,
    noise_of,
    observe,
    our_arm,
)
from pi05_stages import roofline, stages  # noqa: E402

from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend  # noqa: E402
from sparkrt_ros.runtime.backends.eager import EagerBackend  # noqa: E402
from sparkrt_ros.runtime.bench import Spread  # noqa: E402
from sparkrt_ros.runtime.bench_machine import machine_facts  # noqa: E402
from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig  # noqa: E402
from sparkrt_ros.runtime.device import fp32_products, resolve_device  # noqa: E402
from sparkrt_ros.runtime.parity import compare  # noqa: E402
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter  # noqa: E402
from sparkrt_ros.runtime.precision.tiers import TIERS  # noqa: E402
from sparkrt_ros.runtime.vla_config import VlaConfig  # noqa: E402

OBSERVATIONS = 3
CFG_BETA = 1.5


def take_turns(arms: Sequence[Arm], config: PiConfig, *, rounds: int) -> None:
    """Every arm once per round on the same observation and noise; another begins each time."""
    for number in range(rounds):
        seed = number % OBSERVATIONS
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            arm.run(observe(config, seed), noise_of(config, seed), seed)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device, config = resolve_device(options.device), make_config(options)
    arms, result = Arms(config, device), {}
    reference = prepare(arms, config, options, result)
    if not options.no_lerobot:
        try:
            lerobot_arms(config, options, device, arms)
        except Exception as error:  # another project may raise whatever it likes
            arms.left_out['lerobot'] = f'{type(error).__name__}: {error}'
    take_turns(arms.ready, config, rounds=options.rounds)
    rows = summarise(arms.ready, reference)
    alone = [arm for arm in arms.ready if arm.name == 'fused']
    if alone:
        alone[0].seconds.clear()
        take_turns(alone, config, rounds=options.repeat)
        result['alone'] = asdict(Spread.of(alone[0].seconds))
    return {
        'machine': machine_facts(device),
        'options': {key: str(value) for key, value in vars(options).items()},
        'arms': rows,
        'left_out': arms.left_out,
        'roofline': roofline(
            config, views=options.views, tokens=options.tokens, steps=options.steps
        ),
        'peak_gb': torch.cuda.max_memory_allocated() / 1e9 if device.type == 'cuda' else 0.0,
        **result,
    }


def prepare(
    arms: Arms, config: PiConfig, options: argparse.Namespace, result: dict[str, Any]
) -> Arm:
    """Make our arms; return the float32 reference, of which only its chunks are left."""
    device, prompt = arms.device, make_prompt(config, options)
    start = time.perf_counter()
    weights, vla = RandomWeights(config, device=device), VlaConfig(num_steps=options.steps)
    full = PiAdapter(config, weights, device=device, vla=vla)
    print(f'weights: {time.perf_counter() - start:.1f} s', flush=True)
    reference = our_arm('reference', full, EagerBackend(device=device), prompt)
    take_turns([reference], config, rounds=OBSERVATIONS)
    graph = CudaGraphBackend if device.type == 'cuda' else EagerBackend
    if not options.plain:
        try:
            start = time.perf_counter()
            fused = full.fused(TIERS['bf16'])
            print(
                f'fused: {time.perf_counter() - start:.1f} s', *fused.notes, sep='\n', flush=True
            )
            arms.add('fused', lambda: our_arm('fused', fused, graph(device=device), prompt))
            result['stages'] = stages(fused, config, prompt, device)
            print(f'stages: {result["stages"]}', flush=True)
        except Exception as error:  # a compiler or a driver may raise whatever it likes
            arms.left_out['fused form'] = f'{type(error).__name__}: {error}'
    plain = full.fused(TIERS['bf16'], plain_operators=True)
    if options.guided:
        vla = VlaConfig(num_steps=options.steps, cfg_beta=CFG_BETA)
        guided = PiAdapter(config, weights, device=device, vla=vla).fused(TIERS['bf16'])
        both = make_prompt(config, options, prompts=2)
        arms.add(
            'fused, guided',
            lambda: our_arm(
                'fused, guided', guided, graph(device=device), both, cfg_beta=CFG_BETA
            ),
        )
    reference.predict = lambda *_: np.empty(0)
    del full
    free()
    arms.add('plain', lambda: our_arm('plain', plain, graph(device=device), prompt))
    arms.add('eager', lambda: our_arm('eager', plain, EagerBackend(device=device), prompt))
    return reference


def summarise(arms: Sequence[Arm], reference: Arm) -> list[dict[str, Any]]:
    """Times, and agreement of the last chunks with the float32 reference."""
    rows = []
    for arm in arms:
        seeds = sorted(arm.chunks)
        found, wanted = (np.stack([one.chunks[s] for s in seeds]) for one in (arm, reference))
        agreement = compare(found, wanted)
        rows.append(
            {
                'arm': arm.name,
                **asdict(Spread.of(arm.seconds)),
                **asdict(agreement),
                'memory_gb': arm.memory_gb,
                'notes': list(arm.notes),
            }
        )
    return rows


def show(result: Mapping[str, Any]) -> None:
    ideal = result['roofline']['total_ms']
    print(f'{"arm":18} {"p50":>8} {"p99":>8} {"roofline":>9} {"max_abs":>9} {"cosine":>10}')
    for row in result['arms']:
        share = ideal / row['p50_ms']
        print(
            f'{row["arm"]:18} {row["p50_ms"]:8.2f} {row["p99_ms"]:8.2f} {share:9.1%} '
            f'{row["max_abs"]:9.1e} {row["cosine"]:10.7f}'
        )
    for key in ('stages', 'alone', 'roofline', 'left_out', 'peak_gb'):
        print(f'{key}: {result.get(key)}')


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--views', type=int, choices=(1, 2, 3), default=3, help='cameras')
    parser.add_argument('--tokens', type=int, default=200, help='of the prompt')
    parser.add_argument('--steps', type=int, default=10, help='of denoising')
    parser.add_argument('--pi0', action='store_true', help='Pi0 instead of Pi0.5')
    parser.add_argument('--rounds', type=int, default=12, help='rounds in which arms take turns')
    parser.add_argument('--repeat', type=int, default=1000, help='of the fused form, after that')
    parser.add_argument('--device', default='auto', help='cpu, cuda, cuda:N or auto')
    parser.add_argument('--tiny', action='store_true', help='a network of a few kilobytes')
    parser.add_argument('--guided', action='store_true', help='classifier-free guidance as well')
    parser.add_argument('--plain', action='store_true', help='leave the fused form out')
    parser.add_argument('--no-lerobot', action='store_true', help='leave LeRobot out')
    parser.add_argument('--no-compile', action='store_true', help='leave its compiled form out')
    parser.add_argument('--json', type=Path, help='also write everything here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with fp32_products(allow_tf32=False):
        result = measure(options)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())

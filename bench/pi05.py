"""Pi0.5 and Pi0 at full size with random weights: ours beside LeRobot, on the same inputs.

    python bench/pi05.py --views 3 --tokens 200 --json pi05.json

Weights are drawn on the device. Every figure of an arm is from uint8 frames in host memory to
actions in host memory; arms take turns. An arm that cannot run is named with the reason.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec('sparkrt_ros') is None:
    sys.path.insert(0, str(ROOT))

from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend  # noqa: E402
from sparkrt_ros.runtime.backends.eager import EagerBackend  # noqa: E402
from sparkrt_ros.runtime.bench import Spread  # noqa: E402
from sparkrt_ros.runtime.bench_machine import machine_facts  # noqa: E402
from sparkrt_ros.runtime.checkpoint.features import (  # noqa: E402
    STATE_KEY,
    FeatureSpec,
    FeatureType,
)
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config, PiConfig  # noqa: E402
from sparkrt_ros.runtime.checkpoint.pi_tensors import required_shapes  # noqa: E402
from sparkrt_ros.runtime.device import fp32_products, resolve_device  # noqa: E402
from sparkrt_ros.runtime.host_inputs import HostInputs  # noqa: E402
from sparkrt_ros.runtime.kernels.pi_choice import captured_seconds  # noqa: E402
from sparkrt_ros.runtime.parity import compare  # noqa: E402
from sparkrt_ros.runtime.policies.flow_matching import make_plan  # noqa: E402
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter  # noqa: E402
from sparkrt_ros.runtime.policies.pi_fused import FusedPi  # noqa: E402
from sparkrt_ros.runtime.policies.pi_network import sample  # noqa: E402
from sparkrt_ros.runtime.precision.tiers import TIERS  # noqa: E402
from sparkrt_ros.runtime.processors.images import prepare_image  # noqa: E402
from sparkrt_ros.runtime.session import Session  # noqa: E402
from sparkrt_ros.runtime.types import Observation  # noqa: E402
from sparkrt_ros.runtime.vla_config import VlaConfig  # noqa: E402

CAMERAS = ('base', 'left', 'right')
OBSERVATIONS = 3
WARM_UP = 2
STATE = 14
# Of an H200: what its products and its memory were measured to do.
PEAK_FLOP_PER_S, BYTES_PER_S = 790e12, 4.3e12
Predict = Callable[[Observation, Tensor], np.ndarray]


class RandomWeights(Mapping[str, Tensor]):
    """Weights that keep activations alive, drawn on the device whenever one is asked for."""

    def __init__(self, config: PiConfig, *, device: torch.device) -> None:
        self._shapes, self._device = required_shapes(config), device

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        random = torch.Generator(self._device)
        random.manual_seed(int.from_bytes(name.encode(), 'little') % (2**61 - 1))
        value = torch.randn(shape, generator=random, device=self._device)
        if len(shape) == 1:
            is_scale = 'layer_norm' in name or 'post_layernorm' in name
            return value * 0.1 + (1.0 if is_scale and name.endswith('weight') else 0.0)
        if 'embed_tokens' in name or 'position_embedding' in name:
            return value * 0.02
        return value * value[0].numel() ** -0.5

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class FixedPrompt:
    """As many tokens as asked for, all of them text."""

    def __init__(self, tokens: int, *, vocabulary: int) -> None:
        random = np.random.default_rng(0)
        self.tokens = random.integers(1, vocabulary, (1, tokens), dtype=np.int64)
        self.lengths = (tokens,)

    def encode(
        self, task: str, state: object, *, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, np.array([self.tokens.shape[1]])


@dataclass(kw_only=True)
class Arm:
    """One implementation, and the seconds it took each time."""

    name: str
    predict: Predict
    notes: tuple[str, ...] = ()
    memory_gb: float = 0.0
    seconds: list[float] = field(default_factory=list)
    chunks: list[np.ndarray] = field(default_factory=list)

    def run(self, observation: Observation, noise: Tensor) -> None:
        start = time.perf_counter()
        chunk = self.predict(observation, noise)
        self.seconds.append(time.perf_counter() - start)
        self.chunks = [*self.chunks, chunk][-OBSERVATIONS:]


def make_config(options: argparse.Namespace) -> PiConfig:
    side = 42 if options.tiny else 224
    inputs = {
        f'observation.images.{name}': FeatureSpec(
            key=f'observation.images.{name}', type=FeatureType.VISUAL, shape=(3, side, side)
        )
        for name in CAMERAS[: options.views]
    }
    inputs[STATE_KEY] = FeatureSpec(key=STATE_KEY, type=FeatureType.STATE, shape=(STATE,))
    action = FeatureSpec(key='action', type=FeatureType.ACTION, shape=(STATE,))
    return (Pi0Config if options.pi0 else Pi05Config)(
        input_features=inputs,
        output_features={'action': action},
        paligemma_variant='tiny' if options.tiny else 'gemma_2b',
        action_expert_variant='tiny_expert' if options.tiny else 'gemma_300m',
        dtype='bfloat16',
        image_resolution=(side, side),
        tokenizer_max_length=options.tokens,
        num_inference_steps=options.steps,
    )


def make_prompt(config: PiConfig, options: argparse.Namespace) -> FixedPrompt:
    return FixedPrompt(options.tokens, vocabulary=config.sizes.language.vocabulary)


def observe(config: PiConfig, seed: int) -> Observation:
    random = np.random.default_rng(seed)
    return Observation(
        images={
            key: random.integers(0, 256, (*spec.shape[1:], 3), dtype=np.uint8)
            for key, spec in config.image_features.items()
        },
        state=random.standard_normal(STATE).astype(np.float32),
        task='go',
    )


def noise_of(config: PiConfig, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(config.chunk_size, config.max_action_dim, generator=random)


# Arms


def our_arm(name: str, adapter: PiAdapter, backend: Any, prompt: FixedPrompt) -> Arm:
    """A session on raw values: no folder, and a prompt that is tokens already."""
    inputs: Any = HostInputs(adapter.capabilities, device=backend.device, instruction=prompt)
    session = Session(adapter, dict, lambda actions: actions, backend, inputs=inputs)
    session.warm_up()
    failed = [f'{key}: {one["reason"]}' for key, one in session.report().items() if one['reason']]
    if failed:
        raise RuntimeError('; '.join(failed))

    def predict(observation: Observation, noise: Tensor) -> np.ndarray:
        return session.predict_chunk(observation, noise=noise)

    return Arm(name=name, predict=predict, notes=adapter.notes)


def lerobot_predict(theirs: Any, config: PiConfig, prompt: FixedPrompt, device: Any) -> Predict:
    tokens = torch.from_numpy(prompt.tokens).to(device)
    counts = torch.tensor([prompt.tokens.shape[1]], device=device)

    def predict(observation: Observation, noise: Tensor) -> np.ndarray:
        images = []
        for key in config.image_features:
            raw = torch.from_numpy(observation.images[key]).to(device)
            images.append(raw.permute(2, 0, 1).unsqueeze(0).float() / 255 * 2 - 1)
        masks = [torch.ones(1, dtype=torch.bool, device=device) for _ in images]
        state = None
        if config.model_type == 'pi0':
            state = torch.zeros(1, config.max_state_dim)
            state[0, :STATE] = torch.from_numpy(observation.state)
            state = state.to(device)
        chunk = theirs.predict(
            images, masks, tokens, counts, noise=noise.unsqueeze(0).to(device), state=state
        )
        return chunk[0, :, :STATE].float().cpu().numpy()

    return predict


def lerobot_arms(
    config: PiConfig, options: argparse.Namespace, device: torch.device, arms: Arms
) -> None:
    sys.path.append(str(ROOT / 'test' / 'gpu'))
    from lerobot_pi import HAS_LEROBOT, LeRobotPi

    if not HAS_LEROBOT:
        arms.left_out['lerobot'] = 'not installed: lerobot 0.6.1 and transformers'
        return
    prompt = make_prompt(config, options)
    theirs = LeRobotPi(config, RandomWeights(config, device=device), device=device)
    predict = lerobot_predict(theirs, config, prompt, device)
    arms.add('lerobot eager', lambda: Arm(name='lerobot eager', predict=predict))
    if options.no_compile:
        arms.left_out['lerobot compiled'] = 'left out as asked: it takes minutes'
        return
    other = LeRobotPi(config, RandomWeights(config, device=device), device=device)
    other._model.sample_actions = torch.compile(other._model.sample_actions)
    compiled = lerobot_predict(other, config, prompt, device)
    arms.add('lerobot compiled', lambda: Arm(name='lerobot compiled', predict=compiled))


class Arms:
    """Those that run, and why others do not."""

    def __init__(self, config: PiConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.ready: list[Arm] = []
        self.left_out: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], Arm]) -> None:
        start, before = time.perf_counter(), allocated_gb(self.device)
        try:
            arm = make()
            for seed in range(WARM_UP):
                arm.run(observe(self.config, seed), noise_of(self.config, seed))
        except Exception as error:  # a peer, a compiler or a driver may raise whatever it likes
            self.left_out[name] = f'{type(error).__name__}: {(str(error) or "-").splitlines()[0]}'
            return
        arm.seconds.clear()
        arm.memory_gb = allocated_gb(self.device) - before
        self.ready.append(arm)
        print(f'{name}: ready after {time.perf_counter() - start:.1f} s', flush=True)


def allocated_gb(device: torch.device) -> float:
    return torch.cuda.memory_allocated(device) / 1e9 if device.type == 'cuda' else 0.0


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# Figures of the fused form alone


def stages(
    adapter: PiAdapter, config: PiConfig, prompt: FixedPrompt, device: torch.device
) -> dict[str, Any]:
    """Seconds of vision, prefix and denoising on the device, and kernels per layer of a step."""
    network: Any = adapter.served
    if not isinstance(network, FusedPi):
        return {'left_out': 'there is no fused form here'}
    plan, first = make_plan(steps=config.num_inference_steps), observe(config, 0)
    side = config.image_resolution[0]
    with torch.inference_mode():
        images = [
            prepare_image(
                torch.from_numpy(first.images[key]).to(device).permute(2, 0, 1)[None] / 255, side
            )
            for key in config.image_features
        ]
        tokens = torch.from_numpy(prompt.tokens).to(device)
        counts = torch.tensor([tokens.shape[1]], device=device)
        state = torch.zeros(1, config.max_state_dim, device=device)
        known = state if config.model_type == 'pi0' else None
        noise = noise_of(config, 0)[None].to(device)
        pictures = network.see(images)
        prefix = network.read(pictures, tokens, counts)

        def denoise() -> Tensor:
            scene = network.scene(prefix, known)
            return sample(network, scene, noise, plan=plan, moments=network.moments)

        timed = {
            'vision': lambda: network.see(images),
            'prefix': lambda: network.read(pictures, tokens, counts),
            'denoise': denoise,
        }
        measure = captured_seconds if device.type == 'cuda' else wall_seconds
        found: dict[str, Any] = {f'{key}_ms': measure(run) * 1e3 for key, run in timed.items()}
        layers = len(plan.times) * config.sizes.expert.depth
        found['layer_us'] = found['denoise_ms'] * 1e3 / layers
        found['kernels'] = {key: count_kernels(run, device) for key, run in timed.items()}
        found['kernels_per_layer'] = found['kernels']['denoise'] / layers
    return found


def wall_seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def count_kernels(run: Callable[[], object], device: torch.device) -> int:
    """What the profiler sees on the device; 0 on a CPU, where nothing is launched."""
    if device.type != 'cuda':
        return 0
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as seen:
        run()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return sum(1 for event in seen.events() if event.device_type == cuda)


def roofline(config: PiConfig, *, views: int, tokens: int, steps: int) -> dict[str, float]:
    """Milliseconds of each stage in bf16 at the peaks of an H200: products, or reading weights.

    Two operations per multiply and add; the last layer of the prefix gives keys and values only.
    """
    vision, language, expert = (getattr(config.sizes, n) for n in ('vision', 'language', 'expert'))
    patches, heads = views * vision.patches, language.heads * language.head_dim
    seen, own = patches + tokens, config.chunk_size + (config.model_type == 'pi0')
    sight = vision.depth * (4 * vision.width**2 + 2 * vision.width * vision.mlp_width)
    sight_flop = 2 * patches * (sight + vision.width * language.width)
    sight_flop += vision.depth * 4 * patches * vision.patches * vision.width

    def layer(sizes: Any) -> int:
        keys = 2 * sizes.kv_heads * sizes.head_dim
        return sizes.width * (2 * heads + keys) + 3 * sizes.width * sizes.mlp_width

    last = language.width * 2 * language.kv_heads * language.head_dim
    read = (language.depth - 1) * layer(language) + last
    read_flop = 2 * seen * read + (language.depth - 1) * 4 * seen**2 * heads
    act = expert.depth * layer(expert)
    act_flop = steps * (2 * own * act + expert.depth * 4 * own * (seen + own) * heads)
    cache = seen * expert.depth * 4 * language.kv_heads * language.head_dim
    work = {
        'vision': (sight_flop, 2 * sight),
        'prefix': (read_flop, 2 * read),
        'denoise': (act_flop, steps * (2 * act + cache)),
    }
    found = {
        f'{key}_ms': max(flop / PEAK_FLOP_PER_S, size / BYTES_PER_S) * 1e3
        for key, (flop, size) in work.items()
    }
    return {**found, 'total_ms': sum(found.values())}


# Running


def take_turns(arms: Sequence[Arm], config: PiConfig, *, rounds: int) -> None:
    """Every arm once per round on the same observation and noise; another begins each time."""
    for number in range(rounds):
        seed = number % OBSERVATIONS
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            arm.run(observe(config, seed), noise_of(config, seed))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device, config = resolve_device(options.device), make_config(options)
    prompt, arms = make_prompt(config, options), Arms(config, device)
    vla = VlaConfig(num_steps=options.steps)
    start = time.perf_counter()
    weights = RandomWeights(config, device=device)
    full = PiAdapter(config, weights, device=device, vla=vla)
    print(f'weights: {time.perf_counter() - start:.1f} s', flush=True)
    tier, result = TIERS['bf16'], {}
    arms.add('reference', lambda: our_arm('reference', full, EagerBackend(device=device), prompt))
    reference = arms.ready.pop()
    take_turns([reference], config, rounds=OBSERVATIONS)
    graph = CudaGraphBackend if device.type == 'cuda' else EagerBackend
    if not options.plain:
        try:
            fused = full.fused(tier)
        except Exception as error:  # a compiler or a driver may raise whatever it likes
            arms.left_out['fused'] = f'{type(error).__name__}: {error}'
        else:
            print(*fused.notes, sep='\n', flush=True)
            arms.add('fused', lambda: our_arm('fused', fused, graph(device=device), prompt))
            result['stages'] = stages(fused, config, prompt, device)
    plain = full.fused(tier, plain_operators=True)
    del full
    reference.predict = lambda *_: np.empty(0)
    free()
    arms.add('plain', lambda: our_arm('plain', plain, graph(device=device), prompt))
    arms.add('eager', lambda: our_arm('eager', plain, EagerBackend(device=device), prompt))
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


def summarise(arms: Sequence[Arm], reference: Arm) -> list[dict[str, Any]]:
    """Times, and agreement of the last chunks with the float32 reference."""
    rows = []
    for arm in arms:
        agreement = compare(np.stack(arm.chunks), np.stack(reference.chunks))
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

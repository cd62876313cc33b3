"""Where the fused Pi0.5 spends its time, and what an H200 would need at its peaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from pi05_arms import FixedPrompt, noise_of, observe
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.kernels.pi_choice import captured_seconds
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.policies.pi_fused import FusedPi
from sparkrt_ros.runtime.policies.pi_network import sample
from sparkrt_ros.runtime.processors.images import prepare_image

# Of an H200: what its products and its memory were measured to do.
PEAK_FLOP_PER_S, BYTES_PER_S = 790e12, 4.3e12


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
        try:
            found['kernels'] = {key: count_kernels(run, device) for key, run in timed.items()}
            found['kernels_per_layer'] = found['kernels']['denoise'] / layers
        except RuntimeError as error:  # a profiler that another program holds
            found['kernels'] = f'not counted: {error}'
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

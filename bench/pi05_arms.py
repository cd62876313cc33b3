"""Pi0.5 and Pi0 with random weights behind one call each: ours, and a real LeRobot."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.features import STATE_KEY, FeatureSpec, FeatureType
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config, PiConfig
from sparkrt_ros.runtime.checkpoint.pi_tensors import required_shapes
from sparkrt_ros.runtime.host_inputs import HostInputs
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.session import Session
from sparkrt_ros.runtime.types import Observation

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ('base', 'left', 'right')
WARM_UP = 2
STATE = 14
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
    """As many tokens as asked for, all of them text. prompts: 2 under guidance."""

    def __init__(self, tokens: int, *, vocabulary: int, prompts: int = 1) -> None:
        random = np.random.default_rng(0)
        self.tokens = random.integers(1, vocabulary, (prompts, tokens), dtype=np.int64)
        self.lengths = (tokens,)

    def encode(
        self, task: str, state: object, *, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, np.full(len(self.tokens), self.tokens.shape[1])


@dataclass(kw_only=True)
class Arm:
    """One implementation, the seconds it took each time, its last chunk for each seed."""

    name: str
    predict: Predict
    notes: tuple[str, ...] = ()
    memory_gb: float = 0.0
    seconds: list[float] = field(default_factory=list)
    chunks: dict[int, np.ndarray] = field(default_factory=dict)

    def run(self, observation: Observation, noise: Tensor, seed: int) -> None:
        start = time.perf_counter()
        chunk = self.predict(observation, noise)
        self.seconds.append(time.perf_counter() - start)
        self.chunks[seed] = chunk


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


def make_prompt(config: PiConfig, options: argparse.Namespace, *, prompts: int = 1) -> FixedPrompt:
    vocabulary = config.sizes.language.vocabulary
    return FixedPrompt(options.tokens, vocabulary=vocabulary, prompts=prompts)


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


def our_arm(
    name: str,
    adapter: PiAdapter,
    backend: Any,
    prompt: FixedPrompt,
    *,
    cfg_beta: float | None = None,
) -> Arm:
    """A session on raw values: no folder, and a prompt that is tokens already."""
    inputs: Any = HostInputs(
        adapter.capabilities, device=backend.device, instruction=prompt, cfg_beta=cfg_beta
    )
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
                arm.run(observe(self.config, seed), noise_of(self.config, seed), seed)
        except Exception as error:  # a peer, a compiler or a driver may raise whatever it likes
            self.left_out[name] = f'{type(error).__name__}: {(str(error) or "-").splitlines()[0]}'
            return
        ready_s, last_ms = time.perf_counter() - start, arm.seconds[-1] * 1e3
        arm.seconds.clear()
        arm.memory_gb = allocated_gb(self.device) - before
        self.ready.append(arm)
        print(f'{name}: ready after {ready_s:.1f} s, last chunk {last_ms:.2f} ms', flush=True)


def allocated_gb(device: torch.device) -> float:
    return torch.cuda.memory_allocated(device) / 1e9 if device.type == 'cuda' else 0.0


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

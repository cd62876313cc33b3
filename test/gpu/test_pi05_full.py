"""Pi0.5 and Pi0 at full size, with random weights, against a real LeRobot on the same device.

Needs about 30 GB of device memory. Run with ``-o log_cli_level=INFO`` to see the differences.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from lerobot_pi import HAS_LEROBOT, LeRobotPi
from pi_folder import CONFIGS, TOKENIZER
from torch import Tensor

from sparkrt_ros.runtime.backends.base import ExecutionBackend
from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.checkpoint.features import STATE_KEY, FeatureSpec, FeatureType
from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.checkpoint.pi_tensors import required_shapes
from sparkrt_ros.runtime.checkpoint.steps import PipelineSpec, StatePromptStep, TokenizerStep
from sparkrt_ros.runtime.device import fp32_products
from sparkrt_ros.runtime.host_inputs import HostInputs
from sparkrt_ros.runtime.parity import Agreement, compare
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.policies.pi_network import PiNetwork, sample
from sparkrt_ros.runtime.policies.pi_weights import load_network
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.processors.prompt import Instruction, PromptEncoder
from sparkrt_ros.runtime.processors.tokenizer import load_tokenizer
from sparkrt_ros.runtime.session import Session
from sparkrt_ros.runtime.types import Observation
from sparkrt_ros.runtime.vla_config import StatePromptConfig

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(580)]

CUDA = torch.device('cuda', 0)
LANGUAGE, EXPERT, SIDE = 'gemma_2b', 'gemma_300m', 224
CAMERAS = ('base', 'left', 'right')
FP32_TOLERANCE = 1e-3
FP32_COSINE = 0.999999
BF16_COSINE = 0.9999
# Prompt lengths of a batch, and which cameras are there in each sample.
CASES = {
    'three cameras': ((200,), ((True, True, True),)),
    'short prompt': ((17,), ((True, True, True),)),
    'masked camera': ((63,), ((True, True, False),)),
    'batch': ((50, 200), ((True, True, True), (True, False, False))),
}


def make_config(kind: str, dtype: str) -> PiConfig:
    inputs = {
        f'observation.images.{name}': FeatureSpec(
            key=f'observation.images.{name}', type=FeatureType.VISUAL, shape=(3, SIDE, SIDE)
        )
        for name in CAMERAS
    }
    inputs[STATE_KEY] = FeatureSpec(key=STATE_KEY, type=FeatureType.STATE, shape=(14,))
    return CONFIGS[kind](
        input_features=inputs,
        output_features={
            'action': FeatureSpec(key='action', type=FeatureType.ACTION, shape=(14,))
        },
        paligemma_variant=LANGUAGE,
        action_expert_variant=EXPERT,
        dtype=dtype,
        image_resolution=(SIDE, SIDE),
    )


class RandomWeights(Mapping[str, Tensor]):
    """Weights of a scale that keeps activations alive, drawn on the device when asked for."""

    def __init__(self, config: PiConfig, *, device: torch.device) -> None:
        self._shapes = required_shapes(config)
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self._device)
        generator.manual_seed(int.from_bytes(name.encode(), 'little') % (2**61 - 1))
        value = torch.randn(shape, generator=generator, device=self._device)
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


def draw(name: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(name) * 1000 + sum(map(ord, name)))
    return torch.randn(shape, generator=generator)


def make_inputs(config: PiConfig, case: str, *, device: torch.device) -> dict[str, Any]:
    counts, present = CASES[case]
    batch = len(counts)
    length = config.tokenizer_max_length
    limit = config.sizes.language.vocabulary
    counted = torch.tensor([min(count, length) for count in counts])
    tokens = (draw(f'{case}/tokens', batch, length).abs() * 1e4).long() % (limit - 1) + 1
    tokens = torch.where(torch.arange(length) < counted[:, None], tokens, 0)
    images = [draw(f'{case}/{name}', batch, 3, SIDE, SIDE).tanh() for name in CAMERAS]
    state = torch.zeros(batch, config.max_state_dim)
    state[:, :14] = draw(f'{case}/state', batch, 14)
    return {
        'images': [image.to(device) for image in images],
        'present': torch.tensor(present, device=device),
        'tokens': tokens.to(device),
        'counts': counted.to(device),
        'noise': draw(f'{case}/noise', batch, config.chunk_size, 32).to(device),
        'state': state.to(device) if config.model_type == 'pi0' else None,
    }


def predict_ours(network: PiNetwork, inputs: Mapping[str, Any]) -> np.ndarray:
    plan = make_plan(steps=10)
    with torch.inference_mode():
        prefix = network.encode(
            inputs['images'], inputs['tokens'], inputs['counts'], image_mask=inputs['present']
        )
        scene = network.scene(prefix, inputs['state'])
        moments = network.moments(plan.times)
        chunk = sample(network, scene, inputs['noise'], plan=plan, moments=moments)
    return chunk.float().cpu().numpy()


def predict_theirs(network: LeRobotPi, inputs: Mapping[str, Any]) -> np.ndarray:
    chunk = network.predict(
        inputs['images'],
        list(inputs['present'].unbind(dim=1)),
        inputs['tokens'],
        inputs['counts'],
        noise=inputs['noise'],
        state=inputs['state'],
    )
    return chunk.float().cpu().numpy()


def agreements(kind: str, dtype: str, *, device: torch.device) -> dict[str, Agreement]:
    """Ours against LeRobot's on every case; one network at a time is on the device."""
    config = make_config(kind, dtype)
    weights = RandomWeights(config, device=device)
    inputs = {case: make_inputs(config, case, device=device) for case in CASES}
    with fp32_products(allow_tf32=False):
        network = load_network(config, weights, device=device, dtype=getattr(torch, dtype))
        ours = {case: predict_ours(network, given) for case, given in inputs.items()}
        del network
        free(device)
        theirs_network = LeRobotPi(config, weights, device=device)
        theirs = {case: predict_theirs(theirs_network, given) for case, given in inputs.items()}
    del theirs_network
    free(device)
    return {case: compare(ours[case], theirs[case]) for case in CASES}


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == 'cuda':
        torch.cuda.empty_cache()


@pytest.mark.skipif(not HAS_LEROBOT, reason='needs lerobot 0.6.1 and transformers')
@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_full_size_predicts_what_lerobot_predicts(kind: str, dtype: str) -> None:
    found = agreements(kind, dtype, device=CUDA)
    for case, agreement in found.items():
        _log.info('%s %s %s: %s', kind, dtype, case, agreement)
    for case, agreement in found.items():
        assert agreement.cosine >= (BF16_COSINE if dtype == 'bfloat16' else FP32_COSINE), case
        if dtype == 'float32':
            assert agreement.max_abs <= FP32_TOLERANCE, case


def make_session(adapter: PiAdapter, backend: ExecutionBackend) -> Session:
    """A session without a folder: raw values, and prompts with the tiny tokenizer."""
    steps = (
        StatePromptStep(max_state_dim=32),
        TokenizerStep(max_length=200, tokenizer_name=None, folder=None),
    )
    pipeline = PipelineSpec(name='prompt', file=TOKENIZER, steps=steps)
    encoder = PromptEncoder(pipeline, load_tokenizer(TOKENIZER / 'tokenizer.json'))
    lengths = StatePromptConfig(lengths=(64, 128)).resolve(200)
    inputs = HostInputs(
        adapter.capabilities,
        device=backend.device,
        instruction=Instruction(encoder, lengths=lengths),
        seed=0,
    )
    return Session(adapter, dict, lambda actions: actions, backend, inputs=inputs)


def observe(seed: int, words: int) -> Observation:
    random = np.random.default_rng(seed)
    return Observation(
        images={
            f'observation.images.{name}': random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            for name in CAMERAS
        },
        state=random.standard_normal(14).astype(np.float32),
        task='pick up the red cube ' * words,
    )


@pytest.fixture(scope='module')
def adapter() -> Iterator[PiAdapter]:
    config = make_config('pi05', 'bfloat16')
    full = PiAdapter(config, RandomWeights(config, device=CUDA), device=CUDA)
    served = full.fused(TIERS['bf16'], plain_operators=True)
    del full
    free(CUDA)
    yield served
    del served
    free(CUDA)


def test_one_recording_per_length_serves_every_prompt(adapter: PiAdapter) -> None:
    captured = make_session(adapter, CudaGraphBackend(device=CUDA))
    eager = make_session(adapter, EagerBackend(device=CUDA))
    captured.warm_up()
    captured.seal()
    before = captured.report()['chunk']
    assert before['reason'] == ''
    assert before['recordings'] == 3
    for seed, words in enumerate((1, 8, 3, 20, 1)):
        observation = observe(seed, words)
        noise = draw(f'noise {seed}', 50, 32)
        found = captured.predict_chunk(observation, noise=noise)
        assert compare(found, eager.predict_chunk(observation, noise=noise)).cosine >= BF16_COSINE
    after = captured.report()['chunk']
    assert after['recordings'] == 3
    assert after['eager_calls'] == 0


def test_the_same_noise_gives_the_same_bytes(adapter: PiAdapter) -> None:
    session = make_session(adapter, CudaGraphBackend(device=CUDA))
    noise = draw('noise', 50, 32)
    first, second = observe(0, 1), observe(1, 1)
    wanted = session.predict_chunk(first, noise=noise)
    assert session.predict_chunk(second, noise=noise).tobytes() != wanted.tobytes()
    assert session.predict_chunk(first, noise=noise).tobytes() == wanted.tobytes()
    assert session.predict_chunk(first, noise=-noise).tobytes() != wanted.tobytes()


def test_weights_in_bfloat16_take_the_memory_they_should(adapter: PiAdapter) -> None:
    """Decoders and embeddings in two bytes, the vision tower and the norms in four."""
    parameters = list(adapter.network.parameters())
    held = sum(value.numel() * value.element_size() for value in parameters)
    wide = sum(value.numel() for value in parameters if value.dtype == torch.float32)
    assert sum(value.numel() for value in parameters) == pytest.approx(3.353e9, rel=0.01)
    assert wide == pytest.approx(0.534e9, rel=0.01)
    assert held < 8e9

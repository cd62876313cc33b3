"""Pi0.5 and Pi0 at full size without memory: shapes, parameters and the work of a chunk."""

from __future__ import annotations

import pytest
import torch
from pi_folder import CONFIGS, PI_CASES, features
from torch.utils.flop_counter import FlopCounterMode

from sparkrt_ros.runtime.checkpoint.pi_tensors import required_shapes
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.pi_network import PiNetwork, sample
from sparkrt_ros.runtime.policies.pi_weights import load_network

META = torch.device('meta')
GIGA = 1e9


def make_network(kind: str) -> PiNetwork:
    case = PI_CASES[kind]
    config = CONFIGS[kind](
        input_features=features(case.input_features()),
        output_features=features(case.output_features()),
        dtype='bfloat16',
    )
    weights = {
        name: torch.empty(shape, device=META) for name, shape in required_shapes(config).items()
    }
    return load_network(config, weights, device=META, dtype=torch.bfloat16)


def flop(run: object) -> float:
    with FlopCounterMode(display=False) as counter:
        run()  # type: ignore[operator]
    return counter.get_total_flops() / GIGA


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_three_cameras_and_two_hundred_tokens_become_a_chunk(kind: str) -> None:
    network = make_network(kind)
    images = [torch.empty(2, 3, 224, 224, device=META) for _ in range(3)]
    tokens = torch.empty(2, 200, dtype=torch.int64, device=META)
    counts = torch.empty(2, dtype=torch.int64, device=META)
    prefix = network.encode(images, tokens, counts)
    assert prefix.keys.shape == prefix.values.shape == (18, 2, 1, 968, 256)
    assert prefix.keys.dtype == torch.bfloat16
    assert prefix.valid.shape == (2, 968)
    state = torch.empty(2, 32, device=META) if kind == 'pi0' else None
    plan = make_plan(steps=2)
    moments = network.moments(plan.times)
    assert moments.shape == ((2, 37, 3, 1024) if kind == 'pi05' else (2, 1024))
    noise = torch.empty(2, 50, 32, device=META)
    scene = network.scene(prefix, state)
    chunk = sample(network, scene, noise, plan=plan, moments=moments)
    assert chunk.shape == (2, 50, 32)
    assert chunk.dtype == torch.float32


def test_the_work_of_a_chunk_is_what_arithmetic_says() -> None:
    """2 x parameters x tokens, and attention; the last layer of the prefix gives keys only."""
    network = make_network('pi05')
    images = [torch.empty(1, 3, 224, 224, device=META) for _ in range(3)]
    tokens = torch.empty(1, 200, dtype=torch.int64, device=META)
    counts = torch.empty(1, dtype=torch.int64, device=META)
    assert flop(lambda: network.vision(images[0])) == pytest.approx(219, rel=0.02)
    assert flop(lambda: network.encode(images, tokens, counts)) == pytest.approx(
        661 + 3756, rel=0.02
    )
    scene = network.scene(network.encode(images, tokens, counts))
    plan = make_plan(steps=2)
    moments = network.moments(plan.times)
    noise = torch.empty(1, 50, 32, device=META)
    steps = flop(lambda: sample(network, scene, noise, plan=plan, moments=moments))
    assert steps == pytest.approx(387 / 5, rel=0.03)

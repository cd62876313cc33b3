"""The fused form of ACT against the same outputs of a real LeRobot, on every kind of operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from act_cases import ACT_CASES
from golden_folder import GOLDEN
from test_act_golden import inputs, make_model, predict

from sparkrt_ros.runtime.device import fp32_products
from sparkrt_ros.runtime.kernels.choose import choose_forms
from sparkrt_ros.runtime.kernels.forms import Forms, PlainForms
from sparkrt_ros.runtime.policies.act_fused import FusedAct

# These seeded networks amplify rounding: LeRobot's own fp32 chunk of `full_size` lies 1.5e-5 from
# the float64 result. Sums in another order may differ from it by twice that. (A trained policy
# differs by 4e-6. The form as written, backend `eager`, has no difference at all.)
FUSED_TOLERANCE = 3e-5
COSINE_OF_BF16 = 0.999
BF16_CASES = ('full_size', 'resnet18', 'pre_norm', 'gelu', 'seven_decoder_layers', 'no_state')


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'act_chunks.npz') as arrays:
        return dict(arrays)


def fused_chunk(name: str, forms: Forms, device: torch.device, dtype: torch.dtype) -> np.ndarray:
    case = ACT_CASES[name]
    fused = FusedAct(make_model(case), forms=forms, device=device, dtype=dtype)
    tensors = {key: value.to(device) for key, value in inputs(case, name, 1).items()}
    with torch.inference_mode(), fp32_products(allow_tf32=False):
        chunk = fused(
            images=[value for key, value in tensors.items() if 'images' in key],
            state=tensors.get('observation.state'),
            environment_state=tensors.get('observation.environment_state'),
        )
    return chunk.cpu().numpy()


@pytest.mark.parametrize('name', ACT_CASES)
@pytest.mark.parametrize('kind', ['plain', 'best'])
def test_fused_chunk_equals_lerobots(name: str, kind: str, golden: dict[str, np.ndarray]) -> None:
    cpu = torch.device('cpu')
    forms: Forms = PlainForms(device=cpu, dtype=torch.float32)
    if kind == 'best':
        forms, reason = choose_forms(device=cpu, dtype=torch.float32)
        assert reason == ''
    chunk = fused_chunk(name, forms, cpu, torch.float32)
    assert np.abs(chunk - golden[f'{name}/1']).max() <= FUSED_TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize('name', ACT_CASES)
def test_fused_chunk_equals_lerobots_on_a_gpu(name: str, golden: dict[str, np.ndarray]) -> None:
    cuda = torch.device('cuda')
    forms, reason = choose_forms(device=cuda, dtype=torch.float32)
    assert reason == ''
    chunk = fused_chunk(name, forms, cuda, torch.float32)
    assert np.abs(chunk - golden[f'{name}/1']).max() <= FUSED_TOLERANCE


@pytest.mark.parametrize('name', BF16_CASES)
def test_bf16_stays_near_lerobots(name: str, golden: dict[str, np.ndarray]) -> None:
    cpu = torch.device('cpu')
    forms, _ = choose_forms(device=cpu, dtype=torch.bfloat16)
    chunk = fused_chunk(name, forms, cpu, torch.bfloat16).ravel().astype(np.float64)
    wanted = golden[f'{name}/1'].ravel().astype(np.float64)
    cosine = chunk @ wanted / (np.linalg.norm(chunk) * np.linalg.norm(wanted))
    assert cosine >= COSINE_OF_BF16


def test_building_the_fused_form_leaves_the_model_as_it_was() -> None:
    name = next(iter(ACT_CASES))
    model = make_model(ACT_CASES[name])
    before = predict(model, inputs(ACT_CASES[name], name, 1))
    cpu = torch.device('cpu')
    FusedAct(
        model,
        forms=PlainForms(device=cpu, dtype=torch.bfloat16),
        device=cpu,
        dtype=torch.bfloat16,
    )
    after = predict(model, inputs(ACT_CASES[name], name, 1))
    np.testing.assert_array_equal(before, after)

"""Our Pi0 and Pi0.5 against the outputs of a real LeRobot."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from golden_folder import GOLDEN
from pi_cases import (
    IMAGE_SIDE,
    IMAGE_SIZES,
    PI_CASES,
    PI_INPUTS,
    TINY_EXPERT,
    TINY_LANGUAGE,
    TINY_VISION,
    VOCABULARY,
    PiCase,
    PiInputs,
)
from pi_folder import CONFIGS, features, make_adapter, make_batch
from seeded_weights import seeded_image

from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.checkpoint.pi_sizes import GEMMA_VARIANTS, pi_sizes
from sparkrt_ros.runtime.checkpoint.pi_tensors import UNREAD_WEIGHTS, required_shapes
from sparkrt_ros.runtime.host_inputs import CONTINUED_KEY, COUNTS_KEY, DELAY_KEY, HORIZON_KEY
from sparkrt_ros.runtime.parity import compare
from sparkrt_ros.runtime.policies.adapter import make_context
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.gemma import rotary_frequencies, rotation_at
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.policies.pi_network import sample
from sparkrt_ros.runtime.policies.pi_weights import load_network
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.processors.images import letterbox, prepare_image
from sparkrt_ros.runtime.vla_config import RtcConfig, VlaConfig

pytestmark = pytest.mark.usefixtures('one_thread')

FP32_TOLERANCE = 1e-5
BF16_TOLERANCE = 5e-2
BF16_COSINE = 0.9999
VISIBLE = 1e-3
EACH = [(case, name) for case, several in PI_INPUTS.items() for name in several]
IN_FP32 = [(case, name) for case, name in EACH if PI_CASES[case].dtype == 'float32']
IN_BF16 = [(case, name) for case, name in EACH if PI_CASES[case].dtype == 'bfloat16']


def choices(inputs: PiInputs) -> VlaConfig:
    rtc = None
    if inputs.rtc is not None:
        rtc = RtcConfig(schedule=inputs.rtc[0].lower())
    missing = tuple(f'observation.images.{name}' for name in inputs.absent)
    return VlaConfig(num_steps=inputs.steps, missing_cameras=missing, rtc=rtc)


def run(adapter: PiAdapter, case: PiCase, inputs: PiInputs, seed: str, **other: Any) -> np.ndarray:
    """The chunk (B, T, A); ``other``: entries of the batch, or noise, to replace."""
    batch = {**make_batch(case, inputs, seed), **continued(case, inputs, seed)}
    noise = other.pop('noise', torch.from_numpy(inputs.noise(seed)))
    context = make_context(adapter.regions(), backend=EagerBackend(device=torch.device('cpu')))
    with torch.inference_mode():
        return adapter.predict_chunk(context, {**batch, **other}, noise=noise).float().numpy()


def continued(case: PiCase, inputs: PiInputs, seed: str) -> dict[str, torch.Tensor]:
    """LeRobot gives rows that end early no weight; then the horizon ends with them."""
    if inputs.rtc is None:
        return {}
    _, delay, horizon, rows = inputs.rtc
    previous = torch.from_numpy(inputs.previous(case, seed)).unsqueeze(0)
    filled = torch.nn.functional.pad(previous, (0, 0, 0, 6 - rows))
    return {
        CONTINUED_KEY: filled,
        DELAY_KEY: torch.tensor([delay]),
        HORIZON_KEY: torch.tensor([min(horizon, rows)]),
    }


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'pi_chunks.npz') as arrays:
        return dict(arrays)


def test_every_case_has_a_golden_chunk(golden: dict[str, np.ndarray]) -> None:
    assert set(golden) == {f'{case}/{name}' for case, name in EACH}


@pytest.mark.parametrize(('case', 'name'), IN_FP32)
def test_chunk_equals_lerobots(case: str, name: str, golden: dict[str, np.ndarray]) -> None:
    inputs, seed = PI_INPUTS[case][name], f'{case}/{name}'
    adapter = make_adapter(PI_CASES[case], vla=choices(inputs))
    chunk = run(adapter, PI_CASES[case], inputs, seed)
    assert chunk.shape == golden[seed].shape
    assert np.abs(chunk - golden[seed]).max() <= FP32_TOLERANCE


@pytest.mark.parametrize(('case', 'name'), IN_BF16)
def test_chunk_in_bfloat16_is_lerobots(
    case: str, name: str, golden: dict[str, np.ndarray]
) -> None:
    inputs, seed = PI_INPUTS[case][name], f'{case}/{name}'
    adapter = make_adapter(PI_CASES[case], vla=choices(inputs)).fused(TIERS['bf16'])
    agreement = compare(run(adapter, PI_CASES[case], inputs, seed), golden[seed])
    assert agreement.cosine >= BF16_COSINE
    assert agreement.max_abs <= BF16_TOLERANCE


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_rotation_is_lerobots_to_the_last_bit(dtype: str) -> None:
    with np.load(GOLDEN / 'pi_rotary.npz') as arrays:
        expected = {part: arrays[f'{dtype}/{part}'] for part in ('cos', 'sin')}
        positions = torch.from_numpy(arrays['positions'])
    frequencies = rotary_frequencies(256, rounded=dtype == 'bfloat16')
    found = rotation_at(positions[None], frequencies, dtype=getattr(torch, dtype))
    for part, values in expected.items():
        np.testing.assert_array_equal(getattr(found, part)[0, 0].float().numpy(), values)


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_a_bfloat16_policy_keeps_its_rounding_in_every_arithmetic(kind: str) -> None:
    adapter = make_adapter(PI_CASES[f'{kind}_bf16'])
    exact = make_adapter(PI_CASES[kind])
    scale = torch.tensor(48.0).sqrt()
    for served in (adapter, adapter.fused(TIERS['bf16']), adapter.fused(TIERS['fp32'])):
        assert served.network.text_scale == float(scale.bfloat16())
        assert torch.equal(
            served.network.frequencies, exact.network.frequencies.bfloat16().float()
        )
    assert exact.network.text_scale == pytest.approx(float(scale), abs=1e-6)
    assert not torch.equal(exact.network.frequencies, adapter.network.frequencies)


@pytest.mark.parametrize('case', ['pi05', 'pi0'])
@pytest.mark.parametrize('name', ['first_camera_missing', 'middle_camera_missing'])
def test_a_masked_picture_is_as_good_as_none(
    case: str, name: str, golden: dict[str, np.ndarray]
) -> None:
    """LeRobot fills in pictures of -1 at the end, and masks them."""
    inputs, seed = PI_INPUTS[case][name], f'{case}/{name}'
    adapter = make_adapter(PI_CASES[case], vla=choices(inputs))
    network, config = adapter.network, PI_CASES[case]
    batch = make_batch(config, inputs, seed)
    images = [prepare_image(value, IMAGE_SIDE) for key, value in batch.items() if 'images' in key]
    images.append(torch.full_like(images[0], -1.0))
    mask = torch.tensor([[True, True, False]]).repeat(inputs.batch, 1)
    plan = make_plan(steps=inputs.steps)
    state = torch.nn.functional.pad(batch['observation.state'], (0, 32 - 7))
    with torch.inference_mode():
        prefix = network.encode(
            images, batch['observation.language.tokens'], batch[COUNTS_KEY], image_mask=mask
        )
        scene = network.scene(prefix, state if case == 'pi0' else None)
        noise = torch.from_numpy(inputs.noise(seed))
        chunk = sample(network, scene, noise, plan=plan, moments=network.moments(plan.times))
    assert np.abs(chunk.numpy()[..., :7] - golden[seed]).max() <= FP32_TOLERANCE


@pytest.mark.parametrize('case', ['pi05', 'pi0'])
def test_chunk_depends_on_every_input(case: str) -> None:
    """A golden chunk that ignored an input would prove nothing about it."""
    inputs, config = PiInputs(counts=(13,), rtc=('LINEAR', 1, 4, 5)), PI_CASES[case]
    adapter = make_adapter(config, vla=choices(inputs))
    reference = run(adapter, config, inputs, 'one')
    other = {**make_batch(config, inputs, 'two'), **continued(config, inputs, 'two')}
    other['noise'] = torch.from_numpy(inputs.noise('two'))
    other[COUNTS_KEY] = torch.tensor([12])
    other[DELAY_KEY], other[HORIZON_KEY] = torch.tensor([2]), torch.tensor([5])
    if case == 'pi05':
        # Here the state is part of the tokens.
        del other['observation.state']
    for key, value in other.items():
        changed = run(adapter, config, inputs, 'one', **{key: value})
        assert np.abs(changed - reference).max() > VISIBLE, key


def test_tokens_beyond_the_count_are_never_seen() -> None:
    inputs, config = PiInputs(counts=(9,)), PI_CASES['pi05']
    adapter = make_adapter(config)
    tokens = torch.from_numpy(inputs.tokens('one'))
    garbage = tokens.clone()
    garbage[:, 9:] = 639
    chunk = run(adapter, config, inputs, 'one')
    key = 'observation.language.tokens'
    np.testing.assert_array_equal(run(adapter, config, inputs, 'one', **{key: garbage}), chunk)
    shorter = run(adapter, config, inputs, 'one', **{key: tokens[:, :16]})
    assert np.abs(shorter - chunk).max() <= FP32_TOLERANCE


@pytest.mark.parametrize('size', IMAGE_SIZES)
def test_pictures_are_scaled_as_in_lerobot(size: tuple[int, int]) -> None:
    with np.load(GOLDEN / 'pi_images.npz') as arrays:
        expected = arrays[f'{size[0]}x{size[1]}'][0]
    image = torch.from_numpy(seeded_image(f'{size[0]}x{size[1]}', *size)).float() / 255
    found = letterbox(image.permute(2, 0, 1)[None], IMAGE_SIDE)[0].permute(1, 2, 0).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-6
    np.testing.assert_array_equal(found == 0.0, expected == 0.0)


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_full_size_has_lerobots_names_shapes_and_dtypes(kind: str) -> None:
    theirs = json.loads((GOLDEN / 'pi_keys.json').read_text())[kind]
    case = PI_CASES[kind]
    config = CONFIGS[kind](
        input_features=features(case.input_features()),
        output_features=features(case.output_features()),
        dtype='bfloat16',
    )
    shapes = required_shapes(config)
    assert (
        len(shapes) + len(UNREAD_WEIGHTS) == theirs['tensors'] == {'pi05': 813, 'pi0': 778}[kind]
    )
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for name, shape in shapes.items():
        counts[re.sub(r'layers\.\d+\.', 'layers.*.', name), shape] += 1
    expected = {
        (name, tuple(entry['shape'])): entry['count']
        for name, entry in theirs['names'].items()
        if name not in UNREAD_WEIGHTS
    }
    assert dict(counts) == expected
    check_dtypes(config, shapes, theirs['names'])


def check_dtypes(config: Any, shapes: dict[str, tuple[int, ...]], theirs: dict[str, Any]) -> None:
    """The network that computes in bfloat16 keeps in float32 what LeRobot keeps in it."""
    from sparkrt_ros.runtime.policies.pi_weights import network_name

    empty = {name: torch.empty(shape, device='meta') for name, shape in shapes.items()}
    network = load_network(config, empty, device=torch.device('meta'), dtype=torch.bfloat16)
    ours = {name: value.dtype for name, value in network.named_parameters()}
    for name in shapes:
        entry = theirs[re.sub(r'layers\.\d+\.', 'layers.*.', name)]
        assert ours[network_name(name)] == getattr(torch, entry['dtype']), name


def test_tiny_sizes_are_those_the_golden_files_were_made_with() -> None:
    for variant, sizes in (('tiny', TINY_LANGUAGE), ('tiny_expert', TINY_EXPERT)):
        ours = GEMMA_VARIANTS[variant]
        assert (ours.width, ours.depth, ours.mlp_width, ours.heads, ours.kv_heads) == (
            sizes['width'],
            sizes['depth'],
            sizes['mlp_dim'],
            sizes['num_heads'],
            sizes['num_kv_heads'],
        )
        assert (ours.head_dim, ours.vocabulary) == (sizes['head_dim'], VOCABULARY)
    vision = pi_sizes(language='tiny', expert='tiny_expert', image_size=IMAGE_SIDE).vision
    assert [vision.width, vision.depth, vision.mlp_width, vision.heads] == [*TINY_VISION.values()]

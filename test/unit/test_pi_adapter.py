"""Pi0 and Pi0.5 behind the session's contract: cameras, guidance, schedules, and refusals."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from pi_folder import (
    CPU,
    PI_CASES,
    PiCase,
    PiInputs,
    make_adapter,
    make_batch,
    make_config,
    make_weights,
)

from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    ObservationError,
)
from sparkrt_ros.runtime.host_inputs import (
    CONTINUED_KEY,
    COUNTS_KEY,
    DELAY_KEY,
    GUIDANCE_KEY,
    HORIZON_KEY,
    TOKENS_KEY,
)
from sparkrt_ros.runtime.policies.adapter import make_context
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.policies.registry import make_adapter as make_registered
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.processors.images import prepare_image
from sparkrt_ros.runtime.vla_config import RtcConfig, VlaConfig

pytestmark = pytest.mark.usefixtures('one_thread')

FRONT, WRIST, SIDE = (f'observation.images.{name}' for name in ('front', 'wrist', 'side'))
INPUTS = PiInputs()
Batch = dict[str, torch.Tensor]


def run(adapter: PiAdapter, batch: Batch, *, noise: torch.Tensor | None = None) -> torch.Tensor:
    context = make_context(adapter.regions(), backend=EagerBackend(device=CPU))
    with torch.inference_mode():
        return adapter.predict_chunk(context, batch, noise=noise)


def noise_of(inputs: PiInputs = INPUTS, seed: str = 'noise') -> torch.Tensor:
    return torch.from_numpy(inputs.noise(seed))


def test_capabilities_say_what_the_configuration_and_the_user_say() -> None:
    vla = VlaConfig(num_steps=4, missing_cameras=(WRIST,), image_sizes={SIDE: (480, 640)})
    needs = make_adapter(PI_CASES['pi05'], vla=vla).capabilities
    assert dict(needs.image_shapes) == {FRONT: (3, 48, 64), SIDE: (3, 480, 640)}
    assert (needs.state_size, needs.environment_state_size, needs.action_size) == (7, 0, 7)
    assert (needs.chunk_size, needs.n_action_steps, needs.num_inference_steps) == (6, 6, 4)
    assert needs.noise_shape == (6, 32)
    assert needs.requires_task
    assert needs.is_iterative
    assert not needs.supports_temporal_ensemble


@pytest.mark.parametrize(
    ('vla', 'text'),
    [
        (VlaConfig(missing_cameras=('front',)), r'missing_cameras: found front; expected among'),
        (VlaConfig(missing_cameras=(FRONT, WRIST, SIDE)), r'found every camera'),
        (VlaConfig(image_sizes={'top': (4, 4)}), r'image_sizes: found top'),
    ],
)
def test_choices_must_name_cameras_of_the_policy(vla: VlaConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_adapter(PI_CASES['pi05'], vla=vla)


def test_cameras_that_are_not_there_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    case = PI_CASES['pi05_empty_camera']
    with caplog.at_level(logging.WARNING):
        adapter = make_adapter(case)
        for _ in range(3):
            run(adapter, make_batch(case, INPUTS, 'one'))
        adapter.fused(TIERS['fp32'])
    assert caplog.text.count('empty_camera_0, observation.images.empty_camera_1') == 1


def test_a_camera_is_only_missing_where_the_user_says_so() -> None:
    case = PI_CASES['pi05']
    batch = make_batch(case, INPUTS, 'one')
    del batch[WRIST]
    with pytest.raises(ObservationError, match=WRIST):
        run(make_adapter(case), batch)
    assert run(make_adapter(case, vla=VlaConfig(missing_cameras=(WRIST,))), batch).shape == (
        1,
        6,
        7,
    )


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_regions_can_be_recorded_and_pass_nothing_but_tensors(kind: str) -> None:
    case = PI_CASES[kind]
    adapter = make_adapter(case)
    prefix, denoise = adapter.regions()
    assert (prefix.name, denoise.name) == ('prefix', 'denoise')
    assert prefix.capturable
    assert denoise.capturable
    batch = make_batch(case, INPUTS, 'one')
    with torch.inference_mode():
        keys, values, valid = prefix.fn(
            batch[TOKENS_KEY], batch[COUNTS_KEY], *(batch[key] for key in (FRONT, WRIST, SIDE))
        )
        tokens = 3 * 9 + 24
        assert keys.shape == values.shape == (3, 1, 1, tokens, 16)
        assert valid.shape == (1, tokens)
        assert int(valid.sum()) == 3 * 9 + 13
        state = (batch[STATE_KEY],) if kind == 'pi0' else ()
        chunk = denoise.fn(noise_of(), keys, values, valid, *state)
    assert torch.equal(chunk, run(adapter, batch, noise=noise_of()))
    assert not chunk.requires_grad


def test_noise_is_drawn_where_none_is_given() -> None:
    case = PI_CASES['pi05']
    adapter, batch = make_adapter(case), make_batch(case, INPUTS, 'one')
    chunks = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        chunks.append(run(adapter, batch))
    assert torch.equal(chunks[0], chunks[2])
    assert not torch.equal(chunks[0], chunks[1])


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_guidance_lies_on_the_line_through_its_two_prompts(kind: str) -> None:
    """One step, so that the line is straight: beta 0 and 1 are the prompts themselves."""
    case = PI_CASES[kind]
    inputs = PiInputs(counts=(13, 7), steps=1)
    both = {
        key: value[:1] if key not in (TOKENS_KEY, COUNTS_KEY) else value
        for key, value in make_batch(case, inputs, 'one').items()
    }
    noise = noise_of()

    def chunk(beta: float | None, row: int | None = None) -> torch.Tensor:
        batch = dict(both)
        if row is not None:
            batch |= {key: both[key][row : row + 1] for key in (TOKENS_KEY, COUNTS_KEY)}
        vla = VlaConfig(num_steps=1, cfg_beta=beta)
        return run(make_adapter(case, vla=vla), batch, noise=noise)

    conditioned, unconditioned = chunk(None, 0), chunk(None, 1)
    assert (conditioned - unconditioned).abs().max() > 1e-3
    for beta in (0.0, 1.0, 2.5):
        expected = unconditioned + beta * (conditioned - unconditioned)
        torch.testing.assert_close(chunk(beta), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('kind', ['pi05', 'pi0'])
def test_guidance_serves_a_batch_as_its_members(kind: str) -> None:
    """Rows of tokens: the conditioned ones of all samples, then the unconditioned ones."""
    case = PI_CASES[kind]
    adapter = make_adapter(case, vla=VlaConfig(num_steps=3, cfg_beta=1.7))
    samples, prompts = PiInputs(counts=(13, 20)), PiInputs(counts=(5, 9))
    conditioned = make_batch(case, samples, 'one')
    unconditioned = make_batch(case, prompts, 'two')
    batch = dict(conditioned)
    for key in (TOKENS_KEY, COUNTS_KEY):
        batch[key] = torch.cat((conditioned[key], unconditioned[key]))
    noise = noise_of(samples)
    together = run(adapter, batch, noise=noise)
    for place in range(2):
        alone = {key: value[place : place + 1] for key, value in conditioned.items()}
        for key in (TOKENS_KEY, COUNTS_KEY):
            alone[key] = torch.cat((alone[key], unconditioned[key][place : place + 1]))
        expected = run(adapter, alone, noise=noise[place : place + 1])
        torch.testing.assert_close(together[place : place + 1], expected, rtol=1e-4, atol=1e-5)


def test_guidance_is_a_value_on_the_device() -> None:
    """No form of the network depends on it, so that a recording serves every strength."""
    case = PI_CASES['pi05']
    adapter = make_adapter(case, vla=VlaConfig(num_steps=2, cfg_beta=1.0))
    backend = EagerBackend(device=CPU)
    context = make_context(adapter.regions(), backend=backend)
    both = make_batch(case, PiInputs(counts=(13, 7)), 'one')
    batch = {
        key: value if key in (TOKENS_KEY, COUNTS_KEY) else value[:1] for key, value in both.items()
    }
    for beta in (0.3, 2.5):
        given = {**batch, GUIDANCE_KEY: torch.tensor([beta])}
        with torch.inference_mode():
            found = adapter.predict_chunk(context, given, noise=noise_of()).clone()
        backend.seal()
        fixed = make_adapter(case, vla=VlaConfig(num_steps=2, cfg_beta=beta))
        torch.testing.assert_close(found, run(fixed, batch, noise=noise_of()), rtol=0, atol=1e-6)


def continued(rows: torch.Tensor, *, delay: int, horizon: int) -> Batch:
    return {
        CONTINUED_KEY: rows,
        DELAY_KEY: torch.tensor([delay]),
        HORIZON_KEY: torch.tensor([horizon]),
    }


def test_a_chunk_continues_the_previous_one_where_it_is_told_to() -> None:
    case = PI_CASES['pi05']
    batch, noise = make_batch(case, INPUTS, 'one'), noise_of()
    plain = run(make_adapter(case), batch, noise=noise)
    adapter = make_adapter(case, vla=VlaConfig(rtc=RtcConfig(execution_horizon=4)))
    previous = plain + 1.0
    alone = run(adapter, {**batch, **continued(previous, delay=0, horizon=0)}, noise=noise)
    torch.testing.assert_close(alone, plain, rtol=0, atol=1e-6)
    bent = run(adapter, {**batch, **continued(previous, delay=2, horizon=4)}, noise=noise)
    distance = (bent - previous).abs().mean(dim=(0, 2))
    assert (distance[:2] < 0.05).all()
    assert distance[5] > 0.5


def test_one_form_serves_every_delay() -> None:
    """Delay and horizon are values on the device: no form of the network depends on them."""
    case = PI_CASES['pi05']
    adapter = make_adapter(case, vla=VlaConfig(rtc=RtcConfig()))
    backend = EagerBackend(device=CPU)
    context = make_context(adapter.regions(), backend=backend)
    batch, rows = make_batch(case, INPUTS, 'one'), torch.ones(1, 6, 7)
    chunks = []
    for delay, horizon in ((1, 4), (2, 4), (1, 6)):
        given = {**batch, **continued(rows, delay=delay, horizon=horizon)}
        with torch.inference_mode():
            chunks.append(adapter.predict_chunk(context, given, noise=noise_of()).clone())
        backend.seal()
    assert not torch.equal(chunks[0], chunks[1])
    assert not torch.equal(chunks[0], chunks[2])


@pytest.mark.parametrize('key', [TOKENS_KEY, COUNTS_KEY, FRONT, CONTINUED_KEY, DELAY_KEY])
def test_an_input_that_is_missing_is_named(key: str) -> None:
    case = PI_CASES['pi05']
    adapter = make_adapter(case, vla=VlaConfig(rtc=RtcConfig()))
    batch = make_batch(case, INPUTS, 'one')
    batch |= continued(torch.zeros(1, 6, 7), delay=0, horizon=0)
    del batch[key]
    with pytest.raises(ObservationError, match=key):
        run(adapter, batch)


def test_steps_schedule_and_solver_are_the_users_choice() -> None:
    case = PI_CASES['pi05']
    batch, noise = make_batch(case, INPUTS, 'one'), noise_of()

    def chunk(**choices: Any) -> torch.Tensor:
        return run(make_adapter(case, vla=VlaConfig(**choices)), batch, noise=noise)

    fine = chunk(num_steps=160, solver='midpoint')
    errors = {
        name: float((chunk(**choices) - fine).abs().max())
        for name, choices in {
            'euler 10': {},
            'euler 40': {'num_steps': 40},
            'midpoint 20': {'num_steps': 20, 'solver': 'midpoint'},
            'power 10': {'schedule': 'power2.0'},
        }.items()
    }
    assert errors['euler 40'] < errors['euler 10']
    assert errors['midpoint 20'] < errors['euler 10']
    assert errors['power 10'] != errors['euler 10']


def test_lerobot_0_4_had_other_bars_and_the_exact_scale_of_text() -> None:
    image = torch.rand(1, 3, 30, 60, generator=torch.Generator().manual_seed(0))
    new, old = (prepare_image(image, 42, compat=compat) for compat in ('0.6', '0.4'))
    bars = torch.zeros(42, dtype=torch.bool)
    bars[:10] = bars[31:] = True
    assert (new[:, :, bars] == -1.0).all()
    assert (old[:, :, bars] == -3.0).all()
    assert torch.equal(new[:, :, ~bars], old[:, :, ~bars])
    adapter = make_adapter(PI_CASES['pi05_bf16'], vla=VlaConfig(compat='0.4'))
    assert adapter.network.text_scale == 48**0.5
    assert adapter.fused(TIERS['bf16']).network.text_scale == 48**0.5


def test_arithmetic_without_the_range_is_refused() -> None:
    with pytest.raises(BackendError, match='float16'):
        make_adapter(PI_CASES['pi05']).fused(TIERS['fp16'])


def test_the_fused_form_in_float32_shares_its_weights() -> None:
    adapter = make_adapter(PI_CASES['pi05'])
    other = adapter.fused(TIERS['fp32'])
    pairs = zip(adapter.network.parameters(), other.network.parameters(), strict=True)
    assert all(one.data_ptr() == two.data_ptr() for one, two in pairs)
    assert 'no fused form' in other.notes[0]
    assert adapter.notes == ()


def test_a_missing_weight_is_named() -> None:
    config = make_config(PI_CASES['pi0'])
    weights = make_weights(config)
    del weights['state_proj.bias']
    with pytest.raises(CheckpointError, match=r'm\.st: found 1 missing weights: state_proj\.bias'):
        PiAdapter(config, weights, device=CPU, weights_file='m.st')


def test_choices_for_an_instruction_are_none_for_act() -> None:
    class Act:
        model_type = 'act'

    with pytest.raises(ConfigError, match='choices for a act policy'):
        make_registered(Act(), {}, device=CPU, weights_file='m.st', vla=VlaConfig(num_steps=3))


def test_a_pi0_policy_pads_its_state() -> None:
    case = PiCase(kind='pi0', state_size=3)
    batch = make_batch(case, INPUTS, 'one')
    adapter = make_adapter(case)
    wide = make_adapter(PiCase(kind='pi0', state_size=32))
    padded = {**batch, STATE_KEY: torch.nn.functional.pad(batch[STATE_KEY], (0, 29))}
    noise = noise_of()
    assert torch.equal(run(adapter, batch, noise=noise), run(wide, padded, noise=noise))

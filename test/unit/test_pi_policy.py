"""A Pi0.5 folder in use: forms, seeds, sealed lengths, continued chunks, batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pi_folder import PI_SESSIONS, write_pi_folder

from sparkrt_ros.cli.main import main
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.checkpoint import load_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError, ConfigError, ObservationError
from sparkrt_ros.runtime.host_inputs import Continuation, HostInputs
from sparkrt_ros.runtime.policies.registry import make_adapter
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.processors.pipeline import make_processors
from sparkrt_ros.runtime.processors.prompt import make_instruction
from sparkrt_ros.runtime.session import Session
from sparkrt_ros.runtime.types import Observation
from sparkrt_ros.runtime.vla_config import RtcConfig, StatePromptConfig, VlaConfig

pytestmark = pytest.mark.usefixtures('one_thread')

SESSION = PI_SESSIONS['pi05']
CPU = torch.device('cpu')
FRONT, WRIST = 'observation.images.front', 'observation.images.wrist'


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pi_folder('pi05', tmp_path_factory.mktemp('pi') / 'policy')


def load(folder: Path, *, backend: str = 'eager', **vla: Any) -> Policy:
    config = RuntimeConfig(backend=backend, device='cpu', vla=VlaConfig(**vla))
    return load_policy(folder, config=config)


def observe(step: int = 0, *, task: str | None = 'pick up the red cube') -> Observation:
    arrays = SESSION.observation(step)
    images = {key: value for key, value in arrays.items() if 'images' in key}
    return Observation(images=images, state=arrays['observation.state'], task=task)


@pytest.fixture
def policy(folder: Path) -> Iterator[Policy]:
    with load(folder, seed=1) as loaded:
        yield loaded


def test_the_best_form_serves_and_says_so(folder: Path) -> None:
    with load(folder, backend='auto', num_steps=3) as policy:
        receipt = policy.receipt
        assert (receipt['backend'], receipt['precision']) == ('fused', 'fp32')
        assert receipt['refused'] == []
        assert receipt['gate']['cosine'] > 0.999999
        assert receipt['vla']['num_steps'] == policy.capabilities.num_inference_steps == 3


def test_where_the_time_of_an_inference_goes_and_what_memory_it_takes(policy: Policy) -> None:
    policy.predict_chunk(observe())
    timing = policy.last_timing
    assert list(timing.stages_s) == ['prefix', 'denoise']
    assert 0.0 < sum(timing.stages_s.values()) <= timing.model_s
    assert timing.postprocess_s > 0.0
    size = sum(p.numel() for p in policy._open()._adapter.served.parameters())
    memory = policy.memory_bytes
    assert memory['weights'] >= 4 * size > 0
    assert memory['process'] > memory['weights']


def test_bfloat16_passes_its_gate(folder: Path) -> None:
    config = RuntimeConfig(backend='fused', precision='bf16', device='cpu')
    with load_policy(folder, config=config) as policy:
        assert policy.receipt['precision'] == 'bf16'
        assert policy.receipt['refused'] == []


def test_a_seed_repeats_a_run_and_steps_of_one_run_differ(folder: Path) -> None:
    runs = []
    for seed in (3, 3, 4):
        with load(folder, seed=seed) as policy:
            runs.append([policy.predict_chunk(observe()) for _ in range(2)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0][0] - runs[0][1]).max() > 1e-3
    assert np.abs(runs[0][0] - runs[2][0]).max() > 1e-3


@pytest.mark.parametrize('shape', [(6, 32), (1, 6, 32)])
def test_noise_may_come_with_a_batch_or_without(policy: Policy, shape: tuple[int, ...]) -> None:
    noise = torch.from_numpy(SESSION.noise(0))
    chunk = policy.predict_chunk(observe(), noise=noise.reshape(shape))
    np.testing.assert_array_equal(chunk, policy.predict_chunk(observe(), noise=noise))
    with pytest.raises(ConfigError, match=r'noise: found shape \(2, 6, 32\)'):
        policy.predict_chunk(observe(), noise=torch.zeros(2, 6, 32))


def test_steps_play_the_rows_that_the_checkpoint_says(policy: Policy, folder: Path) -> None:
    with load(folder, seed=1) as twin:
        chunks = [twin.predict_chunk(observe(0)), twin.predict_chunk(observe(4))]
    steps = np.stack([policy.step(observe(step)) for step in range(8)])
    np.testing.assert_array_equal(steps, np.concatenate([chunk[:4] for chunk in chunks]))


def test_an_instruction_is_needed(policy: Policy) -> None:
    for task in (None, ''):
        with pytest.raises(ObservationError, match='an instruction'):
            policy.predict_chunk(observe(task=task))


def test_a_sealed_policy_takes_every_prompt(folder: Path) -> None:
    """Each length was prepared, so no prompt and no state needs anything new."""
    prompt = StatePromptConfig(lengths=(34, 40))
    with load(folder, state_prompt=prompt, num_steps=2) as policy:
        policy.warm_up()
        for step, task in enumerate(SESSION.tasks):
            if task:
                policy.predict_chunk(observe(step, task=task))
        with pytest.raises(BackendError, match='after sealing'):
            policy.predict_batch([observe(0), observe(1)])


class WholeChunk(EagerBackend):
    """Wants predictions whole, as a backend that records them does."""

    whole_chunk = True


@pytest.mark.parametrize('name', ['pi05', 'pi05_relative', 'pi0'])
@pytest.mark.parametrize('continues', [False, True])
def test_a_whole_prediction_is_the_sum_of_its_parts(
    name: str, continues: bool, tmp_path: Path
) -> None:
    vla = VlaConfig(num_steps=3, rtc=RtcConfig(execution_horizon=4) if continues else None)
    checkpoint = load_checkpoint(write_pi_folder(name, tmp_path / 'policy'))
    session, adapter = PI_SESSIONS[name], make_adapter(
        checkpoint.config, checkpoint.weights, device=CPU, weights_file='m', vla=vla
    )  # fmt: skip
    preprocessor, postprocessor = make_processors(checkpoint, device='cpu')

    def build(backend: EagerBackend) -> Session:
        inputs = HostInputs(
            adapter.capabilities,
            device=CPU,
            instruction=make_instruction(checkpoint, vla),
            horizon=4 if continues else 0,
            to_model_space=postprocessor.to_model_space,
            seed=0,
        )
        return Session(adapter, preprocessor, postprocessor, backend, inputs=inputs)

    arrays = session.observation(0)
    images = {key: value for key, value in arrays.items() if 'images' in key}
    seen = Observation(images=images, state=arrays['observation.state'], task='go')
    previous = Continuation(actions=np.ones((3, 7), np.float32), delay=1) if continues else None
    whole, parts = build(WholeChunk(device=CPU)), build(EagerBackend(device=CPU))
    chunks = [one.predict_chunk(seen, continuation=previous) for one in (whole, parts)]
    np.testing.assert_array_equal(*chunks)
    both = whole.predict_both(seen, noise=torch.zeros(6, 32))
    np.testing.assert_array_equal(both[1], parts.predict_both(seen, noise=torch.zeros(6, 32))[1])


def test_a_chunk_goes_on_from_the_one_being_played(folder: Path) -> None:
    noise = torch.from_numpy(SESSION.noise(0))
    with load(folder) as policy:
        plain = policy.predict_chunk(observe(), noise=noise)
    with load(folder, rtc=RtcConfig(execution_horizon=5)) as policy:
        np.testing.assert_allclose(
            policy.predict_chunk(observe(), noise=noise), plain, rtol=0, atol=1e-5
        )
        # In the units of the robot, and shorter than the horizon: its last row is held.
        played = plain[:2] + np.float32(0.2)
        bent = policy.predict_chunk(
            observe(), noise=noise, continuation=Continuation(actions=played, delay=3)
        )
        held = np.concatenate([played, played[-1:]])
        assert np.abs(bent[:3] - held).max() < 0.02
        assert np.abs(plain[:3] - held).max() > 0.1


def test_steps_in_mode_rtc_go_on_from_the_rows_that_were_not_played(folder: Path) -> None:
    noises = [torch.from_numpy(SESSION.noise(step)) for step in (0, 1)]
    vla = VlaConfig(rtc=RtcConfig())
    with load_policy(folder, config=RuntimeConfig(device='cpu', mode='rtc', vla=vla)) as policy:
        assert policy.receipt['mode'] == 'rtc'
        first = policy.predict_chunk(observe(0), noise=noises[0])
        second = policy.predict_chunk(
            observe(4), noise=noises[1], continuation=Continuation(actions=first[4:], delay=0)
        )
        session = policy._open()
        steps = [session.select_action(observe(step), noise=noises[0]) for step in range(4)]
        steps += [session.select_action(observe(4), noise=noises[1]) for _ in range(4)]
        np.testing.assert_array_equal(steps, np.concatenate([first[:4], second[:4]]))
        policy.reset()
        again = session.select_action(observe(4), noise=noises[1])
        plain = policy.predict_chunk(observe(4), noise=noises[1])
        np.testing.assert_array_equal(again, plain[0])


@pytest.mark.parametrize(
    'bad',
    [
        Continuation(actions=np.ones((3, 6), np.float32), delay=1),
        Continuation(actions=np.ones((0, 7), np.float32), delay=1),
        Continuation(actions=np.full((3, 7), np.nan, np.float32), delay=1),
        Continuation(actions=np.ones((3, 7), np.float32), delay=-1),
    ],
)
def test_a_continuation_that_does_not_fit_is_refused(folder: Path, bad: Continuation) -> None:
    with load(folder, rtc=RtcConfig()) as policy, pytest.raises(ObservationError):
        policy.predict_chunk(observe(), continuation=bad)


def test_a_policy_that_continues_nothing_says_so(policy: Policy) -> None:
    continuation = Continuation(actions=np.ones((3, 7), np.float32), delay=1)
    with pytest.raises(ConfigError, match=r'vla\.rtc: found off'):
        policy.predict_chunk(observe(), continuation=continuation)


def test_a_missing_camera_is_not_asked_for(folder: Path) -> None:
    seen = observe()
    without = Observation(images={FRONT: seen.images[FRONT]}, state=seen.state, task=seen.task)
    with load(folder, missing_cameras=(WRIST,)) as policy:
        assert policy.capabilities.camera_keys == (FRONT,)
        assert np.isfinite(policy.predict_chunk(without)).all()
        with pytest.raises(ObservationError, match='cameras'):
            policy.predict_chunk(seen)
    with load(folder) as policy, pytest.raises(ObservationError, match=f'{WRIST} missing'):
        policy.predict_chunk(without)


def test_cameras_may_deliver_another_size_than_the_configuration_names(folder: Path) -> None:
    seen = observe()
    large = np.repeat(np.repeat(seen.images[FRONT], 2, axis=0), 2, axis=1)
    with load(folder, image_sizes={FRONT: (96, 128)}) as policy:
        chunk = policy.predict_chunk(
            Observation(images={**seen.images, FRONT: large}, state=seen.state, task=seen.task)
        )
        assert np.isfinite(chunk).all()
        with pytest.raises(ObservationError, match=r'\(96, 128, 3\)'):
            policy.predict_chunk(seen)


def test_guidance_by_two_prompts_serves_steps_and_batches(folder: Path) -> None:
    noise = torch.from_numpy(np.concatenate([SESSION.noise(0), SESSION.noise(1)]))
    with load(folder, num_steps=2, cfg_beta=2.0, cfg_unconditioned='do it') as policy:
        alone = [policy.predict_chunk(observe(i), noise=noise[i]) for i in range(2)]
        together = policy.predict_batch([observe(0), observe(1)], noise=noise)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    with load(folder, num_steps=2) as policy:
        plain = policy.predict_chunk(observe(0), noise=noise[0])
    assert np.abs(alone[0] - plain).max() > 1e-3


def test_ensembling_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match='a pi05 policy has no temporal ensembling'):
        load_policy(folder, config=RuntimeConfig(mode='ensemble', device='cpu'))


def test_inspect_describes_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['inspect', str(folder)]) == 0
    shown = capsys.readouterr().out
    assert 'pi05 policy' in shown
    assert 'tokenizer_processor' in shown
    assert 'num_inference_steps 10' in shown

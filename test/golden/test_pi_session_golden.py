"""Whole Pi0 and Pi0.5 policies from LeRobot's folders: its prompts, its tokens, its actions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_folder import GOLDEN
from pi_cases import CHUNK_SIZE, PI_SESSIONS, PiSession
from pi_folder import TOKENIZER, write_pi_folder
from seeded_weights import seeded_vector

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.processors.pipeline import make_processors
from sparkrt_ros.runtime.processors.prompt import PromptEncoder, make_prompt_encoder
from sparkrt_ros.runtime.types import Observation
from sparkrt_ros.runtime.vla_config import StatePromptConfig, VlaConfig

pytestmark = pytest.mark.usefixtures('one_thread')

ACTION_TOLERANCE = 1e-5
FILES = ('tokenizer.json', 'tokenizer.model')
WITH_TEXT = [
    (name, step)
    for name, session in PI_SESSIONS.items()
    for step, task in enumerate(session.tasks)
    if task
]


@pytest.fixture(scope='module')
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / 'pi_sessions.npz') as arrays:
        return dict(arrays)


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('pi')
    return {name: write_pi_folder(name, root / name) for name in PI_SESSIONS}


def observation(session: PiSession, step: int) -> Observation:
    arrays = session.observation(step)
    return Observation(
        images={key: value for key, value in arrays.items() if 'images' in key},
        state=arrays['observation.state'],
        task=session.tasks[step],
    )


def load(folder: Path, **vla: object) -> Policy:
    config = RuntimeConfig(backend='eager', device='cpu', vla=VlaConfig(**vla))
    return load_policy(folder, config=config)


def make_encoder(folder: Path, file: str) -> PromptEncoder:
    encoder = make_prompt_encoder(describe_checkpoint(folder), tokenizer=str(TOKENIZER / file))
    assert encoder is not None
    return encoder


@pytest.mark.parametrize('name', PI_SESSIONS)
def test_prompts_are_lerobots_to_the_letter(name: str, folders: dict[str, Path]) -> None:
    expected = json.loads((GOLDEN / 'pi_prompts.json').read_text())[name]
    session, encoder = PI_SESSIONS[name], make_encoder(folders[name], FILES[0])
    found = [
        encoder.prompt(task, session.observation(step)['observation.state'])
        for step, task in enumerate(session.tasks)
    ]
    assert found == expected


@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('name', PI_SESSIONS)
def test_tokens_are_lerobots(
    name: str, file: str, folders: dict[str, Path], golden: dict[str, np.ndarray]
) -> None:
    """The two kinds of file hold one tokenizer; long prompts are cut as LeRobot cuts them."""
    session, encoder = PI_SESSIONS[name], make_encoder(folders[name], file)
    cut = 0
    for step, task in enumerate(session.tasks):
        tokens = encoder.encode(task, session.observation(step)['observation.state'])
        mask = golden[f'{name}/{step}/attention_mask']
        np.testing.assert_array_equal(tokens, golden[f'{name}/{step}/tokens'][mask])
        assert (golden[f'{name}/{step}/tokens'][~mask] == encoder.tokenizer.pad).all()
        cut += tokens.size == encoder.longest
    assert cut == {'pi05': 2, 'pi05_relative': 0, 'pi0': 1}[name]


@pytest.mark.parametrize(('name', 'step'), WITH_TEXT)
def test_actions_are_lerobots(
    name: str, step: int, folders: dict[str, Path], golden: dict[str, np.ndarray]
) -> None:
    session = PI_SESSIONS[name]
    with load(folders[name]) as policy:
        noise = torch.from_numpy(session.noise(step))
        chunk = policy.predict_chunk(observation(session, step), noise=noise)
    assert np.abs(chunk - golden[f'{name}/{step}/chunk']).max() <= ACTION_TOLERANCE


@pytest.mark.parametrize('mode', [('exact', (16, 40)), ('fixed', ()), ('exact', ())])
def test_the_length_of_tokens_changes_nothing(
    mode: tuple[str, tuple[int, ...]], folders: dict[str, Path], golden: dict[str, np.ndarray]
) -> None:
    session, prompt = PI_SESSIONS['pi05'], StatePromptConfig(mode=mode[0], lengths=mode[1])
    with load(folders['pi05'], state_prompt=prompt) as policy:
        for step in (0, 4):
            noise = torch.from_numpy(session.noise(step))
            chunk = policy.predict_chunk(observation(session, step), noise=noise)
            assert np.abs(chunk - golden[f'pi05/{step}/chunk']).max() <= ACTION_TOLERANCE


@pytest.mark.parametrize('name', ['pi05', 'pi0'])
def test_a_batch_is_predicted_as_its_members_are(
    name: str, folders: dict[str, Path], golden: dict[str, np.ndarray]
) -> None:
    session, steps = PI_SESSIONS[name], (3, 0, 4)
    noise = torch.from_numpy(np.concatenate([session.noise(step) for step in steps]))
    with load(folders[name]) as policy:
        chunks = policy.predict_batch([observation(session, step) for step in steps], noise=noise)
    for chunk, step in zip(chunks, steps, strict=True):
        assert np.abs(chunk - golden[f'{name}/{step}/chunk']).max() <= ACTION_TOLERANCE


def test_relative_actions_keep_the_state_their_chunk_began_with(
    folders: dict[str, Path], golden: dict[str, np.ndarray]
) -> None:
    """The robot moves while a chunk is played; LeRobot's own loop would move the actions too."""
    session = PI_SESSIONS['pi05_relative']
    with load(folders['pi05_relative'], seed=5) as policy:
        chunk = policy.predict_chunk(observation(session, 0))
    with load(folders['pi05_relative'], seed=5) as policy:
        moved = observation(session, 1)
        played = [policy.step(observation(session, 0))]
        played += [policy.step(moved) for _ in range(CHUNK_SIZE - 1)]
    np.testing.assert_array_equal(np.stack(played), chunk)


def test_a_relative_policy_moves_all_but_its_gripper(folders: dict[str, Path]) -> None:
    _, post = make_processors(describe_checkpoint(folders['pi05_relative']), device='cpu')
    state = torch.arange(1.0, 8.0).unsqueeze(0)
    still = post(torch.zeros(1, 2, 7), anchor=torch.zeros(1, 7))
    offset = post(torch.zeros(1, 2, 7), anchor=state) - still
    expected = torch.tensor([1.0, 2, 3, 4, 5, 6, 0]).expand(1, 2, 7)
    torch.testing.assert_close(offset, expected, rtol=0, atol=1e-6)


def test_a_chunk_to_continue_is_anchored_anew_as_in_lerobot(folders: dict[str, Path]) -> None:
    with np.load(GOLDEN / 'pi_rtc.npz') as arrays:
        expected = arrays['reanchored']
    _, post = make_processors(describe_checkpoint(folders['pi05_relative']), device='cpu')
    state = PI_SESSIONS['pi05_relative'].observation(1)['observation.state']
    absolute = torch.from_numpy(seeded_vector('rtc/absolute', (6, 7)))[None]
    found = post.to_model_space(absolute, anchor=torch.from_numpy(state)[None])
    assert np.abs(found[0].numpy() - expected).max() <= 1e-6

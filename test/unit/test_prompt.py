"""Prompts: the state in bins, lengths that are prepared, and two prompts at once."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
from pi_folder import PI_SESSIONS, write_pi_folder

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.load import CheckpointDescription
from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.processors.prompt import (
    PROMPTS_KEPT,
    PromptEncoder,
    discretize,
    end_with_new_line,
    make_instruction,
    make_prompt_encoder,
    state_prompt,
)
from sparkrt_ros.runtime.vla_config import StatePromptConfig, VlaConfig

STATE = np.zeros(7, np.float32)


@pytest.fixture(scope='module')
def pi05(tmp_path_factory: pytest.TempPathFactory) -> CheckpointDescription:
    folder = tmp_path_factory.mktemp('prompt') / 'pi05'
    return describe_checkpoint(write_pi_folder('pi05', folder))


@pytest.fixture(scope='module')
def pi0(tmp_path_factory: pytest.TempPathFactory) -> CheckpointDescription:
    folder = tmp_path_factory.mktemp('prompt') / 'pi0'
    return describe_checkpoint(write_pi_folder('pi0', folder))


def make_encoder(description: CheckpointDescription, **options: str) -> PromptEncoder:
    encoder = make_prompt_encoder(description, **options)
    assert encoder is not None
    return encoder


@pytest.mark.parametrize(
    ('value', 'bin_'),
    [
        (-1.0000001, -1),
        (-1.0, 0),
        (-0.9921876, 0),
        (-0.9921875, 1),
        (-1e-7, 127),
        (0.0, 128),
        (0.99, 254),
        (0.9921875, 255),
        (1.0, 255),
        (37.0, 255),
    ],
)
def test_bins_are_equal_and_nothing_is_clipped(value: float, bin_: int) -> None:
    assert discretize(np.array([value], np.float32)).tolist() == [bin_]


def test_prompts_of_the_two_kinds() -> None:
    state = np.array([0.0, -2.0, 1.0], np.float32)
    assert state_prompt(' pick_up\nit ', state) == 'Task: pick up it, State: 128 -1 255;\nAction: '
    assert end_with_new_line('go') == end_with_new_line('go\n') == 'go\n'


def test_the_state_is_scaled_before_it_is_written(pi05: CheckpointDescription) -> None:
    encoder = make_encoder(pi05)
    scalings = {
        scaling.key: scaling.statistics
        for step in pi05.preprocessor.steps
        for scaling in getattr(step, 'scalings', ())
    }
    low, high = (scalings['observation.state'][name] for name in ('q01', 'q99'))
    assert 'State: 0 0 0 0 0 0 0;' in encoder.prompt('go', low)
    middle = (low + high) / 2 + (high - low) * np.float32(0.001)
    assert 'State: 128 128 128 128 128 128 128;' in encoder.prompt('go', middle)


def test_lerobot_0_4_wrote_the_state_padded(pi05: CheckpointDescription) -> None:
    new, old = (make_encoder(pi05, compat=compat) for compat in ('0.6', '0.4'))
    text = old.prompt('go', STATE)
    assert text.replace(' 128' * 25 + ';', ';') == new.prompt('go', STATE)
    assert text.count(' 128') - new.prompt('go', STATE).count(' 128') == 32 - 7


def test_a_prompt_with_a_state_needs_one(pi05: CheckpointDescription) -> None:
    with pytest.raises(ObservationError, match=r'observation\.state'):
        make_encoder(pi05).encode('go', None)


def test_a_prompt_without_a_state_needs_none(pi0: CheckpointDescription) -> None:
    encoder = make_encoder(pi0)
    np.testing.assert_array_equal(encoder.encode('go', None), encoder.encode('go', STATE))


def test_a_prompt_that_is_cut_is_warned_of_once(
    pi0: CheckpointDescription, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = make_encoder(pi0)
    with caplog.at_level(logging.WARNING):
        for words in (40, 41):
            assert encoder.encode('go ' * words, None).size == encoder.longest
    assert caplog.text.count('shorten it') == 1


def test_a_known_prompt_is_not_cut_into_tokens_again(pi0: CheckpointDescription) -> None:
    encoder = make_encoder(pi0)
    seen: list[str] = []
    original = encoder.tokenizer

    def split(text: str) -> list[int]:
        seen.append(text)
        return list(original.split(text))

    encoder.tokenizer = dataclasses.replace(original, split=split)
    for task in ('a', 'b', 'a', 'b', 'a'):
        np.testing.assert_array_equal(encoder.encode(task, None), original.encode(f'{task}\n'))
    assert seen == ['a\n', 'b\n']
    for number in range(PROMPTS_KEPT):
        encoder.encode(str(number), None)
    encoder.encode('a', None)
    assert seen[-1] == 'a\n'


def test_tokens_are_padded_to_the_first_length_that_fits(pi05: CheckpointDescription) -> None:
    prompt = StatePromptConfig(lengths=(16, 36, 40))
    instruction = make_instruction(pi05, VlaConfig(state_prompt=prompt))
    assert instruction is not None
    assert instruction.lengths == (16, 36, 40, 48)
    sizes = set()
    for step, task in enumerate(PI_SESSIONS['pi05'].tasks):
        state = PI_SESSIONS['pi05'].observation(step)['observation.state']
        tokens, counts = instruction.encode(task, state)
        assert tokens.shape[1] == next(n for n in instruction.lengths if n >= counts[0])
        assert (tokens[0, counts[0] :] == 0).all()
        sizes.add(tokens.shape[1])
    assert len(sizes) > 1


def test_a_length_can_be_prepared_for_whatever_the_prompt(pi05: CheckpointDescription) -> None:
    instruction = make_instruction(pi05, VlaConfig())
    assert instruction is not None
    for length in instruction.lengths:
        tokens, counts = instruction.encode('go', STATE, length=length)
        assert tokens.shape == (1, length)
        assert 0 < counts[0] <= length


def test_a_fixed_length_that_is_too_short_is_named(pi05: CheckpointDescription) -> None:
    prompt = StatePromptConfig(mode='fixed', lengths=(20,))
    instruction = make_instruction(pi05, VlaConfig(state_prompt=prompt))
    assert instruction is not None
    with pytest.raises(ObservationError, match=r'expected at most 20.*vla\.state_prompt\.lengths'):
        instruction.encode('go', STATE)


def test_guidance_compares_two_prompts_of_one_length(pi0: CheckpointDescription) -> None:
    config = VlaConfig(cfg_beta=1.5, cfg_conditioned='{task}, well', cfg_unconditioned='{task}')
    instruction, encoder = make_instruction(pi0, config), make_encoder(pi0)
    assert instruction is not None
    assert instruction.rows == 2
    tokens, counts = instruction.encode('go {x}', None)
    assert tokens.shape == (2, 24)
    for row, count, text in zip(tokens, counts, ('go {x}, well', 'go {x}'), strict=True):
        np.testing.assert_array_equal(row[:count], encoder.encode(text, None))


def test_a_policy_without_instructions_has_no_encoder(act_folder: Path) -> None:
    assert make_instruction(describe_checkpoint(act_folder), VlaConfig()) is None

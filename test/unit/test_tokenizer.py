"""The tokenizer of a policy: found on this machine, read whole, and its absence explained."""

from __future__ import annotations

import builtins
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from pi_folder import TOKENIZER, write_pi_folder

from sparkrt_ros.runtime.checkpoint import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.tokenizer_file import find_tokenizer
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError
from sparkrt_ros.runtime.processors.prompt import make_prompt_encoder
from sparkrt_ros.runtime.processors.tokenizer import load_tokenizer

FILES = ('tokenizer.json', 'tokenizer.model')


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail('a tokenizer was looked up on the network')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TOKENIZER, tmp_path / 'tokenizer'))


@pytest.mark.parametrize('file', FILES)
def test_both_kinds_of_file_give_the_same_tokens(file: str) -> None:
    tokenizer = load_tokenizer(TOKENIZER / file)
    assert tokenizer.pad == 0
    assert tokenizer.before == (2,)
    assert tokenizer.after == ()
    other = load_tokenizer(TOKENIZER / FILES[FILES[0] == file])
    for text in ('', 'a', 'Task: x, State: 12 -1 255;\nAction: ', 'ß  二\n\n<loc0000>'):
        assert tokenizer.encode(text) == other.encode(text)
        assert all(0 <= token < tokenizer.size for token in tokenizer.encode(text))


def test_settings_decide_what_begins_and_ends_a_text(copy: Path) -> None:
    settings = json.loads((copy / 'tokenizer_config.json').read_text())
    for begins, ends in ((True, False), (False, False), (True, True)):
        changed = {**settings, 'add_bos_token': begins, 'add_eos_token': ends}
        (copy / 'tokenizer_config.json').write_text(json.dumps(changed))
        tokenizer = load_tokenizer(copy / 'tokenizer.json')
        assert (tokenizer.before, tokenizer.after) == ((2,) * begins, (1,) * ends)
        cut = tokenizer.cut(tokenizer.encode('pick up the red cube'), 4)
        assert len(cut) == 4
        assert (cut[0] == 2, cut[-1] == 1) == (begins, ends)


def test_without_settings_the_file_itself_decides(copy: Path) -> None:
    (copy / 'tokenizer_config.json').unlink()
    assert load_tokenizer(copy / 'tokenizer.json').before == (2,)
    data = json.loads((copy / 'tokenizer.json').read_text())
    data['post_processor'] = None
    (copy / 'tokenizer.json').write_text(json.dumps(data))
    assert load_tokenizer(copy / 'tokenizer.json').before == ()


@pytest.mark.parametrize('file', FILES)
def test_a_missing_library_is_named_with_the_way_to_it(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {'tokenizer.json': 'tokenizers', 'tokenizer.model': 'sentencepiece'}[file]
    real = builtins.__import__

    def fail(wanted: str, *rest: Any, **named: Any) -> Any:
        if wanted == name:
            raise ImportError(name)
        return real(wanted, *rest, **named)

    monkeypatch.setattr(builtins, '__import__', fail)
    with pytest.raises(ConfigError, match=f'no Python package {name}.*pip install {name}'):
        load_tokenizer(TOKENIZER / file)


@pytest.mark.parametrize('file', FILES)
def test_a_damaged_file_is_named(file: str, copy: Path) -> None:
    (copy / file).write_bytes((copy / file).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=file):
        load_tokenizer(copy / file)


def test_damaged_settings_are_named(copy: Path) -> None:
    (copy / 'tokenizer_config.json').write_text('{')
    with pytest.raises(CheckpointError, match=r'tokenizer_config\.json'):
        load_tokenizer(copy / 'tokenizer.json')


def test_a_tokenizer_without_a_padding_token_is_refused(copy: Path) -> None:
    settings = json.loads((copy / 'tokenizer_config.json').read_text())
    settings['pad_token'] = {'content': '<padding>'}
    (copy / 'tokenizer_config.json').write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"no token '<padding>'.*the pad token"):
        load_tokenizer(copy / 'tokenizer.json')


def test_a_policy_brings_its_tokenizer_or_is_told_where_it_is(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy', tokenizer=False)
    with pytest.raises(CheckpointError) as refused:
        make_prompt_encoder(describe_checkpoint(folder))
    text = str(refused.value)
    assert str(folder / 'tokenizer') in text
    assert 'google/paligemma-3b-pt-224' in text
    assert 'vla.tokenizer' in text
    encoder = make_prompt_encoder(describe_checkpoint(folder), tokenizer=str(TOKENIZER))
    assert encoder is not None
    assert encoder.tokenizer.source == TOKENIZER / 'tokenizer.json'
    shutil.copy(TOKENIZER / 'tokenizer.model', folder)
    encoder = make_prompt_encoder(describe_checkpoint(folder))
    assert encoder is not None
    assert encoder.tokenizer.source == folder / 'tokenizer.model'


def test_a_chosen_tokenizer_that_is_not_there_is_not_replaced(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    with pytest.raises(CheckpointError, match='none in /nowhere'):
        make_prompt_encoder(describe_checkpoint(folder), tokenizer='/nowhere')


def test_the_folder_that_the_processor_file_names_comes_first(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    shutil.copytree(TOKENIZER, folder / 'words')
    path = folder / 'policy_preprocessor.json'
    data = json.loads(path.read_text())
    step = next(s for s in data['steps'] if s['registry_name'] == 'tokenizer_processor')
    step['artifacts'] = {'tokenizer_name': 'words'}
    path.write_text(json.dumps(data))
    encoder = make_prompt_encoder(describe_checkpoint(folder))
    assert encoder is not None
    assert encoder.tokenizer.source == folder / 'words' / 'tokenizer.json'


def test_a_tokenizer_with_more_words_than_the_policy_is_refused(
    copy: Path, tmp_path: Path
) -> None:
    data = json.loads((copy / 'tokenizer.json').read_text())
    vocabulary = data['model']['vocab']
    vocabulary |= {f'word{number}': 483 + number for number in range(300)}
    (copy / 'tokenizer.json').write_text(json.dumps(data))
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    with pytest.raises(CheckpointError, match=r'found 78\d tokens; expected at most 640'):
        make_prompt_encoder(describe_checkpoint(folder), tokenizer=str(copy))


def test_two_models_in_a_folder_are_no_choice(copy: Path) -> None:
    (copy / 'tokenizer.json').unlink()
    assert find_tokenizer([copy]) == copy / 'tokenizer.model'
    shutil.copy(copy / 'tokenizer.model', copy / 'other.model')
    assert find_tokenizer([copy]) is None

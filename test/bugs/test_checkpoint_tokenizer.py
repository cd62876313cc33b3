"""P2: a language policy without its tokenizer, and no network: told at once, never looked up."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from pi_folder import TOKENIZER, write_pi_folder

from sparkrt_ros.runtime.errors import CheckpointError
from sparkrt_ros.runtime.policy import load_policy

LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail('something was looked up on the network')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    monkeypatch.setattr(socket, 'create_connection', refuse)


@pytest.mark.parametrize('name', ['pi0', 'pi05'])
def test_the_missing_file_is_named_within_five_seconds(name: str, tmp_path: Path) -> None:
    folder = write_pi_folder(name, tmp_path / 'policy', tokenizer=False)
    begin_s = time.process_time()
    with pytest.raises(CheckpointError) as refused:
        load_policy(folder)
    assert time.process_time() - begin_s < LIMIT_S
    text = str(refused.value)
    assert str(folder / 'tokenizer') in text
    assert 'tokenizer.json' in text


@pytest.mark.parametrize('file', ['tokenizer.json', 'tokenizer.model'])
def test_a_pointer_in_the_place_of_a_tokenizer_is_not_taken(file: str, tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    for path in (folder / 'tokenizer').glob('tokenizer.*'):
        path.unlink()
    pointer = b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 17549604\n'
    (folder / 'tokenizer' / file).write_bytes(pointer)
    with pytest.raises(CheckpointError, match=file.replace('.', r'\.')):
        load_policy(folder)


def test_with_the_tokenizer_beside_it_the_same_folder_loads(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    assert (folder / 'tokenizer' / 'tokenizer.json').is_file()
    assert TOKENIZER.is_dir()
    with load_policy(folder) as policy:
        assert policy.capabilities.model_type == 'pi05'

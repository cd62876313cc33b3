"""Configurations without a type, of an unknown type or with unknown fields; loading offline."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from act_folder_factory import edit_json

from sparkrt_ros.runtime.checkpoint import load_checkpoint
from sparkrt_ros.runtime.errors import CheckpointError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail('a policy on disk was looked up on the network')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    monkeypatch.setattr(socket, 'create_connection', refuse)


def test_no_type_lists_the_supported_ones(act_folder: Path) -> None:
    edit_json(act_folder / 'config.json', lambda data: data.pop('type'))
    with pytest.raises(CheckpointError, match=r'config\.json: type: found no such field.*: act'):
        load_checkpoint(act_folder)


@pytest.mark.parametrize('kind', ['foo', 'pi07', 'ACT', '', 7, ['act'], {'act': 1}])
def test_unknown_type_lists_the_supported_ones_within_5_s(act_folder: Path, kind: Any) -> None:
    edit_json(act_folder / 'config.json', lambda data: data.update(type=kind))
    start = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(act_folder)
    assert time.perf_counter() - start < 5.0
    assert f'type: found {kind!r}; expected one of: act' in str(caught.value)


def test_device_and_use_amp_are_warned_of_and_ignored(act_folder: Path) -> None:
    edit_json(act_folder / 'config.json', lambda data: data.update(device='mps', use_amp=True))
    warnings = load_checkpoint(act_folder).warnings
    assert any('device' in text and 'use_amp' in text and 'ignored' in text for text in warnings)


def test_other_unknown_field_is_refused_by_default(act_folder: Path) -> None:
    edit_json(act_folder / 'config.json', lambda data: data.update(foo=1))
    with pytest.raises(CheckpointError, match='unknown field foo'):
        load_checkpoint(act_folder)
    checkpoint = load_checkpoint(act_folder, allow_unknown_fields=True)
    assert any('foo is unknown and ignored' in text for text in checkpoint.warnings)


def test_name_on_a_hub_is_not_looked_up() -> None:
    with pytest.raises(CheckpointError, match='must be downloaded first'):
        load_checkpoint('someone/some_policy')

"""Against LeRobot without LeRobot: what it computed from a few frames, and the script for that."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lerobot_parity_case import (
    ACTIONS,
    CHECKPOINT,
    OBSERVATIONS,
    STATE,
    parity,
    stamps_ns,
    write_bag,
)

from sparkrt_ros.replay.exchange import read_actions

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'lerobot_actions.py'
TOLERANCE = 1e-5


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def save(path: Path, arrays: dict[str, np.ndarray], **told: Any) -> Path:
    """Write an archive; ``told`` changes its meta."""
    meta = {**json.loads(str(arrays['meta'])), **told}
    with path.open('wb') as file:
        np.savez(file, **{**arrays, 'meta': np.array(json.dumps(meta))})
    return path


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return write_bag(tmp_path / 'moments.mcap', load(OBSERVATIONS))


def test_the_chunks_are_those_that_lerobot_computes(bag: Path, tmp_path: Path) -> None:
    receipt, page = tmp_path / 'receipt.json', tmp_path / 'report.html'
    outputs = ('--json', str(receipt), '--report', str(page))
    code = parity(bag, '--against', 'lerobot', str(ACTIONS), *outputs)
    assert code == 0
    told = json.loads(receipt.read_text())
    judged = [c for c in told['comparisons'] if c['reference'] == 'lerobot 0.6.1']
    assert [c['band'] for c in judged] == ['pass', 'pass']
    for comparison in judged:
        for space in ('model', 'robot'):
            assert comparison['spaces'][space]['overall']['max_abs'] <= TOLERANCE
    assert 'against lerobot 0.6.1' in page.read_text(encoding='utf-8')


def test_actions_that_lerobot_would_not_compute_fail(bag: Path, tmp_path: Path) -> None:
    arrays = load(ACTIONS)
    arrays['normalized'][2, 5, 3] += 1e-3
    other = save(tmp_path / 'other.npz', arrays)
    assert parity(bag, '--against', 'lerobot', str(other)) == 1


def test_the_bag_gives_the_policy_the_very_pixels_that_lerobot_got(
    bag: Path, tmp_path: Path
) -> None:
    exported = tmp_path / 'observations.npz'
    parity(bag, '--export-observations', str(exported))
    found, wanted = load(exported), load(OBSERVATIONS)
    told, expected = (json.loads(str(a.pop('meta'))) for a in (found, wanted))
    assert told['observations_digest'] == expected['observations_digest']
    assert found.keys() == wanted.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], wanted[name])
    np.testing.assert_array_equal(found['stamps_ns'], stamps_ns(4))


def test_actions_for_other_pixels_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = load(OBSERVATIONS)
    arrays['observation.images.front'][3, 50, 60, 1] ^= 1
    bag = write_bag(tmp_path / 'other.mcap', arrays)
    assert parity(bag, '--against', 'lerobot', str(ACTIONS)) == 2
    assert 'observations_digest' in capsys.readouterr().err


@pytest.mark.parametrize('key', ['weights_sha256', 'checkpoint_digest'])
def test_actions_of_another_policy_are_refused(
    key: str, bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / 'other.npz', load(ACTIONS), **{key: '00' * 32})
    assert parity(bag, '--against', 'lerobot', str(other)) == 2
    assert key in capsys.readouterr().err


# The script itself, up to where LeRobot is needed.


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location('lerobot_actions', SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ToyPeer:
    """Takes the place of LeRobot: a chunk that follows from the state and the noise."""

    precision = 'fp32'

    def __init__(self, folder: Path, *, device: str) -> None:
        self.given: list[tuple[str, Any]] = []

    def check_features(self, arrays: Any) -> None:
        assert STATE in arrays

    def predict(
        self, observation: dict[str, np.ndarray], *, task: str, noise: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        assert set(observation) == {k for k in load(OBSERVATIONS) if k.startswith('observation.')}
        self.given.append((task, noise))
        normalized = np.tile(observation[STATE], (40, 1))
        return normalized, 2 * normalized


def test_the_script_needs_nothing_of_sparkrt() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding='utf-8'))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split('.')[0])
    assert names - set(sys.stdlib_module_names) == {'numpy', 'torch', 'lerobot'}


def test_the_script_writes_what_sparkrt_reads(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, 'Peer', ToyPeer)
    monkeypatch.setattr(script, 'version', lambda name: '0.6.1')
    monkeypatch.setattr(script, 'set_up_torch', lambda threads: None)
    output = tmp_path / 'without_suffix'
    script.run(CHECKPOINT, OBSERVATIONS, output, device='cpu', threads=1)
    found = read_actions(output)
    given = load(OBSERVATIONS)
    assert found.label == 'lerobot 0.6.1'
    np.testing.assert_array_equal(found.normalized[:, 7], given[STATE])
    np.testing.assert_array_equal(found.actions, 2 * found.normalized)
    np.testing.assert_array_equal(found.stamps_ns, given['stamps_ns'])
    told = json.loads(str(given['meta']))
    for key in ('observations_digest', 'bag_digest', 'checkpoint_digest', 'weights_sha256'):
        assert found.meta[key] == told[key]
    assert sorted(p.name for p in tmp_path.iterdir()) == ['without_suffix']


def test_every_row_goes_with_its_task_and_noise(script: ModuleType, tmp_path: Path) -> None:
    arrays = load(OBSERVATIONS)
    arrays['noise'] = np.arange(8, dtype=np.float32).reshape(4, 2)
    path = save(tmp_path / 'noisy.npz', arrays, task='pick')
    read, meta = script.read_observations(path)
    peer = ToyPeer(CHECKPOINT, device='cpu')
    script.predict_all(peer, read, task=meta['task'])
    assert [task for task, _ in peer.given] == ['pick'] * 4
    np.testing.assert_array_equal([noise for _, noise in peer.given], arrays['noise'])


@pytest.mark.parametrize(
    ('change', 'told', 'text'),
    [
        ({}, {'format': 'something-else'}, 'something-else'),
        ({}, {'weights_sha256': '00' * 32}, 'give the policy folder that sparkrt used'),
        ({STATE: np.zeros((3, 5), np.float32)}, {}, '3 rows'),
    ],
)
def test_the_script_refuses_what_does_not_fit(
    script: ModuleType,
    change: dict[str, np.ndarray],
    told: dict[str, str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = save(tmp_path / 'odd.npz', {**load(OBSERVATIONS), **change}, **told)
    output = tmp_path / 'actions.npz'
    monkeypatch.setattr(sys, 'argv', ['x', str(CHECKPOINT), str(path), str(output)])
    assert script.main() == 1
    assert text in capsys.readouterr().err
    assert not output.exists()


def test_the_script_refuses_a_file_that_is_something_else(
    script: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / 'odd.npz'
    np.savez(path, a=np.zeros(3))
    with pytest.raises(script.Refused, match='expected also meta'):
        script.read_observations(path)
    for content in (b'', b'PK\x03\x04 nothing', b'text'):
        path.write_bytes(content)
        with pytest.raises(script.Refused, match='no readable'):
            script.read_observations(path)


def test_the_script_names_what_the_meta_lacks(script: ModuleType, tmp_path: Path) -> None:
    arrays = load(OBSERVATIONS)
    told = json.loads(str(arrays['meta']))
    del told['weights_sha256']
    arrays['meta'] = np.array(json.dumps(told))
    path = tmp_path / 'odd.npz'
    np.savez(path, **arrays)
    with pytest.raises(script.Refused, match='weights_sha256'):
        script.read_observations(path)

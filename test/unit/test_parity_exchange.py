"""Observations out to LeRobot, actions back, and nothing mixed up in between."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory
from bag_factory import write_mcap
from parity_bags import drive, write_robot

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.exchange import ACTIONS_FORMAT, ObservationWriter, read_actions
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.policy import load_policy
from sparkrt_ros.runtime.types import Observation


class Exchange:
    """A run that exports, and a program that answers as LeRobot would."""

    def __init__(self, folder: Path, policy: Path) -> None:
        self.folder = folder
        self.policy = policy
        self.robot = write_robot(folder)
        self.bag = folder / 'bag.mcap'
        write_mcap(self.bag, drive(seconds=2.5))
        self.observations = folder / 'observations.npz'
        self.answer = folder / 'actions.npz'
        self.first = self.run(export=self.observations)

    def run(self, **changes: Any) -> Any:
        values: dict[str, Any] = {
            'bag': self.bag,
            'robot': str(self.robot),
            'checkpoint': self.policy,
            'candidates': (ArmSpec(backend='eager'),),
        }
        return run_parity(ParityOptions(**{**values, **changes}))

    def exported(self) -> dict[str, np.ndarray]:
        with np.load(self.observations, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def reply(self, **changes: Any) -> Path:
        """A file with the actions of the first run; ``changes`` replace arrays or meta."""
        given = self.exported()
        told = json.loads(str(given['meta']))
        meta = {
            'format': ACTIONS_FORMAT,
            **{k: told[k] for k in ('observations_digest', 'bag_digest', 'checkpoint_digest')},
            'weights_sha256': told['weights_sha256'],
            'producer': 'lerobot 0.6.1',
            'versions': {'lerobot': '0.6.1'},
            **{
                k: v for k, v in changes.items() if k not in ('actions', 'normalized', 'stamps_ns')
            },
        }
        arm = self.first.arms[0]
        arrays = {
            'actions': arm.actions.astype(np.float32),
            'normalized': arm.normalized,
            'stamps_ns': given['stamps_ns'],
        }
        arrays |= {k: v for k, v in changes.items() if k in arrays}
        np.savez(self.answer, meta=np.array(json.dumps(meta)), **arrays)
        return self.answer


@pytest.fixture(scope='module')
def exchange(tmp_path_factory: pytest.TempPathFactory, act_weights_cache: Path) -> Exchange:
    folder = tmp_path_factory.mktemp('exchange')
    return Exchange(folder, ActFolderFactory(folder, act_weights_cache)('policy'))


def test_the_export_is_what_the_policy_was_given(exchange: Exchange) -> None:
    given = exchange.exported()
    count = len(exchange.first.records)
    assert {name: (a.shape, a.dtype.name) for name, a in given.items() if name != 'meta'} == {
        'observation.images.front': ((count, 64, 64, 3), 'uint8'),
        'observation.images.wrist': ((count, 64, 64, 3), 'uint8'),
        'observation.state': ((count, 5), 'float32'),
        'stamps_ns': ((count,), 'int64'),
    }
    assert given['stamps_ns'].tolist() == [r.reference_ns for r in exchange.first.records]
    threads = exchange.first.arms[0].receipt['num_threads']
    config = RuntimeConfig(backend='eager', num_threads=threads)
    with load_policy(exchange.policy, config=config) as policy:
        for row in range(count):
            observation = Observation(
                images={k: v[row] for k, v in given.items() if 'images' in k},
                state=given['observation.state'][row],
            )
            normalized, _ = policy.predict_both(observation)
            assert np.array_equal(normalized, exchange.first.arms[0].normalized[row])


def test_the_export_says_where_it_comes_from(exchange: Exchange) -> None:
    given = exchange.exported()
    meta = json.loads(str(given['meta']))
    facts = exchange.first.provenance
    assert meta['format'] == 'sparkrt-observations-1'
    assert meta['bag_digest'] == facts['bag']['digest']
    assert meta['checkpoint_digest'] == facts['checkpoint']['digest']
    weights = (exchange.policy / 'model.safetensors').read_bytes()
    assert meta['weights_sha256'] == hashlib.sha256(weights).hexdigest()
    assert (meta['chunk_size'], meta['action_size'], meta['policy']) == (8, 5, 'act')
    digest = hashlib.sha256()
    for row in range(len(given['stamps_ns'])):
        for key in sorted(k for k in given if k.startswith('observation.')):
            digest.update(key.encode() + b'\0' + given[key][row].tobytes())
        digest.update(int(given['stamps_ns'][row]).to_bytes(8, 'little', signed=True))
    assert meta['observations_digest'] == digest.hexdigest()


def test_the_same_actions_pass_in_both_spaces(exchange: Exchange) -> None:
    result = exchange.run(lerobot_actions=exchange.reply())
    against = [c for c in result.comparisons if c.reference == 'lerobot 0.6.1']
    assert [(c.candidate, c.band) for c in against] == [
        ('eager, fp32', 'pass'),
        ('eager, fp32 #2', 'pass'),
    ]
    assert [space.overall.max_abs for space in against[0].spaces] == [0.0, 0.0]
    assert result.arms[-1].label == 'lerobot 0.6.1'
    assert result.arms[-1].receipt['versions'] == {'lerobot': '0.6.1'}
    assert set(result.worst_frames['eager, fp32']) == {
        'observation.images.front',
        'observation.images.wrist',
    }


def test_other_actions_fail(exchange: Exchange) -> None:
    wrong = exchange.first.arms[0].normalized.copy()
    wrong[2] += 0.01
    result = exchange.run(lerobot_actions=exchange.reply(normalized=wrong))
    (first, *_) = [c for c in result.comparisons if c.reference == 'lerobot 0.6.1']
    assert (first.band, first.worst_chunk) == ('fail', 2)
    assert result.comparisons[0].band == 'fail' or result.comparisons[1].band == 'fail'


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'checkpoint_digest': 'other'}, 'checkpoint_digest'),
        ({'weights_sha256': 'other'}, 'weights_sha256'),
        ({'weights_sha256': None}, 'weights_sha256'),
        ({'observations_digest': 'other'}, 'observations_digest'),
        ({'format': 'sparkrt-actions-0'}, 'sparkrt-actions-0'),
        ({'actions': np.zeros((3, 8, 5), np.float32)}, 'normalized'),
        ({'stamps_ns': np.zeros(2, np.int64)}, 'stamps_ns'),
    ],
)
def test_actions_of_something_else_are_refused(
    exchange: Exchange, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        exchange.run(lerobot_actions=exchange.reply(**changes))


def test_actions_for_other_times_or_of_another_shape_are_refused(exchange: Exchange) -> None:
    count = len(exchange.first.records)
    later = np.array([r.reference_ns + 1 for r in exchange.first.records])
    with pytest.raises(ConfigError, match='other times'):
        exchange.run(lerobot_actions=exchange.reply(stamps_ns=later))
    long = np.zeros((count, 9, 5), np.float32)
    with pytest.raises(ConfigError, match=r'chunks of shape \(9, 5\)'):
        exchange.run(lerobot_actions=exchange.reply(actions=long, normalized=long))
    with pytest.raises(ConfigError, match='export the observations again'):
        exchange.run(lerobot_actions=exchange.reply(), replay=ReplayOptions(max_chunks=count - 1))


@pytest.mark.parametrize(
    'spoil',
    [
        lambda path: path.write_bytes(b'no archive'),
        lambda path: path.write_bytes(path.read_bytes()[:-200]),
        lambda path: np.savez(path, actions=np.zeros((1, 2, 3))),
        lambda path: np.savez(
            path,
            actions=np.zeros((1, 2, 3)),
            normalized=np.zeros((1, 2, 3)),
            stamps_ns=np.zeros(1),
            meta=np.array('{'),
        ),
        lambda path: path.unlink(),
    ],
    ids=['text', 'cut', 'incomplete', 'meta', 'missing'],
)
def test_files_that_are_none_are_refused(
    exchange: Exchange, spoil: Callable[[Path], object]
) -> None:
    path = exchange.reply()
    spoil(path)
    with pytest.raises(ConfigError, match=r'docs/parity\.md'):
        read_actions(path)


def test_an_unfinished_export_leaves_nothing_behind(tmp_path: Path) -> None:
    with ObservationWriter(tmp_path / 'out.npz') as writer:
        writer.add(Observation(state=np.zeros(3, np.float32), stamp_ns=1))
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    with ObservationWriter(tmp_path / 'out.npz') as writer:
        writer.add(Observation(state=np.zeros(3, np.float32)))
        with pytest.raises(ConfigError, match='shape'):
            writer.add(Observation(state=np.zeros(4, np.float32)))
        with pytest.raises(ConfigError, match='a row of'):
            writer.add(Observation())


def test_noise_is_exported_with_the_rows(tmp_path: Path) -> None:
    noise = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ObservationWriter(tmp_path / 'out.npz') as writer:
        for k in range(3):
            writer.add(Observation(state=np.full(2, k, np.float32), stamp_ns=k), noise=noise + k)
        writer.finish({})
    with np.load(tmp_path / 'out.npz', allow_pickle=False) as archive:
        assert archive['noise'].shape == (3, 2, 3)
        assert np.array_equal(archive['noise'][2], noise + 2)
        assert archive['observation.state'][:, 0].tolist() == [0, 1, 2]

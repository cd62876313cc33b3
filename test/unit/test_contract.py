"""Reading robot contracts: what is understood, and how everything else is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from contract_samples import GOOD_CONTRACT, write_contract

from sparkrt_ros.convert.contract import (
    StateEntry,
    load_contract,
    robots_folder,
    shipped_contracts,
)
from sparkrt_ros.runtime import share
from sparkrt_ros.runtime.errors import ConfigError, ContractError


class TestUnderstood:
    def test_everything_arrives(self, tmp_path: Path) -> None:
        contract = load_contract(write_contract(tmp_path, GOOD_CONTRACT))
        front, depth = contract.cameras
        assert (front.output_size, front.interpolation) == ((24, 24), 'linear')
        assert (front.timing.align, front.timing.zero_stamp) == ('asof', 'refuse')
        assert depth.output_size is None
        assert (depth.timing.align, depth.timing.zero_stamp) == ('latest', 'receive')
        assert contract.state == (
            StateEntry(joint='b'),
            StateEntry(joint='a', field='velocity'),
            StateEntry(joint='a'),
        )
        arm, tool = contract.state_streams
        assert (arm.joints, arm.message_names) == (('a',), ('a_joint',))
        assert (tool.timing.clock, tool.timing.align) == ('receive', 'hold')
        assert contract.action == ('x', 'b', 'a')
        assert contract.velocity_mask.tolist() == [True, False, False]
        group_arm, base = contract.outputs
        assert contract.output_columns(group_arm).tolist() == [2, 1]
        assert base.message_names == ('linear.x',)
        assert contract.source.endswith('robot.yaml')

    def test_limits_follow_the_action_vector(self, tmp_path: Path) -> None:
        limits = load_contract(write_contract(tmp_path, GOOD_CONTRACT)).action_limits
        assert limits.low.tolist() == [-0.5, -0.4, -1.0]
        assert limits.high.tolist() == [0.5, 0.4, 1.0]
        assert limits.max_rate.tolist() == [2.0, 1.0, 2.0]
        assert limits.max_rate_change.tolist() == [np.inf, 3.0, np.inf]
        with pytest.raises(ValueError, match='read-only'):
            limits.low[0] = -9.0

    def test_size_after_crop_alone(self, tmp_path: Path) -> None:
        content = copy.deepcopy(GOOD_CONTRACT)
        del content['cameras'][0]['resize'], content['cameras'][0]['interpolation']
        assert load_contract(write_contract(tmp_path, content)).cameras[0].output_size == (48, 48)
        del content['cameras'][0]['crop']
        assert load_contract(write_contract(tmp_path, content)).cameras[0].output_size == (64, 48)

    def test_the_least_contract(self, tmp_path: Path) -> None:
        content = {
            'name': 'least',
            'policy_rate_hz': 10,
            'control_rate_hz': 10,
            'hold_s': 0.5,
            'joints': [{'name': 'a', 'unit': 'rad', 'limits': [-1, 1], 'max_velocity': 1}],
            'action': {
                'vector': ['a'],
                'outputs': [
                    {'name': 'arm', 'type': 'float64_multi_array', 'topic': 'arm', 'joints': ['a']}
                ],
            },
        }
        contract = load_contract(write_contract(tmp_path, content))
        assert (contract.cameras, contract.state, contract.state_streams) == ((), (), ())
        assert contract.state_to_policy([]).shape == (0,)


class TestDigest:
    def test_meaning_counts_not_spelling(self, tmp_path: Path) -> None:
        first = load_contract(write_contract(tmp_path, GOOD_CONTRACT))
        other = tmp_path / 'elsewhere'
        other.mkdir()
        text = '# a comment\n' + yaml.safe_dump(
            dict(reversed(GOOD_CONTRACT.items())), sort_keys=False
        )
        second = load_contract(write_contract(other, text))
        assert first.digest == second.digest
        assert first == second
        assert len(first.digest) == 64

    @pytest.mark.parametrize(
        'change',
        [
            lambda c: c['joints'][0].update(sign=1),
            lambda c: c['joints'][1].update(limits=[-0.4, 0.41]),
            lambda c: c['cameras'][0].update(interpolation='area'),
            lambda c: c['action']['vector'].reverse(),
            lambda c: c.update(hold_s=2),
        ],
    )
    def test_every_change_of_meaning_changes_it(
        self, tmp_path: Path, change: Callable[[dict[str, Any]], None]
    ) -> None:
        changed = copy.deepcopy(GOOD_CONTRACT)
        change(changed)
        before = load_contract(write_contract(tmp_path, GOOD_CONTRACT)).digest
        assert load_contract(write_contract(tmp_path, changed)).digest != before


class TestFinding:
    def test_by_name_and_by_path_are_the_same(self) -> None:
        path = shipped_contracts()['so101']
        assert load_contract('so101') == load_contract(path) == load_contract(str(path))

    def test_an_unknown_name_lists_the_shipped_ones(self) -> None:
        with pytest.raises(ContractError) as caught:
            load_contract('so100')
        for name in ('aloha', 'embedded', 'franka', 'so101', 'ur'):
            assert name in caught.value.expected
        assert "'so101'" in str(caught.value.remedy)

    @pytest.mark.parametrize('path', ['nowhere.yaml', './nowhere', 'a/b.yml'])
    def test_a_path_that_is_not_there(self, path: str) -> None:
        with pytest.raises(ContractError, match='no such file'):
            load_contract(path)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ContractError, match='a folder'):
            load_contract(tmp_path)

    def test_an_installed_copy_is_found_above_the_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = tmp_path / 'lib/python3.12/site-packages/sparkrt_ros/runtime/share.py'
        shipped = tmp_path / 'share/sparkrt/config/robots'
        shipped.mkdir(parents=True)
        monkeypatch.setattr(share, '__file__', str(code))
        assert robots_folder() == shipped

    def test_else_in_the_ament_index(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shipped = tmp_path / 'overlay/share/sparkrt/config/robots'
        shipped.mkdir(parents=True)
        monkeypatch.setattr(share, '__file__', str(tmp_path / 'a/b/c/share.py'))
        monkeypatch.setenv('AMENT_PREFIX_PATH', f'{tmp_path}/none:{tmp_path}/overlay')
        assert robots_folder() == shipped

    def test_nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(share, '__file__', str(tmp_path / 'a/b/c/share.py'))
        monkeypatch.setenv('AMENT_PREFIX_PATH', '')
        monkeypatch.setattr('sys.prefix', str(tmp_path / 'python'))
        assert shipped_contracts() == {}
        with pytest.raises(ContractError, match='none is installed'):
            load_contract('so101')
        with pytest.raises(ConfigError, match=r'a/policies.*source install/setup.bash'):
            share.shared_path('policies')

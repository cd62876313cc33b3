"""Robot contracts that are refused, each with file, key path and reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_samples import GOOD_CONTRACT, write_contract

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.runtime.errors import ContractError


def at(*keys: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that puts ``value`` at a place of the contract; ``...`` removes it."""

    def change(content: dict[str, Any]) -> None:
        target: Any = content
        for key in keys[:-1]:
            target = target[key]
        if value is ...:
            del target[keys[-1]]
        else:
            target[keys[-1]] = value

    return change


NAN = float('nan')
# change, key path in the error, what the error must say
BAD: list[tuple[Callable[[dict[str, Any]], None], str, str]] = [
    (at('policy_rate_hz', value=...), 'robot.yaml', 'policy_rate_hz'),
    (at('polcy_rate_hz', value=3), 'robot.yaml', "did you mean 'policy_rate_hz'"),
    (at('policy_rate_hz', value='10'), 'policy_rate_hz', "'10' (text)"),
    (at('policy_rate_hz', value='1e1'), 'policy_rate_hz', 'decimal point'),
    (at('policy_rate_hz', value=True), 'policy_rate_hz', 'True (bool)'),
    (at('policy_rate_hz', value=NAN), 'policy_rate_hz', 'finite'),
    (at('policy_rate_hz', value=0), 'policy_rate_hz', 'above 0'),
    (at('hold_s', value=-1), 'hold_s', 'at least 0'),
    (at('control_rate_hz', value=9), 'control_rate_hz', 'at least 10 Hz'),
    (at('name', value=''), 'name', 'non-empty'),
    (at('name', value=3), 'name', 'quotes'),
    (at('joints', value=[]), 'joints', 'at least one joint'),
    (at('joints', value={'a': 1}), 'joints', 'a list'),
    (at('joints', 0, value='a'), 'joints[0]', 'a mapping'),
    (at('joints', 0, 'unit', value='degree'), 'joints[0].unit', 'deg, m, mm'),
    (at('joints', 0, 'unit', value=...), 'joints[0]', 'no unit'),
    (at('joints', 0, 'limits', value=[1, -1]), 'joints[0].limits', 'min < max'),
    (at('joints', 0, 'limits', value=[1, 1]), 'joints[0].limits', 'min < max'),
    (at('joints', 0, 'limits', value=[-1, NAN]), 'joints[0].limits[1]', 'finite'),
    (at('joints', 0, 'limits', value=[-1]), 'joints[0].limits', '2 elements'),
    (at('joints', 0, 'limits', value=3), 'joints[0].limits', '2 elements'),
    (at('joints', 0, 'sign', value=2), 'joints[0].sign', '1 or -1'),
    (at('joints', 0, 'sign', value=True), 'joints[0].sign', 'bool'),
    (at('joints', 0, 'offset', value=float('inf')), 'joints[0].offset', 'finite'),
    (at('joints', 0, 'range', value=[0, 1]), 'joints[0].range', 'range_0_100'),
    (at('joints', 0, 'max_velocity', value=...), 'joints[0]', 'max_velocity'),
    (at('joints', 0, 'max_velocity', value=0), 'joints[0].max_velocity', 'above 0'),
    (at('joints', 1, 'range', value=...), 'joints[1]', 'SI value at 100'),
    (at('joints', 1, 'range', value=[1, 1]), 'joints[1].range', 'two different'),
    (at('joints', 1, 'name', value='a'), 'joints', "joint 'a' twice"),
    (at('joints', 2, 'max_velocity', value=1), 'joints[2].max_velocity', 'max_acceleration'),
    (at('cameras', 0, 'type', value='raw'), 'cameras[0].type', 'compressed_image'),
    (at('cameras', 0, 'topic', value='front camera'), 'cameras[0].topic', 'topic name'),
    (at('cameras', 0, 'topic', value='front//image'), 'cameras[0].topic', 'topic name'),
    (at('cameras', 0, 'max_age_s', value=...), 'cameras[0]', 'max_age_s'),
    (at('cameras', 0, 'crop', value=[8, 0, 57, 48]), 'cameras[0].crop', '64x48'),
    (at('cameras', 0, 'crop', value=[-1, 0, 4, 4]), 'cameras[0].crop[0]', 'at least 0'),
    (at('cameras', 0, 'crop', value=[0, 0, 0, 4]), 'cameras[0].crop[2]', 'at least 1'),
    (at('cameras', 0, 'resize', value=[24.0, 24]), 'cameras[0].resize[0]', 'whole number'),
    (at('cameras', 0, 'resize', value=...), 'cameras[0].interpolation', 'resize'),
    (at('cameras', 0, 'interpolation', value='bicubic'), 'cameras[0].interpolation', 'cubic'),
    (at('cameras', 1, 'key', value='observation.images.front'), 'cameras', 'policy key'),
    (at('cameras', 1, 'name', value='front'), 'cameras', "camera 'front' twice"),
    (at('cameras', 0, 'name', value='state'), 'cameras[0]', "a camera called 'state'"),
    (at('state', 'streams', 0, 'name', value='front'), 'cameras[0]', "a camera called 'front'"),
    (at('cameras', 1, 'depth_range_m', value=[2, 1]), 'cameras[1].depth_range_m', 'near < far'),
    (at('cameras', 1, 'align', value='nearest'), 'cameras[1].align', 'asof'),
    (at('state', 'vector', 0, value='c'), 'state.vector[0]', 'a joint of this contract: a, b, x'),
    (at('state', 'vector', 0, value='a'), 'state.vector', "entry 'a' twice"),
    (at('state', 'vector', 0, value={'joint': 'b', 'field': 'velocity'}), 'state.vector[0]',
     'no state stream reports'),
    (at('state', 'vector', 0, value={'joint': 'b', 'field': 'speed'}), 'state.vector[0].field',
     'effort'),
    (at('state', 'vector', 0, value='x'), 'state.vector[0]', 'field: velocity'),
    (at('state', 'streams', 0, 'joints', value={'c': 'c'}), 'state.streams[0].joints.c',
     'a, b, x'),
    (at('state', 'streams', 0, 'joints', value={'a': 'j', 'b': 'j'}), 'state.streams[0].joints',
     "name 'j' twice"),
    (at('state', 'streams', 0, 'joints', value={'a': 1}), 'state.streams[0].joints.a', 'text'),
    (at('state', 'streams', 0, 'field', value='velocity'), 'state.streams[0].field',
     'multi_array'),
    (at('state', 'streams', 1, 'joints', value=...), 'state.streams[1]', 'layout'),
    (at('state', 'streams', 1, 'clock', value='header'), 'state.streams[1].clock', 'no stamp'),
    (at('state', 'streams', 1, 'topic', value='joint_states'), 'state.streams', 'twice'),
    (at('action', 'vector', value=[]), 'action.vector', 'in order'),
    (at('action', 'vector', 0, value='b'), 'action.vector', "joint 'b' twice"),
    (at('action', 'vector', 0, value='X'), 'action.vector[0]', "joint 'X'"),
    (at('action', 'outputs', 0, 'joints', value=['a']), 'action.outputs', 'none for b'),
    (at('action', 'outputs', 0, 'joints', value=['a', 'b', 'b']), 'action.outputs[0].joints',
     'twice'),
    (at('action', 'outputs', 0, 'joints', value=[]), 'action.outputs[0].joints', 'no joints'),
    (at('action', 'outputs', 0, 'type', value='Float64MultiArray'), 'action.outputs[0].type',
     'float64_multi_array'),
    (at('action', 'outputs', 0, 'joints', value=['a', 'b', 'x']), 'action.outputs[0].joints',
     'positions and velocities'),
    (at('action', 'outputs', 1, 'type', value='joint_trajectory'), 'action.outputs[1].joints',
     'velocities in a joint_trajectory'),
    (at('action', 'outputs', 1, 'joints', value={'x': 'linear'}), 'action.outputs[1].joints',
     'linear.x'),
    (at('action', 'outputs', 1, 'joints', value={'x': 'angular.z'}), 'action.outputs[1].joints',
     'rad/s'),
    (at('action', 'outputs', 1, 'time_from_start_s', value=1),
     'action.outputs[1].time_from_start_s', 'joint_trajectory'),
    (at('action', 'outputs', 1, 'frame_id', value='base'), 'action.outputs[1].frame_id',
     'twist_stamped'),
    (at('action', 'outputs', 1, 'topic', value='arm'), 'action.outputs', "topic 'arm' twice"),
]  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize(('change', 'path', 'text'), BAD, ids=[f'{b[1]}-{b[2]}' for b in BAD])
    def test_with_file_key_path_and_reason(
        self,
        tmp_path: Path,
        change: Callable[[dict[str, Any]], None],
        path: str,
        text: str,
    ) -> None:
        content = copy.deepcopy(GOOD_CONTRACT)
        change(content)
        file = write_contract(tmp_path, content)
        with pytest.raises(ContractError) as caught:
            load_contract(file)
        assert caught.value.where.startswith(str(file))
        assert caught.value.where.endswith(path)
        assert text in str(caught.value)

    def test_a_joint_that_nothing_uses(self, tmp_path: Path) -> None:
        content = copy.deepcopy(GOOD_CONTRACT)
        content['joints'].append({'name': 'z', 'unit': 'm', 'limits': [0, 1], 'max_velocity': 1})
        with pytest.raises(ContractError, match=r'joints\[3\].*neither'):
            load_contract(write_contract(tmp_path, content))

    @pytest.mark.parametrize(
        ('text', 'reason'),
        [
            ('name: a\nname: b\n', "'name' written twice"),
            ('joints:\n  - {name: a, name: b}\n', "'name' written twice"),
            ('name: [unclosed\n', 'line'),
            ('', 'nothing'),
            ('- a\n- b\n', 'a mapping'),
            ('just text', 'a mapping'),
            ('{[1, 2]: 3}', 'plain text'),
            ('name: !!python/object/apply:os.getcwd []\n', 'python/object'),
        ],
    )
    def test_text_that_is_no_contract(self, tmp_path: Path, text: str, reason: str) -> None:
        with pytest.raises(ContractError) as caught:
            load_contract(write_contract(tmp_path, text))
        assert reason in str(caught.value)
        assert 'robot.yaml' in caught.value.where

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / 'robot.yaml'
        path.write_bytes(b'\xff\xfe\x00')
        with pytest.raises(ContractError, match='readable YAML'):
            load_contract(path)

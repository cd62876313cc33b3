"""Contract against policy: bound by name, refused with both sides in full.

huggingface/lerobot#1620, #2332 and strands-labs/robots#517: cameras bound by position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkrt_ros.convert.contract import (
    CameraSpec,
    RobotContract,
    StreamTiming,
    check_contract,
    load_contract,
)
from sparkrt_ros.runtime.errors import ContractError
from sparkrt_ros.runtime.types import Capabilities

SHAPE = (3, 96, 128)
ALOHA_SHAPES = dict.fromkeys(
    ('cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist'), (3, 480, 640)
)


def key(name: str) -> str:
    return f'observation.images.{name}'


def camera(name: str, **changes: Any) -> CameraSpec:
    settings = {'resize': (128, 96), **changes}
    return CameraSpec(
        name=name,
        key=key(name),
        topic=f'{name}/image_raw',
        type='image',
        timing=StreamTiming(max_age_s=0.2),
        **settings,
    )


def robot(*names: str, **changes: Any) -> RobotContract:
    cameras = tuple(camera(name) for name in names)
    return replace(load_contract('embedded'), cameras=cameras, **changes)


def policy(*names: str, **changes: Any) -> Capabilities:
    values: dict[str, Any] = {
        'model_type': 'act',
        'image_shapes': {key(name): SHAPE for name in names},
        'state_size': 5,
        'environment_state_size': 0,
        'action_size': 5,
        'chunk_size': 50,
        'n_action_steps': 50,
    }
    return Capabilities(**{**values, **changes})


class TestCameras:
    def test_bound_by_name_in_the_order_of_the_policy(self) -> None:
        binding = check_contract(robot('side', 'wrist', 'top'), policy('top', 'wrist'))
        assert [spec.name for spec in binding.cameras] == ['top', 'wrist']
        assert [spec.name for spec in binding.unused_cameras] == ['side']
        assert binding.unchecked_cameras == ()

    def test_a_camera_of_another_name_is_not_taken_instead(self) -> None:
        with pytest.raises(ContractError) as caught:
            check_contract(robot('side', 'top'), policy('top', 'wrist'))
        error = caught.value
        assert key('side') in error.found
        assert key('top') in error.found
        assert key('top') in error.expected
        assert key('wrist') in error.expected
        assert f'cameras[].key of side to {key("wrist")}' in str(error.remedy)

    def test_an_absent_camera_fails_even_where_all_others_fit(self) -> None:
        with pytest.raises(ContractError, match=key('third')):
            check_contract(robot('top', 'wrist'), policy('top', 'wrist', 'third'))
        with pytest.raises(ContractError, match=key('top')):
            check_contract(robot(), policy('top'))

    @pytest.mark.parametrize(
        ('changes', 'size'),
        [
            ({'resize': (96, 128)}, '96x128'),
            ({'resize': None, 'source_size': (320, 240)}, '320x240'),
            ({'resize': None, 'crop': (0, 0, 128, 95)}, '128x95'),
        ],
    )
    def test_size_after_crop_and_resize(self, changes: dict[str, Any], size: str) -> None:
        contract = replace(robot(), cameras=(camera('top', **changes),))
        with pytest.raises(ContractError) as caught:
            check_contract(contract, policy('top'))
        assert size in caught.value.found
        assert '128x96' in caught.value.expected
        assert 'camera top' in str(caught.value.remedy)

    def test_an_unknown_size_is_left_to_the_first_picture(self) -> None:
        contract = replace(robot(), cameras=(camera('top', resize=None),))
        binding = check_contract(contract, policy('top'))
        assert [spec.name for spec in binding.unchecked_cameras] == ['top']

    def test_a_policy_of_other_channels(self) -> None:
        with pytest.raises(ContractError, match='4 channels'):
            check_contract(robot('top'), policy(image_shapes={key('top'): (4, 96, 128)}))


class TestVectors:
    @pytest.mark.parametrize('size', [4, 6])
    def test_state_of_another_size(self, size: int) -> None:
        with pytest.raises(ContractError) as caught:
            check_contract(robot('top'), policy('top', state_size=size))
        assert 'shoulder_pan, shoulder_lift, elbow_flex, wrist_flex, gripper' in caught.value.found
        assert f'a state of {size}' in caught.value.expected

    def test_a_policy_without_state_takes_any_contract(self) -> None:
        check_contract(robot('top'), policy('top', state_size=0))

    @pytest.mark.parametrize('size', [1, 7])
    def test_action_of_another_size(self, size: int) -> None:
        with pytest.raises(ContractError, match=f'an action of {size}') as caught:
            check_contract(robot('top'), policy('top', action_size=size))
        assert 'an action of 5: [shoulder_pan' in caught.value.found

    def test_environment_state_cannot_be_offered(self) -> None:
        with pytest.raises(ContractError, match='environment state of 3'):
            check_contract(robot('top'), policy('top', environment_state_size=3))


def test_all_mismatches_are_listed_at_once() -> None:
    with pytest.raises(ContractError) as caught:
        check_contract(robot('side'), policy('top', state_size=7, action_size=8))
    for text in (key('top'), 'a state of 7', 'an action of 8'):
        assert text in caught.value.expected
    assert 'embedded' in caught.value.where
    assert 'act' in caught.value.where


@pytest.mark.parametrize(
    ('name', 'cameras', 'size'),
    [
        ('embedded', {'front': SHAPE, 'wrist': SHAPE}, 5),
        ('so101', {'front': (3, 480, 640), 'wrist': (3, 480, 640)}, 6),
        ('aloha', {'cam_high': (3, 480, 640)}, 14),
        (
            'aloha',
            ALOHA_SHAPES,
            14,
        ),
        ('franka', {'wrist': (3, 480, 640)}, 8),
        ('ur', {}, 7),
    ],
)
def test_shipped_contracts_fit_policies_of_their_datasets(
    name: str, cameras: dict[str, tuple[int, int, int]], size: int
) -> None:
    shapes = {key(camera_name): shape for camera_name, shape in cameras.items()}
    check_contract(
        load_contract(name), policy(image_shapes=shapes, state_size=size, action_size=size)
    )

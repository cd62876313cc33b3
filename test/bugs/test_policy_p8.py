"""P8: cameras bound by position instead of by name.

Sources: huggingface/lerobot#1620, #2332; strands-labs/robots#517.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory, feature, features, tiny_config

from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import ImageArray, Observation

TOP, WRIST = 'observation.images.top', 'observation.images.wrist'


@pytest.fixture
def folder(make_act_folder: ActFolderFactory) -> Path:
    inputs = features(
        feature(TOP, 'VISUAL', 3, 64, 64),
        feature(WRIST, 'VISUAL', 3, 64, 64),
        feature('observation.state', 'STATE', 5),
    )
    return make_act_folder('top_and_wrist', config=tiny_config(input_features=inputs))


@pytest.fixture
def policy(folder: Path) -> Policy:
    return load_policy(folder)


def picture(seed: int) -> ImageArray:
    return np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)


def observe(**images: ImageArray) -> Observation:
    return Observation(images=images, state=np.zeros(5, np.float32))


def test_the_order_of_the_robots_cameras_does_not_matter(policy: Policy) -> None:
    top, wrist = picture(1), picture(2)
    chunk = policy.predict_chunk(observe(top=top, wrist=wrist))
    np.testing.assert_array_equal(policy.predict_chunk(observe(wrist=wrist, top=top)), chunk)
    exchanged = policy.predict_chunk(observe(top=wrist, wrist=top))
    assert np.abs(exchanged - chunk).max() > 1e-4


def test_an_unmatched_camera_is_refused_listing_both_sets(policy: Policy) -> None:
    with pytest.raises(ObservationError) as refused:
        policy.step(observe(side=picture(1), top=picture(2)))
    assert '[side, top]' in refused.value.found
    assert f'[{TOP}, {WRIST}]' in refused.value.expected


def test_a_camera_too_many_is_refused(policy: Policy) -> None:
    with pytest.raises(ObservationError, match="'side' names no camera"):
        policy.step(observe(top=picture(1), wrist=picture(2), side=picture(3)))


def test_an_absent_camera_is_never_filled_in(policy: Policy) -> None:
    with pytest.raises(ObservationError, match=f'{WRIST} missing'):
        policy.step(observe(top=picture(1)))

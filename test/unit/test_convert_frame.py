"""Crop and resize as trained, and the decoder of one camera."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.contract import CameraSpec, StreamTiming
from sparkrt_ros.convert.frame import CameraDecoder, crop_and_resize
from sparkrt_ros.runtime.errors import MessageError

CAMERA = CameraSpec(
    name='front',
    key='observation.images.front',
    topic='front/image_raw',
    type='image',
    timing=StreamTiming(max_age_s=0.2),
)


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


def ramp(height: int = 24, width: int = 32) -> np.ndarray:
    row, column = np.mgrid[0:height, 0:width]
    return np.stack([row, column, row + column], axis=2).astype(np.uint8)


class TestCropAndResize:
    def test_without_either_the_picture_itself_comes_back(self) -> None:
        picture = ramp()
        assert crop_and_resize(picture, CAMERA) is picture

    def test_crop_takes_x_y_width_height(self) -> None:
        result = crop_and_resize(ramp(), replace(CAMERA, crop=(5, 2, 10, 4)))
        np.testing.assert_array_equal(result, ramp()[2:6, 5:15])
        assert result.flags.c_contiguous

    def test_crop_comes_before_resize(self) -> None:
        camera = replace(CAMERA, crop=(0, 0, 16, 12), resize=(8, 6))
        expected = cv2.resize(ramp()[:12, :16], (8, 6), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(crop_and_resize(ramp(), camera), expected)

    @pytest.mark.parametrize(
        ('name', 'flag'),
        [
            ('nearest', cv2.INTER_NEAREST),
            ('linear', cv2.INTER_LINEAR),
            ('cubic', cv2.INTER_CUBIC),
            ('area', cv2.INTER_AREA),
            ('lanczos', cv2.INTER_LANCZOS4),
        ],
    )
    def test_interpolation_is_the_named_one(self, name: str, flag: int) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        camera = replace(CAMERA, resize=(13, 7), interpolation=name)
        expected = cv2.resize(noise, (13, 7), interpolation=flag)
        np.testing.assert_array_equal(crop_and_resize(noise, camera), expected)

    def test_area_averages(self) -> None:
        picture = np.zeros((2, 2, 3), dtype=np.uint8)
        picture[0] = 100
        result = crop_and_resize(picture, replace(CAMERA, resize=(1, 1)))
        assert result.tolist() == [[[50, 50, 50]]]

    def test_equal_size_is_not_resampled(self) -> None:
        picture = ramp()
        assert crop_and_resize(picture, replace(CAMERA, resize=(32, 24))) is picture

    def test_another_source_size_is_refused(self) -> None:
        with pytest.raises(MessageError, match='32x24') as caught:
            crop_and_resize(ramp(), replace(CAMERA, source_size=(64, 48)))
        assert '64x48' in caught.value.expected

    @pytest.mark.parametrize('crop', [(20, 0, 13, 4), (0, 20, 4, 5)])
    def test_crop_beyond_the_picture_is_refused(self, crop: tuple[int, int, int, int]) -> None:
        with pytest.raises(MessageError, match='crop'):
            crop_and_resize(ramp(), replace(CAMERA, crop=crop))


class TestCameraDecoder:
    def test_counts_and_gives_the_trained_size(self, messages: Messages) -> None:
        decoder = CameraDecoder(replace(CAMERA, resize=(16, 12)), expected=(3, 12, 16))
        assert decoder.decode(messages.image(ramp(), 'rgb8')).shape == (12, 16, 3)
        with pytest.raises(MessageError):
            decoder.decode(messages.image(ramp(), 'unheard of'))
        assert (decoder.decoded, decoder.rejected) == (1, 1)

    def test_a_size_the_policy_was_not_trained_with_is_refused(self, messages: Messages) -> None:
        decoder = CameraDecoder(CAMERA, expected=(3, 12, 16))
        with pytest.raises(MessageError, match='32x24') as caught:
            decoder.decode(messages.image(ramp(), 'rgb8'))
        assert '16x12' in caught.value.expected
        assert decoder.rejected == 1

    def test_both_kinds_of_message(self, messages: Messages) -> None:
        decoder = CameraDecoder(CAMERA)
        raw = decoder.decode(messages.image(ramp(), 'rgb8'))
        data = cv2.imencode('.png', ramp()[..., ::-1])[1].tobytes()
        packed = decoder.decode(messages.compressed(data, 'bgr8; png compressed bgr8'))
        np.testing.assert_array_equal(packed, raw)

    @pytest.mark.parametrize('field', ['encoding', 'depth_range_m'])
    def test_the_contract_speaks_for_the_camera(self, messages: Messages, field: str) -> None:
        changes: dict[str, Any] = {
            'encoding': {'encoding': 'bgr8'},
            'depth_range_m': {'depth_range_m': (0.0, 1.0)},
        }[field]
        decoder = CameraDecoder(replace(CAMERA, **changes))
        if field == 'encoding':
            pixels = np.full((4, 4, 3), (0, 0, 255), dtype=np.uint8)
            assert (decoder.decode(messages.image(pixels, '8UC3')) == (255, 0, 0)).all()
        else:
            depth = np.full((4, 4), 500, dtype=np.uint16)
            assert (decoder.decode(messages.image(depth, '16UC1')) == 128).all()

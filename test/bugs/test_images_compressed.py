"""Cases from public bug reports about compressed images; each stands for its whole kind."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.contract import CameraSpec, StreamTiming
from sparkrt_ros.convert.frame import CameraDecoder, to_rgb
from sparkrt_ros.convert.pixels import DecodeOptions
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


class TestCompressedFormat:
    """image_transport_plugins#56, #170; odin_ros_driver#46: the format string misread."""

    @pytest.mark.parametrize(
        'text',
        ['jpeg', 'jpg', '', 'bgr8; jpeg compressed bgr8', 'rgb8; jpeg compressed bgr8'],
    )
    def test_red_stays_red(self, messages: Messages, text: str) -> None:
        result = to_rgb(messages.compressed(_red_jpeg(), text))
        assert (abs(result.astype(int) - (254, 0, 0)) <= 3).all()

    def test_all_spellings_give_the_same_array(self, messages: Messages) -> None:
        texts = ('jpeg', 'jpg', '', 'bgr8; jpeg compressed bgr8', 'rgb8; jpeg compressed bgr8')
        first, *others = [to_rgb(messages.compressed(_red_jpeg(), text)) for text in texts]
        for other in others:
            np.testing.assert_array_equal(other, first)

    @pytest.mark.parametrize('source', ['yuv422_yuy2', 'nv12', 'rgb8'])
    def test_lost_colour_is_copied_to_three_channels_with_one_warning(
        self, messages: Messages, source: str
    ) -> None:
        grey = _encode('.jpg', np.full((8, 8), 100, dtype=np.uint8))
        warnings: list[str] = []
        decoder = CameraDecoder(CAMERA, warn=warnings.append)
        for _ in range(3):
            msg = messages.compressed(grey, f'{source}; jpeg compressed mono8')
            result = decoder.decode(msg)
        assert result.shape == (8, 8, 3)
        assert (abs(result.astype(int) - 100) <= 2).all()
        assert len(warnings) == 1
        assert CAMERA.topic in warnings[0]

    def test_grey_that_was_grey_gives_no_warning(self, messages: Messages) -> None:
        grey = _encode('.jpg', np.full((8, 8), 100, dtype=np.uint8))
        warnings: list[str] = []
        to_rgb(
            messages.compressed(grey, 'mono8; jpeg compressed '),
            DecodeOptions(warn=warnings.append),
        )
        assert warnings == []

    @pytest.mark.parametrize(
        'text',
        ['nv12', 'h264', 'rgb8', 'bgr8; tiff compressed bgr8', '16UC1; compressedDepth rvl'],
    )
    def test_unreadable_format_names_topic_and_format(self, messages: Messages, text: str) -> None:
        with pytest.raises(MessageError) as caught:
            to_rgb(messages.compressed(bytes(12), text), DecodeOptions(topic='front/compressed'))
        assert 'front/compressed' in str(caught.value)
        assert text in str(caught.value)

    def test_target_rgb_is_exchanged_back_with_one_warning(self, messages: Messages) -> None:
        """image_transport's convention for a codec that was fed RGB as if it were BGR."""
        swapped = _encode('.png', np.full((8, 8, 3), (255, 0, 0), dtype=np.uint8))
        warnings: list[str] = []
        decoder = CameraDecoder(CAMERA, warn=warnings.append)
        for _ in range(2):
            result = decoder.decode(messages.compressed(swapped, 'rgb8; png compressed rgb8'))
        assert (result == (255, 0, 0)).all()
        assert len(warnings) == 1
        stated = CameraDecoder(replace(CAMERA, encoding='bgr8'))
        msg = messages.compressed(swapped, 'rgb8; png compressed rgb8')
        assert (stated.decode(msg) == (0, 0, 255)).all()


class TestDamagedFiles:
    """pyorbbecsdk#123, vision_opencv#160, ProjectBabble#68: a damaged JPEG taken for a frame."""

    @pytest.mark.parametrize('share', [0.0, 0.01, 0.3, 0.6, 0.99])
    @pytest.mark.parametrize('suffix', ['.jpg', '.png'])
    def test_cut_and_empty_files_are_dropped_and_counted(
        self, messages: Messages, share: float, suffix: str
    ) -> None:
        whole = _encode(suffix, _scene())
        decoder = CameraDecoder(CAMERA)
        msg = messages.compressed(whole[: int(len(whole) * share)], 'jpeg')
        with pytest.raises(MessageError, match='damaged'):
            decoder.decode(msg)
        assert (decoder.decoded, decoder.rejected) == (0, 1)

    def test_every_cut_of_a_jpeg_is_noticed(self, messages: Messages) -> None:
        whole = _encode('.jpg', _scene()[:32, :32])
        for length in range(len(whole)):
            with pytest.raises(MessageError):
                to_rgb(messages.compressed(whole[:length], 'jpeg'))
        assert to_rgb(messages.compressed(whole, 'jpeg')).shape == (32, 32, 3)

    @pytest.mark.parametrize(
        'flags',
        [
            [cv2.IMWRITE_JPEG_PROGRESSIVE, 1],
            [cv2.IMWRITE_JPEG_RST_INTERVAL, 2],
            [cv2.IMWRITE_JPEG_OPTIMIZE, 1],
        ],
        ids=['progressive', 'restart markers', 'optimised'],
    )
    def test_every_kind_of_jpeg(self, messages: Messages, flags: list[int]) -> None:
        whole = _encode('.jpg', _scene(), flags)
        assert to_rgb(messages.compressed(whole, 'jpeg')).shape == _scene().shape
        with pytest.raises(MessageError, match='damaged'):
            to_rgb(messages.compressed(whole[: len(whole) * 6 // 10], 'jpeg'))

    def test_cut_file_whose_thumbnail_is_whole(self, messages: Messages) -> None:
        thumbnail = _encode('.jpg', _scene()[:16, :16])
        segment = b'\xff\xe1' + (len(thumbnail) + 2).to_bytes(2, 'big') + thumbnail
        picture = _encode('.jpg', _scene())
        whole = picture[:2] + segment + picture[2:]
        assert to_rgb(messages.compressed(whole, 'jpeg')).shape == _scene().shape
        with pytest.raises(MessageError, match='damaged'):
            to_rgb(messages.compressed(whole[: len(whole) * 6 // 10], 'jpeg'))

    @pytest.mark.parametrize('tail', [bytes(512), b'\x00\xffmetadata of the camera'])
    def test_padding_behind_the_end_is_no_damage(self, messages: Messages, tail: bytes) -> None:
        whole = _encode('.jpg', _scene())
        padded = to_rgb(messages.compressed(whole + tail, 'jpeg'))
        np.testing.assert_array_equal(padded, to_rgb(messages.compressed(whole, 'jpeg')))

    def test_overwritten_bytes_never_raise_anything_else(self, messages: Messages) -> None:
        """Within a scan the damage may pass (the format has no checksum), but never crashes."""
        random = np.random.default_rng(3)
        whole = _encode('.jpg', _scene())
        for _ in range(200):
            damaged = bytearray(whole)
            start = int(random.integers(0, len(whole) - 20))
            damaged[start : start + 20] = random.bytes(20)
            try:
                result = to_rgb(messages.compressed(bytes(damaged), 'jpeg'))
            except MessageError:
                continue
            assert result.dtype == np.uint8

    def test_overwritten_bytes_of_a_png_are_noticed(self, messages: Messages) -> None:
        whole = _encode('.png', _scene())
        middle = len(whole) // 2
        damaged = whole[:middle] + bytes(20) + whole[middle + 20 :]
        with pytest.raises(MessageError, match='checksum'):
            to_rgb(messages.compressed(damaged, 'png'))


def _encode(suffix: str, bgr: np.ndarray, flags: list[int] | None = None) -> bytes:
    done, data = cv2.imencode(suffix, bgr, flags or [])
    assert done
    return data.tobytes()


def _red_jpeg() -> bytes:
    return _encode('.jpg', np.full((16, 16, 3), (0, 0, 255), dtype=np.uint8))


def _scene() -> np.ndarray:
    row, column = np.mgrid[0:96, 0:128]
    noise = np.random.default_rng(0).integers(0, 60, (96, 128))
    return np.stack([row + noise, column, row + column], axis=2).astype(np.uint8)

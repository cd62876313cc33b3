"""Cases from public bug reports about image messages; each stands for its whole kind."""

from __future__ import annotations

import numpy as np
import pytest
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.contract import CameraSpec, StreamTiming
from sparkrt_ros.convert.depth import INVALID_DEPTH_M, image_to_metres
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


class TestRowPadding:
    """ros-perception/vision_opencv#115, #394: row padding read as pixels."""

    def test_padded_rgb8_equals_the_tight_picture(self, messages: Messages) -> None:
        row, column = np.mgrid[0:3, 0:5]
        pixels = np.repeat((10 * row + column)[..., None], 3, axis=2).astype(np.uint8)
        tight = messages.image(pixels, 'rgb8')
        padded = messages.image(_pad_rows(pixels, 16), 'rgb8', size=(5, 3), step=16)
        result = to_rgb(padded)
        assert result.shape == (3, 5, 3)
        assert 255 not in result
        np.testing.assert_array_equal(result, to_rgb(tight))
        assert result.flags.c_contiguous

    @pytest.mark.parametrize(
        ('encoding', 'channels', 'dtype'),
        [
            ('bgr8', 3, np.uint8),
            ('rgba8', 4, np.uint8),
            ('bgra8', 4, np.uint8),
            ('mono8', 1, np.uint8),
            ('mono16', 1, np.uint16),
            ('rgb16', 3, np.uint16),
            ('yuyv', 2, np.uint8),
            ('uyvy', 2, np.uint8),
            ('bayer_rggb8', 1, np.uint8),
            ('bayer_grbg16', 1, np.uint16),
        ],
    )
    def test_every_packed_encoding(
        self, messages: Messages, encoding: str, channels: int, dtype: type
    ) -> None:
        random = np.random.default_rng(1)
        pixels = random.integers(0, np.iinfo(dtype).max, (6, 8, channels), dtype=dtype)
        row = 8 * channels * pixels.itemsize
        padded = messages.image(_pad_rows(pixels, row + 6), encoding, size=(8, 6), step=row + 6)
        tight = messages.image(pixels, encoding)
        np.testing.assert_array_equal(to_rgb(padded), to_rgb(tight))

    @pytest.mark.parametrize('encoding', ['nv12', 'nv21'])
    def test_planar_encodings(self, messages: Messages, encoding: str) -> None:
        planes = np.random.default_rng(2).integers(0, 255, (9, 8), dtype=np.uint8)
        tight = messages.image(planes.tobytes(), encoding, size=(8, 6), step=8)
        padded = messages.image(_pad_rows(planes, 12), encoding, size=(8, 6), step=12)
        np.testing.assert_array_equal(to_rgb(padded), to_rgb(tight))

    @pytest.mark.parametrize(('encoding', 'dtype'), [('16UC1', np.uint16), ('32FC1', np.float32)])
    def test_depth(self, messages: Messages, encoding: str, dtype: type) -> None:
        pixels = np.arange(1, 13).reshape(3, 4).astype(dtype)
        row = pixels.nbytes // 3
        padded = messages.image(_pad_rows(pixels, row + 4), encoding, size=(4, 3), step=row + 4)
        tight = messages.image(pixels, encoding)
        np.testing.assert_array_equal(image_to_metres(padded), image_to_metres(tight))


class TestColourOrder:
    """image_recognition#63, yolo_ros#39, ros2_unbag#42: colours exchanged, alpha let through."""

    @pytest.mark.parametrize(
        ('encoding', 'pixel'),
        [
            ('rgb8', (255, 0, 0)),
            ('bgr8', (0, 0, 255)),
            ('rgba8', (255, 0, 0, 0)),
            ('bgra8', (0, 0, 255, 0)),
            ('rgb16', (65535, 0, 0)),
            ('bgr16', (0, 0, 65535)),
            ('rgba16', (65535, 0, 0, 0)),
            ('bgra16', (0, 0, 65535, 0)),
        ],
    )
    def test_pure_red(self, messages: Messages, encoding: str, pixel: tuple[int, ...]) -> None:
        dtype = np.uint16 if '16' in encoding else np.uint8
        pixels = np.full((8, 8, len(pixel)), pixel, dtype=dtype)
        result = to_rgb(messages.image(pixels, encoding))
        assert result.shape == (8, 8, 3)
        assert (result == (255, 0, 0)).all()

    @pytest.mark.parametrize('bits', [8, 16])
    @pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
    def test_mosaic(self, messages: Messages, pattern: str, bits: int) -> None:
        values = {'r': 200, 'g': 100, 'b': 50}
        tile = np.array([values[c] for c in pattern]).reshape(2, 2)
        mosaic = np.tile(tile, (6, 6)).astype(np.uint8)
        if bits == 16:
            mosaic = mosaic.astype(np.uint16) * 257
        result = to_rgb(messages.image(mosaic, f'bayer_{pattern}{bits}'))
        inside = result[2:-2, 2:-2].astype(int)
        assert (abs(inside - (200, 100, 50)) <= 1).all()

    def test_encodings_alternating_on_one_topic(self, messages: Messages) -> None:
        decoder = CameraDecoder(CAMERA)
        red = {'rgb8': (255, 0, 0), 'bgr8': (0, 0, 255)}
        for encoding in ('rgb8', 'bgr8', 'rgb8', 'bgr8'):
            pixels = np.full((8, 8, 3), red[encoding], dtype=np.uint8)
            assert (decoder.decode(messages.image(pixels, encoding)) == (255, 0, 0)).all()

    @pytest.mark.parametrize('encoding', ['8UC3', '8UC4', '8UC2'])
    def test_no_colour_order_is_refused_until_stated(
        self, messages: Messages, encoding: str
    ) -> None:
        channels = int(encoding[-1])
        pixels = np.zeros((4, 4, channels), dtype=np.uint8)
        msg = messages.image(pixels, encoding)
        with pytest.raises(MessageError, match='order of its colours') as caught:
            to_rgb(msg, DecodeOptions(topic='front/image_raw'))
        assert 'front/image_raw' in str(caught.value)
        stated = {2: 'yuyv', 3: 'bgr8', 4: 'bgra8'}[channels]
        assert to_rgb(msg, DecodeOptions(encoding=stated)).shape == (4, 4, 3)

    def test_unknown_encoding_lists_the_known_ones(self, messages: Messages) -> None:
        msg = messages.image(np.zeros((4, 4, 3), dtype=np.uint8), 'RGB8')
        with pytest.raises(MessageError, match='bayer_grbg16') as caught:
            to_rgb(msg)
        for known in ('rgb8', 'nv12', 'yuv422_yuy2', '32FC1'):
            assert known in caught.value.expected


class TestSemiPlanar:
    """depthai-ros#20, vision_opencv#544: the length of NV12 is not height x step."""

    DATA = bytes([82] * 8 + [90, 240, 90, 240])

    @pytest.mark.parametrize(
        ('encoding', 'colour'), [('nv12', (255, 1, 0)), ('nv21', (16, 64, 255))]
    )
    @pytest.mark.parametrize('step', [4, 6], ids=['luma bytes', 'mean bytes'])
    def test_colours(
        self, messages: Messages, encoding: str, colour: tuple[int, int, int], step: int
    ) -> None:
        result = to_rgb(messages.image(self.DATA, encoding, size=(4, 2), step=step))
        assert result.shape == (2, 4, 3)
        assert (abs(result.astype(int) - colour) <= 3).all()

    @pytest.mark.parametrize('size', [(3, 2), (4, 3), (0, 2)])
    def test_odd_sizes_are_refused_with_the_reason(
        self, messages: Messages, size: tuple[int, int]
    ) -> None:
        data = bytes(size[0] * size[1] * 3 // 2)
        with pytest.raises(MessageError, match='even width and height'):
            to_rgb(messages.image(data, 'nv12', size=size, step=size[0]))

    def test_missing_chroma_is_refused(self, messages: Messages) -> None:
        with pytest.raises(MessageError, match='8 bytes'):
            to_rgb(messages.image(self.DATA[:8], 'nv12', size=(4, 2), step=4))

    @pytest.mark.parametrize(
        ('encoding', 'order'),
        [('uyvy', 'uyvy'), ('yuv422', 'uyvy'), ('yuyv', 'yuyv'), ('yuv422_yuy2', 'yuyv')],
    )
    def test_packed_yuv_has_the_same_colours(
        self, messages: Messages, encoding: str, order: str
    ) -> None:
        pair = {'uyvy': [90, 82, 240, 82], 'yuyv': [82, 90, 82, 240]}[order]
        pixels = np.tile(np.array(pair, dtype=np.uint8), (2, 2)).reshape(2, 4, 2)
        result = to_rgb(messages.image(pixels, encoding))
        assert (abs(result.astype(int) - (255, 1, 0)) <= 3).all()

    def test_packed_yuv_of_odd_width_is_refused(self, messages: Messages) -> None:
        with pytest.raises(MessageError, match='even width'):
            to_rgb(messages.image(np.zeros((2, 3, 2), dtype=np.uint8), 'yuyv'))


class TestEndiannessAndDepth:
    """vision_opencv#7, #114, ensenso ros_driver#60, zed-ros-wrapper#67."""

    def test_big_endian_mono16_reads_2500(self, messages: Messages) -> None:
        msg = messages.image(b'\x09\xc4', 'mono16', size=(1, 1), step=2, is_bigendian=1)
        depth = image_to_metres(msg, DecodeOptions(encoding='16UC1'))
        assert depth[0, 0] == pytest.approx(2.5)
        assert to_rgb(msg)[0, 0].tolist() == [round(2500 / 257)] * 3

    @pytest.mark.parametrize('is_bigendian', [0, 1])
    @pytest.mark.parametrize(
        ('encoding', 'dtype', 'value'), [('16UC1', 'u2', 2500), ('32FC1', 'f4', 2.5)]
    )
    def test_depth_is_metres_in_either_byte_order(
        self, messages: Messages, encoding: str, dtype: str, value: float, is_bigendian: int
    ) -> None:
        pixels = np.full((2, 3), value, dtype=('>' if is_bigendian else '<') + dtype)
        msg = messages.image(pixels, encoding, is_bigendian=is_bigendian)
        metres = image_to_metres(msg)
        assert metres.dtype == np.float32
        np.testing.assert_allclose(metres, 2.5, rtol=1e-6)

    def test_what_was_not_measured_is_one_value(self, messages: Messages) -> None:
        pixels = np.array([[2.5, np.nan, np.inf, -np.inf, -1.0]], dtype=np.float32)
        metres = image_to_metres(messages.image(pixels, '32FC1'))
        assert metres.tolist() == [[2.5, *[INVALID_DEPTH_M] * 4]]

    def test_scale_of_mono16_is_fixed(self, messages: Messages) -> None:
        dark = np.full((2, 2), 257, dtype=np.uint16)
        bright = np.array([[257, 65535], [0, 257 * 200]], dtype=np.uint16)
        assert (to_rgb(messages.image(dark, 'mono16')) == 1).all()
        assert to_rgb(messages.image(bright, 'mono16'))[..., 0].tolist() == [[1, 255], [0, 200]]

    @pytest.mark.parametrize('encoding', ['16UC1', '32FC1'])
    def test_depth_is_shown_in_a_stated_range_only(
        self, messages: Messages, encoding: str
    ) -> None:
        metres = np.array([[0.0, 0.5, 1.5, 2.5, 9.0]])
        pixels = metres.astype(np.float32) if encoding == '32FC1' else metres * 1000
        dtype = np.float32 if encoding == '32FC1' else np.uint16
        msg = messages.image(pixels.astype(dtype), encoding)
        with pytest.raises(MessageError, match='depth_range_m'):
            to_rgb(msg)
        shown = to_rgb(msg, DecodeOptions(depth_range_m=(0.5, 2.5)))
        assert shown[0, :, 0].tolist() == [0, 0, 128, 255, 255]
        alone = messages.image(pixels[:, 2:3].astype(dtype), encoding)
        assert to_rgb(alone, DecodeOptions(depth_range_m=(0.5, 2.5)))[0, 0, 0] == 128


class TestCutRawData:
    """Data shorter or longer than its own fields say."""

    @pytest.mark.parametrize('change', [-1, 1])
    def test_raw_data_of_the_wrong_length(self, messages: Messages, change: int) -> None:
        data = bytes(4 * 3 * 3 + change)
        with pytest.raises(MessageError, match='36 bytes'):
            to_rgb(messages.image(data, 'rgb8', size=(4, 3), step=12))

    def test_raw_rows_too_short_for_the_encoding(self, messages: Messages) -> None:
        with pytest.raises(MessageError, match='step 12 for width 4'):
            to_rgb(messages.image(bytes(36), 'rgba8', size=(4, 3), step=12))


def _pad_rows(pixels: np.ndarray, step: int) -> bytes:
    rows = pixels.reshape(pixels.shape[0], -1).view(np.uint8)
    padded = np.full((pixels.shape[0], step), 255, dtype=np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded.tobytes()

"""Images: what is copied and what is not, what data may be, and compressed depth."""

from __future__ import annotations

import array
import struct
import sys
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_factory import KINDS, Messages, message_kind

from sparkrt_ros.convert.compressed import (
    CompressedFormat,
    compressed_to_metres,
    parse_format,
)
from sparkrt_ros.convert.frame import to_rgb
from sparkrt_ros.convert.image import KNOWN_ENCODINGS, image_to_rgb
from sparkrt_ros.convert.pixels import DecodeOptions
from sparkrt_ros.runtime.errors import MessageError


@pytest.fixture(params=KINDS)
def messages(request: pytest.FixtureRequest) -> Messages:
    return message_kind(request.param)


def plain_image(data: Any, *, width: int = 4, height: int = 3) -> SimpleNamespace:
    return SimpleNamespace(
        height=height, width=width, encoding='rgb8', is_bigendian=0, step=3 * width, data=data
    )


class TestCopies:
    def test_tight_rgb8_is_a_read_only_view(self, messages: Messages) -> None:
        msg = messages.image(np.arange(36, dtype=np.uint8).reshape(3, 4, 3), 'rgb8')
        result = image_to_rgb(msg)
        assert np.shares_memory(result, np.frombuffer(msg.data, dtype=np.uint8))
        assert not result.flags.writeable
        with pytest.raises(ValueError, match='read-only'):
            result[0, 0, 0] = 1

    def test_the_view_outlives_the_message(self) -> None:
        data = array.array('B', range(36))
        result = image_to_rgb(plain_image(data))
        references = sys.getrefcount(data)
        del data
        assert references >= 2
        assert result.sum() == sum(range(36))

    @pytest.mark.parametrize('encoding', ['bgr8', 'rgba8', 'mono8', 'rgb16'])
    def test_everything_else_is_a_new_array(self, messages: Messages, encoding: str) -> None:
        channels = {'bgr8': 3, 'rgba8': 4, 'mono8': 1, 'rgb16': 3}[encoding]
        dtype = np.uint16 if encoding == 'rgb16' else np.uint8
        msg = messages.image(np.ones((3, 4, channels), dtype=dtype), encoding)
        result = image_to_rgb(msg)
        assert not np.shares_memory(result, np.frombuffer(msg.data, dtype=np.uint8))
        assert result.flags.writeable
        assert result.flags.c_contiguous

    @pytest.mark.parametrize(
        'make',
        [bytes, bytearray, memoryview, lambda b: array.array('B', b), np.array],
        ids=['bytes', 'bytearray', 'memoryview', 'array', 'numpy'],
    )
    def test_every_kind_of_buffer(self, make: Any) -> None:
        raw = bytes(range(36))
        source = np.frombuffer(raw, dtype=np.uint8) if make is np.array else raw
        result = image_to_rgb(plain_image(make(source)))
        assert result.tobytes() == raw

    @pytest.mark.parametrize('data', [[0] * 36, None, 'x' * 36])
    def test_what_is_no_buffer_is_refused(self, data: Any) -> None:
        with pytest.raises(MessageError, match='contiguous buffer'):
            image_to_rgb(plain_image(data))

    @pytest.mark.parametrize('size', [(0, 3), (4, 0), (0, 0)])
    def test_no_pixels(self, size: tuple[int, int]) -> None:
        with pytest.raises(MessageError, match='at least one pixel'):
            image_to_rgb(plain_image(b'', width=size[0], height=size[1]))


@settings(max_examples=200, deadline=None)
@given(
    encoding=st.sampled_from([*KNOWN_ENCODINGS, '8UC3', '8UC4', 'nonsense', '']),
    width=st.integers(0, 9),
    height=st.integers(0, 9),
    step=st.integers(0, 40),
    length=st.integers(0, 400),
    is_bigendian=st.sampled_from([0, 1]),
)
def test_any_message_gives_a_picture_or_a_message_error(
    encoding: str, width: int, height: int, step: int, length: int, is_bigendian: int
) -> None:
    for size in (length, step * height, step * height * 3 // 2):
        msg = SimpleNamespace(
            height=height,
            width=width,
            encoding=encoding,
            is_bigendian=is_bigendian,
            step=step,
            data=b'\x5a' * size,
        )
        try:
            result = to_rgb(msg, DecodeOptions(depth_range_m=(0.1, 1.0)))
        except MessageError:
            continue
        assert result.shape == (height, width, 3)
        assert result.dtype == np.uint8


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), text=st.sampled_from(['jpeg', 'png', '', '16UC1; png']))
def test_any_bytes_give_a_message_error(data: bytes, text: str) -> None:
    for start in (b'', b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n'):
        with pytest.raises(MessageError):
            to_rgb(SimpleNamespace(format=text, data=start + data))


class TestFormats:
    @pytest.mark.parametrize(
        ('text', 'parts'),
        [
            ('', {}),
            ('jpeg', {'codec': 'jpeg'}),
            ('JPG', {'codec': 'jpeg'}),
            ('png', {'codec': 'png'}),
            (
                'bgr8; jpeg compressed bgr8',
                {'source': 'bgr8', 'codec': 'jpeg', 'target': 'bgr8'},
            ),
            ('mono8; jpeg compressed ', {'source': 'mono8', 'codec': 'jpeg'}),
            ('bgr8;png compressed', {'source': 'bgr8', 'codec': 'png'}),
            (
                '16UC1; compressedDepth',
                {'source': '16UC1', 'codec': 'png', 'is_depth': True},
            ),
            (
                '32FC1; compressedDepth png',
                {'source': '32FC1', 'codec': 'png', 'is_depth': True},
            ),
            ('16UC1', {'source': '16UC1', 'codec': 'png', 'is_depth': True}),
        ],
    )
    def test_parts(self, text: str, parts: dict[str, Any]) -> None:
        assert parse_format(text, topic='t') == CompressedFormat(**parts)

    @pytest.mark.parametrize(
        'text', ['nv12', 'bgr8;', ';', 'bgr8; jpeg packed bgr8', 'jpeg compressed bgr8 more']
    )
    def test_others_are_refused(self, text: str) -> None:
        with pytest.raises(MessageError):
            parse_format(text, topic='t')


class TestCompressed:
    def test_a_compressed_mosaic_is_interpolated(self, messages: Messages) -> None:
        mosaic = np.tile(np.array([[200, 100], [100, 50]], dtype=np.uint8), (8, 8))
        data = cv2.imencode('.png', mosaic)[1].tobytes()
        result = to_rgb(messages.compressed(data, 'bayer_rggb8; png compressed '))
        assert (abs(result[2:-2, 2:-2].astype(int) - (200, 100, 50)) <= 1).all()

    def test_png_of_16_bits(self, messages: Messages) -> None:
        pixels = np.full((4, 4, 3), (0, 0, 65535), dtype=np.uint16)
        data = cv2.imencode('.png', pixels)[1].tobytes()
        result = to_rgb(messages.compressed(data, 'bgr16; png compressed bgr16'))
        assert (result == (255, 0, 0)).all()

    def test_png_with_alpha(self, messages: Messages) -> None:
        pixels = np.full((4, 4, 4), (0, 0, 255, 0), dtype=np.uint8)
        data = cv2.imencode('.png', pixels)[1].tobytes()
        assert (to_rgb(messages.compressed(data, 'png')) == (255, 0, 0)).all()

    def test_16_bit_grey_must_say_whether_it_is_depth(self, messages: Messages) -> None:
        data = cv2.imencode('.png', np.full((4, 4), 2570, dtype=np.uint16))[1].tobytes()
        with pytest.raises(MessageError, match='16-bit grey'):
            to_rgb(messages.compressed(data, 'png'))
        grey = to_rgb(messages.compressed(data, 'mono16; png compressed '))
        assert (grey == 10).all()
        depth = to_rgb(
            messages.compressed(data, '16UC1; png compressed '),
            DecodeOptions(depth_range_m=(0.0, 5.14)),
        )
        assert (depth == 128).all()

    def test_exif_orientation_is_not_applied(self, messages: Messages) -> None:
        """A raw topic of the same camera would not be turned either."""
        picture = cv2.imencode('.jpg', np.zeros((8, 16, 3), dtype=np.uint8))[1].tobytes()
        tiff = b'MM\x00\x2a' + struct.pack('>IHHHIHHI', 8, 1, 0x0112, 3, 1, 6, 0, 0)
        exif = b'Exif\x00\x00' + tiff
        segment = b'\xff\xe1' + struct.pack('>H', len(exif) + 2) + exif
        turned = picture[:2] + segment + picture[2:]
        assert to_rgb(messages.compressed(turned, 'jpeg')).shape == (8, 16, 3)


class TestCompressedDepth:
    MILLIMETRES = np.array([[0, 500, 2500], [10000, 65535, 1]], dtype=np.uint16)

    def encoded(self, pixels: np.ndarray, a: float = 0.0, b: float = 0.0) -> bytes:
        return struct.pack('<iff', 0, a, b) + cv2.imencode('.png', pixels)[1].tobytes()

    @pytest.mark.parametrize('text', ['16UC1; compressedDepth png', '16UC1; compressedDepth'])
    def test_16uc1(self, messages: Messages, text: str) -> None:
        msg = messages.compressed(self.encoded(self.MILLIMETRES), text)
        np.testing.assert_allclose(compressed_to_metres(msg), self.MILLIMETRES / 1000, rtol=1e-6)

    def test_32fc1_within_its_quantisation(self, messages: Messages) -> None:
        """Encoded as compressed_depth_image_transport does: A / depth + B in 16 bits."""
        depth = np.array([[0.5, 1.0, 2.5, 5.0, np.nan, 20.0]])
        quantization, furthest = 100.0, 10.0
        a = quantization * (quantization + 1.0)
        b = 1.0 - a / furthest
        with np.errstate(invalid='ignore'):
            values = np.where(depth < furthest, a / depth + b, 0).astype(np.uint16)
        msg = messages.compressed(self.encoded(values, a, b), '32FC1; compressedDepth png')
        metres = compressed_to_metres(msg)
        np.testing.assert_allclose(metres[0, :4], depth[0, :4], rtol=1e-2)
        assert metres[0, 4:].tolist() == [0.0, 0.0]
        assert np.isfinite(metres).all()

    def test_value_at_the_pole_is_invalid_not_infinite(self, messages: Messages) -> None:
        values = np.array([[7, 8]], dtype=np.uint16)
        msg = messages.compressed(self.encoded(values, 3.0, 7.0), '32FC1; compressedDepth png')
        assert compressed_to_metres(msg).tolist() == [[0.0, 3.0]]

    @pytest.mark.parametrize('length', [0, 5, 12, 40])
    def test_cut(self, messages: Messages, length: int) -> None:
        data = self.encoded(self.MILLIMETRES)[:length]
        with pytest.raises(MessageError, match='damaged'):
            compressed_to_metres(messages.compressed(data, '16UC1; compressedDepth png'))

    def test_as_a_picture(self, messages: Messages) -> None:
        msg = messages.compressed(self.encoded(self.MILLIMETRES), '16UC1; compressedDepth png')
        with pytest.raises(MessageError, match='depth_range_m'):
            to_rgb(msg)
        shown = to_rgb(msg, DecodeOptions(depth_range_m=(0.0, 5.0)))
        assert shown[..., 0].tolist() == [[0, 26, 128], [255, 255, 0]]

    def test_colour_is_no_depth(self, messages: Messages) -> None:
        data = cv2.imencode('.png', np.zeros((4, 4, 3), dtype=np.uint8))[1].tobytes()
        with pytest.raises(MessageError, match='16-bit depth'):
            compressed_to_metres(messages.compressed(data, 'png'))

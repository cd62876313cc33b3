"""``sensor_msgs/Image`` in any encoding a camera driver sends -> (H, W, 3) uint8 RGB.

YUV is read as ITU-R BT.601 video range (Y 16..235), which is what OpenCV implements and what UVC
cameras send. 16-bit channels become 8-bit by the fixed scale 255 / 65535, never by the brightness
of the single frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from sparkrt_ros.convert.depth import DEPTH_ENCODINGS, depth_picture, image_to_metres
from sparkrt_ros.convert.messages import ImageMessage
from sparkrt_ros.convert.pixels import (
    AnyArray,
    DecodeOptions,
    as_bytes,
    check_length,
    pixel_rows,
)
from sparkrt_ros.runtime.errors import MessageError
from sparkrt_ros.runtime.types import ImageArray

_SCALE_16_TO_8 = 255.0 / 65535.0


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """Pixels side by side: ``channels`` values of ``itemsize`` bytes; ``code`` leads to RGB."""

    channels: int
    code: int | None
    itemsize: int = 1


# OpenCV names a mosaic by its second row, ROS by its first: bayer_rggb is OpenCV's BG.
_BAYER_CODES = {
    'bayer_rggb': cv2.COLOR_BayerBG2RGB,
    'bayer_bggr': cv2.COLOR_BayerRG2RGB,
    'bayer_gbrg': cv2.COLOR_BayerGR2RGB,
    'bayer_grbg': cv2.COLOR_BayerGB2RGB,
}
_PACKED = {
    'rgb8': _Packed(channels=3, code=None),
    'bgr8': _Packed(channels=3, code=cv2.COLOR_BGR2RGB),
    'rgba8': _Packed(channels=4, code=cv2.COLOR_RGBA2RGB),
    'bgra8': _Packed(channels=4, code=cv2.COLOR_BGRA2RGB),
    'mono8': _Packed(channels=1, code=cv2.COLOR_GRAY2RGB),
    '8UC1': _Packed(channels=1, code=cv2.COLOR_GRAY2RGB),
    'rgb16': _Packed(channels=3, code=None, itemsize=2),
    'bgr16': _Packed(channels=3, code=cv2.COLOR_BGR2RGB, itemsize=2),
    'rgba16': _Packed(channels=4, code=cv2.COLOR_RGBA2RGB, itemsize=2),
    'bgra16': _Packed(channels=4, code=cv2.COLOR_BGRA2RGB, itemsize=2),
    'mono16': _Packed(channels=1, code=cv2.COLOR_GRAY2RGB, itemsize=2),
    'uyvy': _Packed(channels=2, code=cv2.COLOR_YUV2RGB_UYVY),
    'yuv422': _Packed(channels=2, code=cv2.COLOR_YUV2RGB_UYVY),
    'yuyv': _Packed(channels=2, code=cv2.COLOR_YUV2RGB_YUY2),
    'yuv422_yuy2': _Packed(channels=2, code=cv2.COLOR_YUV2RGB_YUY2),
    **{f'{name}8': _Packed(channels=1, code=code) for name, code in _BAYER_CODES.items()},
    **{
        f'{name}16': _Packed(channels=1, code=code, itemsize=2)
        for name, code in _BAYER_CODES.items()
    },
}
_YUV_PACKED = ('uyvy', 'yuv422', 'yuyv', 'yuv422_yuy2')
_SEMI_PLANAR = {'nv12': cv2.COLOR_YUV2RGB_NV12, 'nv21': cv2.COLOR_YUV2RGB_NV21}
_WITHOUT_COLOUR_ORDER = {'8UC3': 'rgb8 or bgr8', '8UC4': 'rgba8 or bgra8', '8UC2': 'yuyv or uyvy'}
# OpenCV leaves a mosaic smaller than this black
_LEAST_BAYER_SIDE = 4

KNOWN_ENCODINGS = (*_PACKED, *_SEMI_PLANAR, *DEPTH_ENCODINGS)


def image_to_rgb(msg: ImageMessage, options: DecodeOptions | None = None) -> ImageArray:
    """Convert one raw image to (H, W, 3) uint8 RGB, C-contiguous.

    A ``rgb8`` image without row padding comes back as a read-only view of ``msg.data``; everything
    else is a new array. Alpha is dropped, not multiplied in; grey is copied to three channels.
    Depth needs ``options.depth_range_m``.
    Raises MessageError for unknown encodings and for sizes that do not agree.
    """
    options = options or DecodeOptions()
    encoding = options.encoding or msg.encoding
    if encoding in _PACKED:
        packed = _PACKED[encoding]
        _check_size(msg, encoding, topic=options.topic)
        pixels = pixel_rows(
            msg, itemsize=packed.itemsize, channels=packed.channels, options=options
        )
        return packed_to_rgb(pixels, encoding)
    if encoding in _SEMI_PLANAR:
        return _semi_planar_to_rgb(msg, encoding, options)
    if encoding in DEPTH_ENCODINGS:
        return depth_picture(image_to_metres(msg, options), encoding, options)
    raise _unknown(encoding, options)


def packed_to_rgb(pixels: AnyArray, encoding: str) -> ImageArray:
    """Convert an (H, W[, C]) uint8 or uint16 array of a known packed encoding to RGB."""
    code = _PACKED[encoding].code
    if pixels.dtype.itemsize == 2:
        native = np.ascontiguousarray(pixels, dtype=np.uint16)
        pixels = cv2.convertScaleAbs(native, alpha=_SCALE_16_TO_8)
    if code is not None:
        pixels = cv2.cvtColor(np.ascontiguousarray(pixels), code)
    return np.ascontiguousarray(pixels, dtype=np.uint8)


def is_bayer(encoding: str | None) -> bool:
    """Whether ``encoding`` is a mosaic known here."""
    return encoding is not None and encoding.startswith('bayer_') and encoding in _PACKED


def is_colour(encoding: str | None) -> bool:
    """Whether ``encoding`` carries colour (a mosaic does not count)."""
    if encoding is None or is_bayer(encoding):
        return False
    packed = _PACKED.get(encoding)
    return encoding in _SEMI_PLANAR or (packed is not None and packed.channels > 1)


def _check_size(msg: ImageMessage, encoding: str, *, topic: str) -> None:
    if encoding in _YUV_PACKED and msg.width % 2:
        raise MessageError(
            topic,
            found=f'{encoding}, {msg.width} pixels wide',
            expected='an even width: two pixels share their colour',
        )
    if is_bayer(encoding) and min(msg.width, msg.height) < _LEAST_BAYER_SIDE:
        raise MessageError(
            topic,
            found=f'{encoding} of {msg.width}x{msg.height}',
            expected=f'at least {_LEAST_BAYER_SIDE}x{_LEAST_BAYER_SIDE} pixels to interpolate',
        )


def _semi_planar_to_rgb(msg: ImageMessage, encoding: str, options: DecodeOptions) -> ImageArray:
    """Convert a luma plane followed by a half-size plane of interleaved chroma.

    ``height * step`` is not the length of the data here: the chroma plane adds half as many rows.
    """
    height, width, step = msg.height, msg.width, msg.step
    if height < 2 or width < 2 or height % 2 or width % 2:
        raise MessageError(
            options.topic,
            found=f'{encoding} of {width}x{height}',
            expected='even width and height: four pixels share their colour',
        )
    data = as_bytes(msg.data, topic=options.topic)
    if 2 * step == 3 * width and data.size == height * step:
        # some drivers give the mean number of bytes per row, chroma included
        step = width
    if step < width:
        raise MessageError(
            options.topic,
            found=f'step {step} for width {width}',
            expected=f'at least {width} bytes per row of the luma plane',
        )
    rows = height * 3 // 2
    layout = f'{height} luma and {height // 2} chroma rows of {step}'
    check_length(data, rows * step, topic=options.topic, layout=layout)
    planes = np.ascontiguousarray(data.reshape(rows, step)[:, :width])
    return np.asarray(cv2.cvtColor(planes, _SEMI_PLANAR[encoding]), dtype=np.uint8)


def _unknown(encoding: str, options: DecodeOptions) -> MessageError:
    if encoding in _WITHOUT_COLOUR_ORDER:
        return MessageError(
            options.topic,
            found=f'encoding {encoding}, which does not say the order of its colours',
            expected=f'an encoding with a colour order: {_WITHOUT_COLOUR_ORDER[encoding]}',
            remedy="state the camera's true `encoding` in the robot contract",
        )
    return MessageError(
        options.topic,
        found=f'encoding {encoding!r}',
        expected=f'one of {", ".join(KNOWN_ENCODINGS)}',
        remedy="change the driver's output, or state the true `encoding` in the robot contract",
    )

"""``sensor_msgs/CompressedImage`` -> (H, W, 3) uint8 RGB, or metres for depth.

``format`` is written by image_transport as ``SOURCE; CODEC compressed TARGET``: the encoding
before compression, the codec, and the channel order the codec was given. Drivers write less:
``jpeg``, ``png`` or nothing. What the bytes are is told by the bytes; SOURCE never moves a colour.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import cv2
import numpy as np

from sparkrt_ros.convert.depth import (
    DEPTH_ENCODINGS,
    DepthArray,
    clean_metres,
    depth_picture,
    millimetres_to_metres,
)
from sparkrt_ros.convert.image import is_bayer, is_colour, packed_to_rgb
from sparkrt_ros.convert.integrity import (
    JPEG_START,
    PNG_START,
    DamagedFile,
    FileFacts,
    check_jpeg,
    check_png,
)
from sparkrt_ros.convert.messages import CompressedImageMessage
from sparkrt_ros.convert.pixels import AnyArray, DecodeOptions, as_bytes
from sparkrt_ros.runtime.errors import MessageError
from sparkrt_ros.runtime.types import ImageArray

_CODECS = {'jpeg': 'jpeg', 'jpg': 'jpeg', 'png': 'png'}
# compressed_depth_image_transport: int32 kind, float32 A, float32 B, little-endian
_DEPTH_HEADER = struct.Struct('<iff')
_READABLE = 'jpeg, png, compressedDepth png'


@dataclass(frozen=True, kw_only=True)
class CompressedFormat:
    """The parts of ``format``; None where it says nothing."""

    source: str | None = None
    codec: str | None = None
    target: str | None = None
    is_depth: bool = False


def parse_format(text: str, *, topic: str) -> CompressedFormat:
    """Take ``format`` apart. Raises MessageError for a codec that cannot be read here."""
    source, separator, rest = text.partition(';')
    words = (rest if separator else source).split()
    origin = source.strip() or None if separator else None
    if not separator and words[:1] and words[0] in DEPTH_ENCODINGS:
        # before codecs could be chosen, compressed depth named its encoding only
        return CompressedFormat(source=words[0], codec='png', is_depth=True)
    if words[:1] == ['compressedDepth'] and words[1:] in ([], ['png']):
        return CompressedFormat(source=origin, codec='png', is_depth=True)
    if not words and not separator:
        return CompressedFormat()
    codec = _CODECS.get(words[0].lower()) if words else None
    if codec is None or words[1:2] not in ([], ['compressed']) or len(words) > 3:
        raise MessageError(
            topic,
            found=f'format {text!r}',
            expected=f'{_READABLE}, as image_transport writes them',
            remedy='set the publisher to jpeg or png, or subscribe to the raw topic',
        )
    return CompressedFormat(
        source=origin, codec=codec, target=words[2] if len(words) == 3 else None
    )


def compressed_to_rgb(
    msg: CompressedImageMessage, options: DecodeOptions | None = None
) -> ImageArray:
    """Decode one compressed image to (H, W, 3) uint8 RGB, a new array.

    ``options.encoding`` replaces the TARGET of the format, and for one-channel files the SOURCE.
    Depth needs ``options.depth_range_m``. EXIF orientation is not applied.
    Raises MessageError for unknown formats and damaged files; damage within a JPEG scan is not
    detectable and decodes to a wrong patch.
    """
    options = options or DecodeOptions()
    described = parse_format(msg.format, topic=options.topic)
    if described.is_depth:
        encoding = described.source or '16UC1'
        return depth_picture(_depth_metres(msg, described, options), encoding, options)
    pixels = _decode(as_bytes(msg.data, topic=options.topic), msg.format, options)
    if pixels.ndim == 2:
        return _one_channel_to_rgb(pixels, described, options)
    order = options.encoding or described.target
    swapped = order is not None and order.startswith('rgb')
    if swapped and options.encoding is None:
        options.warn(
            f'{options.topic}: format {msg.format!r} says that the codec was given rgb instead of '
            'bgr: red and blue are exchanged back, as image_transport does; if the file itself '
            'is right, set encoding: bgr8 for this camera in the robot contract'
        )
    name = ('rgb' if swapped else 'bgr') + ('a' if pixels.shape[2] == 4 else '')
    return packed_to_rgb(pixels, f'{name}{8 * pixels.dtype.itemsize}')


def compressed_to_metres(
    msg: CompressedImageMessage, options: DecodeOptions | None = None
) -> DepthArray:
    """Decode one compressed depth image to (H, W) float32 metres, invalid pixels 0.0.

    Reads ``compressedDepth png`` of 16UC1 and 32FC1, and plain 16-bit png of 16UC1.
    """
    options = options or DecodeOptions()
    described = parse_format(msg.format, topic=options.topic)
    if described.is_depth:
        return _depth_metres(msg, described, options)
    pixels = _decode(as_bytes(msg.data, topic=options.topic), msg.format, options)
    source = options.encoding or described.source
    if source != '16UC1' or pixels.dtype != np.uint16 or pixels.ndim != 2:
        raise MessageError(
            options.topic,
            found=f'format {msg.format!r} with {pixels.dtype} pixels',
            expected='16-bit depth: "16UC1; compressedDepth png" or "16UC1; png compressed"',
        )
    return millimetres_to_metres(pixels)


def _one_channel_to_rgb(
    pixels: AnyArray, described: CompressedFormat, options: DecodeOptions
) -> ImageArray:
    source = options.encoding or described.source
    bits = 8 * pixels.dtype.itemsize
    if source == '16UC1' and bits == 16:
        return depth_picture(millimetres_to_metres(pixels), source, options)
    if is_bayer(source) and described.target is None and str(source).endswith(str(bits)):
        # image_transport compresses a mosaic as it is when it names no target
        return packed_to_rgb(pixels, str(source))
    if bits == 16 and source != 'mono16':
        raise MessageError(
            options.topic,
            found=f'16-bit grey pixels of encoding {source}',
            expected='mono16 (brightness) or 16UC1 (depth)',
            remedy="state the camera's true `encoding` in the robot contract",
        )
    if is_colour(source) or is_colour(described.target):
        options.warn(
            f'{options.topic}: the pictures were {source or described.target} but arrive in '
            'grey: their colour was lost before compression; grey is copied to three channels'
        )
    return packed_to_rgb(pixels, f'mono{bits}')


def _depth_metres(
    msg: CompressedImageMessage, described: CompressedFormat, options: DecodeOptions
) -> DepthArray:
    """Undo compressed_depth_image_transport; depth = A / (value - B) for 32FC1."""
    data = as_bytes(msg.data, topic=options.topic)
    if data.size <= _DEPTH_HEADER.size:
        raise _damaged(options, msg.format, f'only {data.size} bytes, header included')
    _kind, quant_a, quant_b = _DEPTH_HEADER.unpack_from(data.data)
    pixels = _decode(data[_DEPTH_HEADER.size :], msg.format, options)
    if pixels.dtype != np.uint16 or pixels.ndim != 2:
        raise _damaged(options, msg.format, f'{pixels.dtype} pixels of shape {pixels.shape}')
    source = options.encoding or described.source
    if source == '16UC1':
        return millimetres_to_metres(pixels)
    if source != '32FC1':
        raise MessageError(
            options.topic,
            found=f'compressed depth of encoding {source}',
            expected=f'one of {", ".join(DEPTH_ENCODINGS)}',
        )
    with np.errstate(divide='ignore', invalid='ignore'):
        metres = np.float32(quant_a) / (pixels.astype(np.float32) - np.float32(quant_b))
    metres[pixels == 0] = 0.0
    return clean_metres(metres)


def _decode(data: AnyArray, text: str, options: DecodeOptions) -> AnyArray:
    """Decode a whole jpeg or png to (H, W) or (H, W, 3 or 4) in OpenCV's blue-first order."""
    if data.size == 0:
        raise _damaged(options, text, 'no data')
    try:
        facts, flags = _inspect(data.data)
        pixels = cv2.imdecode(data, flags)
    except (DamagedFile, cv2.error) as error:
        raise _damaged(options, text, str(error).strip()) from error
    if pixels is None or pixels.shape[:2] != (facts.height, facts.width):
        shape = None if pixels is None else pixels.shape
        size = f'{facts.width}x{facts.height}'
        raise _damaged(options, text, f'decoded to {shape} although its header says {size}')
    return pixels


def _inspect(data: memoryview) -> tuple[FileFacts, int]:
    """Check the file's structure; return what it says and the flags to decode it with."""
    start = bytes(data[: len(PNG_START)])
    if start == PNG_START:
        return check_png(data), cv2.IMREAD_UNCHANGED
    if not start.startswith(JPEG_START):
        raise DamagedFile(f'it begins with {start.hex(" ")}, neither jpeg nor png')
    facts = check_jpeg(data)
    colours = cv2.IMREAD_GRAYSCALE if facts.channels == 1 else cv2.IMREAD_COLOR
    return facts, colours | cv2.IMREAD_IGNORE_ORIENTATION


def _damaged(options: DecodeOptions, text: str, reason: str) -> MessageError:
    return MessageError(
        options.topic,
        found=f'a damaged image (format {text!r}): {reason}',
        expected='a whole jpeg or png file',
        remedy='the frame is dropped; look for losses between the camera and here',
    )

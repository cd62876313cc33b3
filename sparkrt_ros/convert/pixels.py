"""The bytes of an image message as a checked array, without copying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.messages import ImageMessage
from sparkrt_ros.runtime.errors import MessageError

AnyArray = npt.NDArray[Any]


def ignore_warning(_text: str) -> None:
    """Drop the warning."""


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """What a message alone cannot say.

    topic: named in every error. encoding: replaces the message's own. depth_range_m: (near, far)
    shown as 0..255 where a depth image serves as a picture. warn: called with each warning.
    """

    topic: str = 'image'
    encoding: str | None = None
    depth_range_m: tuple[float, float] | None = None
    warn: Callable[[str], None] = ignore_warning


def as_bytes(data: Any, *, topic: str) -> npt.NDArray[np.uint8]:
    """View ``data`` (array.array, bytes, memoryview, numpy) as read-only (N,) uint8, uncopied."""
    try:
        view = np.frombuffer(data, dtype=np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        # frombuffer refuses an empty buffer with ValueError
        if isinstance(error, ValueError) and len(data) == 0:
            return np.empty(0, dtype=np.uint8)
        raise MessageError(
            topic,
            found=f'data of type {type(data).__name__}: {error}',
            expected='a contiguous buffer of bytes',
        ) from error
    view.flags.writeable = False
    return view


def pixel_rows(
    msg: ImageMessage, *, itemsize: int, channels: int, options: DecodeOptions
) -> AnyArray:
    """View packed pixels as (H, W) or (H, W, channels); row padding is left out, not copied.

    itemsize: 1, 2 or 4 bytes for uint8, uint16 and float32, in the message's byte order.
    Raises MessageError where size, step and length of the data do not agree.
    """
    height, width, step = msg.height, msg.width, msg.step
    row = width * channels * itemsize
    data = as_bytes(msg.data, topic=options.topic)
    if height < 1 or width < 1:
        raise MessageError(
            options.topic, found=f'an image of {width}x{height}', expected='at least one pixel'
        )
    if step < row:
        raise MessageError(
            options.topic,
            found=f'step {step} for width {width}',
            expected=f'at least {row} bytes per row ({channels} x {itemsize} bytes per pixel)',
            remedy='correct the driver, or state the true `encoding` in the robot contract',
        )
    check_length(data, step * height, topic=options.topic, layout=f'{height} rows of {step}')
    order = '>' if msg.is_bigendian else '<'
    kind = {1: 'u1', 2: 'u2', 4: 'f4'}[itemsize]
    shape = (height, width) if channels == 1 else (height, width, channels)
    inner = (itemsize,) if channels == 1 else (channels * itemsize, itemsize)
    view: AnyArray = np.ndarray(shape, f'{order}{kind}', data, strides=(step, *inner))
    return view


def check_length(data: npt.NDArray[np.uint8], expected: int, *, topic: str, layout: str) -> None:
    """Raise MessageError unless ``data`` holds exactly ``expected`` bytes."""
    if data.size != expected:
        raise MessageError(
            topic,
            found=f'{data.size} bytes of data',
            expected=f'{expected} bytes ({layout})',
            remedy='the message is cut or mislabelled: correct the driver',
        )

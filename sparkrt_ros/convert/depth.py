"""Depth images -> metres, with one value for "no measurement".

REP 118: ``16UC1`` holds millimetres, 0 where nothing was measured; ``32FC1`` holds metres, NaN or
infinite where nothing was measured. Both come out as float32 metres with :data:`INVALID_DEPTH_M`.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.messages import ImageMessage
from sparkrt_ros.convert.pixels import AnyArray, DecodeOptions, pixel_rows
from sparkrt_ros.runtime.errors import MessageError
from sparkrt_ros.runtime.types import ImageArray

INVALID_DEPTH_M = 0.0
# encoding -> bytes per pixel
DEPTH_ENCODINGS = {'16UC1': 2, '32FC1': 4}
_METRES_PER_MILLIMETRE = np.float32(1e-3)

DepthArray = npt.NDArray[np.float32]


def image_to_metres(msg: ImageMessage, options: DecodeOptions | None = None) -> DepthArray:
    """Convert one raw depth image to (H, W) float32 metres, always finite and never negative.

    Raises MessageError for an encoding that is not depth, and for sizes that do not agree.
    """
    options = options or DecodeOptions()
    encoding = options.encoding or msg.encoding
    if encoding not in DEPTH_ENCODINGS:
        raise MessageError(
            options.topic,
            found=f'encoding {encoding!r}',
            expected=f'a depth encoding: {", ".join(DEPTH_ENCODINGS)}',
            remedy="state the camera's true `encoding` in the robot contract",
        )
    pixels = pixel_rows(msg, itemsize=DEPTH_ENCODINGS[encoding], channels=1, options=options)
    return millimetres_to_metres(pixels) if encoding == '16UC1' else clean_metres(pixels)


def millimetres_to_metres(pixels: AnyArray) -> DepthArray:
    """Convert (H, W) uint16 millimetres to (H, W) float32 metres; 0 stays the invalid value."""
    metres: DepthArray = pixels.astype(np.float32) * _METRES_PER_MILLIMETRE
    return metres


def clean_metres(pixels: AnyArray) -> DepthArray:
    """Copy (H, W) float metres; NaN, infinite and negative values become the invalid value."""
    metres = pixels.astype(np.float32)
    metres[~((metres >= 0.0) & (metres < np.inf))] = INVALID_DEPTH_M
    return metres


def depth_picture(metres: DepthArray, encoding: str, options: DecodeOptions) -> ImageArray:
    """Show (H, W) metres as (H, W, 3) grey: near -> 0, far -> 255, invalid -> 0.

    The range is fixed by ``options.depth_range_m``, so that equal depths look equal in every
    frame; values outside it are clipped, so that the invalid value looks like near.
    Raises MessageError where no range was stated.
    """
    if options.depth_range_m is None:
        raise MessageError(
            options.topic,
            found=f'a depth image ({encoding}) and no range to show it in',
            expected='a colour or grey image',
            remedy='set depth_range_m: [near, far] for this camera in the robot contract, '
            'or encoding: mono16 if the pixels are brightness',
        )
    near, far = options.depth_range_m
    shown = (np.clip(metres, near, far) - np.float32(near)) * np.float32(255.0 / (far - near))
    grey = np.rint(shown).astype(np.uint8)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), dtype=np.uint8)

"""From a camera's message to the picture a policy was trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from sparkrt_ros.convert.compressed import compressed_to_rgb
from sparkrt_ros.convert.contract_types import CameraSpec
from sparkrt_ros.convert.image import image_to_rgb
from sparkrt_ros.convert.pixels import DecodeOptions, ignore_warning
from sparkrt_ros.runtime.errors import MessageError
from sparkrt_ros.runtime.types import ImageArray

_INTERPOLATIONS = {
    'nearest': cv2.INTER_NEAREST,
    'linear': cv2.INTER_LINEAR,
    'cubic': cv2.INTER_CUBIC,
    'area': cv2.INTER_AREA,
    'lanczos': cv2.INTER_LANCZOS4,
}


def to_rgb(msg: Any, options: DecodeOptions | None = None) -> ImageArray:
    """Convert an ``Image`` or a ``CompressedImage`` to (H, W, 3) uint8 RGB, C-contiguous.

    The two are told apart by their fields. The result may be a read-only view of ``msg.data``.
    Raises MessageError.
    """
    if hasattr(msg, 'encoding'):
        return image_to_rgb(msg, options)
    return compressed_to_rgb(msg, options)


def crop_and_resize(rgb: ImageArray, camera: CameraSpec) -> ImageArray:
    """Crop, then resize, as ``camera`` says; (H, W, 3) uint8, C-contiguous.

    Without either, ``rgb`` itself comes back. ``linear`` and ``cubic`` are OpenCV's, without a
    low-pass filter: shrink with ``area`` unless training did otherwise.
    Raises MessageError where the picture has not the declared size, or is too small to crop.
    """
    height, width = rgb.shape[:2]
    if camera.source_size is not None and (width, height) != camera.source_size:
        raise MessageError(
            camera.topic,
            found=f'a picture of {width}x{height}',
            expected=f'{camera.source_size[0]}x{camera.source_size[1]} (source_size of camera '
            f'{camera.name})',
            remedy="set the driver's resolution, or correct source_size, crop and resize",
        )
    if camera.crop is not None:
        x, y, crop_width, crop_height = camera.crop
        if x + crop_width > width or y + crop_height > height:
            raise MessageError(
                camera.topic,
                found=f'a picture of {width}x{height}',
                expected=f'at least {x + crop_width}x{y + crop_height} for crop '
                f'{list(camera.crop)} of camera {camera.name}',
            )
        rgb = rgb[y : y + crop_height, x : x + crop_width]
    if camera.resize is not None and rgb.shape[1::-1] != camera.resize:
        interpolation = _INTERPOLATIONS[camera.interpolation]
        resized = cv2.resize(rgb, camera.resize, interpolation=interpolation)
        return np.asarray(resized, dtype=np.uint8)
    return np.ascontiguousarray(rgb)


class CameraDecoder:
    """Decodes the messages of one camera and counts; each kind of warning is passed on once.

    expected: the policy's (C, H, W) for this camera; a picture of another size is refused.
    Not thread-safe: one thread decodes one camera.
    """

    def __init__(
        self,
        camera: CameraSpec,
        *,
        expected: tuple[int, int, int] | None = None,
        warn: Callable[[str], None] = ignore_warning,
    ) -> None:
        self.camera = camera
        self.decoded = 0
        self.rejected = 0
        self._expected = expected
        self._warn = warn
        self._warned: set[str] = set()
        self._options = DecodeOptions(
            topic=camera.topic,
            encoding=camera.encoding,
            depth_range_m=camera.depth_range_m,
            warn=self._warn_once,
        )

    def decode(self, msg: Any) -> ImageArray:
        """Convert, crop and resize one message to (H, W, 3) uint8 RGB.

        Raises MessageError, and nothing else, for a message that cannot be used.
        """
        try:
            rgb = crop_and_resize(to_rgb(msg, self._options), self.camera)
            self._check_shape(rgb)
        except MessageError:
            self.rejected += 1
            raise
        self.decoded += 1
        return rgb

    def _check_shape(self, rgb: ImageArray) -> None:
        if self._expected is None:
            return
        channels, height, width = self._expected
        if rgb.shape != (height, width, channels):
            raise MessageError(
                self.camera.topic,
                found=f'a picture of {rgb.shape[1]}x{rgb.shape[0]} after crop and resize',
                expected=f'{width}x{height}, the size of {self.camera.key} in training',
                remedy=f'set crop and resize of camera {self.camera.name} in the robot contract',
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)

"""Observations checked against what a policy needs, and turned into its input tensors.

Shapes: ``H, W`` image rows and columns, ``S`` state size, ``E`` environment state size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.config import ENVIRONMENT_STATE_KEY, STATE_KEY
from sparkrt_ros.runtime.errors import ObservationError
from sparkrt_ros.runtime.types import Capabilities, ImageArray, Observation

_IMAGE_PREFIX = 'observation.images.'
_FULL_SCALE = 255.0

Arrays = dict[str, npt.NDArray[np.generic]]


class ObservationPacker:
    """Knows what one policy needs to see.

    source_keys: policy key -> key under which the preprocessor expects it, where the two differ
        (the preprocessor of a policy may begin with renaming).
    channels_last: leave images in the memory order of the camera. The values are the same.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        device: torch.device,
        source_keys: Mapping[str, str] | None = None,
        channels_last: bool = False,
    ) -> None:
        self._needs = capabilities
        self._channels_last = channels_last
        self._device = device
        self._source_keys = dict(source_keys or {})
        self._images = {
            key: self._host((height, width, 3), torch.uint8)
            for key, (_, height, width) in capabilities.image_shapes.items()
        }
        sizes = (
            (STATE_KEY, capabilities.state_size),
            (ENVIRONMENT_STATE_KEY, capabilities.environment_state_size),
        )
        self._vectors = {key: self._host((1, size), torch.float32) for key, size in sizes if size}
        # A tensor on the device: CUDA would multiply by the reciprocal of a Python number.
        self._full_scale = torch.tensor(_FULL_SCALE, device=device)
        self._copied: torch.cuda.Event | None = None

    @property
    def _on_cuda(self) -> bool:
        return self._device.type == 'cuda'

    def check(self, observation: Observation) -> Arrays:
        """Return the arrays by policy key: images (H, W, 3) uint8, vectors float32, unshared.

        Raises ObservationError for an unknown, ambiguous or missing camera, a wrong shape or
        dtype, a non-finite value, or a missing instruction.
        """
        needs = self._needs
        arrays: Arrays = {}
        for key, image in resolve_cameras(observation.images, needs.camera_keys).items():
            arrays[key] = _check_image(key, image, shape=needs.image_shapes[key])
        vectors = (
            (STATE_KEY, observation.state, needs.state_size),
            (ENVIRONMENT_STATE_KEY, observation.environment_state, needs.environment_state_size),
        )
        for key, value, size in vectors:
            checked = _check_vector(key, value, size=size)
            if checked is not None:
                arrays[key] = checked
        if needs.requires_task and not observation.task:
            raise ObservationError(
                'task', found=repr(observation.task), expected='an instruction for the policy'
            )
        return arrays

    def pack(self, arrays: Arrays) -> dict[str, Tensor]:
        """Turn the result of ``check`` into tensors on the device, with a batch dimension of 1.

        Images become (1, 3, H, W) float32 in [0, 1], vectors (1, S) float32.
        """
        if self._copied is not None:
            self._copied.synchronize()
        staged = self.stage(arrays)
        batch = self.unpack(*(value.to(self._device, non_blocking=True) for value in staged))
        if self._on_cuda:
            self._copied = torch.cuda.current_stream(self._device).record_event()
        return batch

    def stage(self, arrays: Arrays) -> tuple[Tensor, ...]:
        """Copy the result of ``check`` into host memory of our own; the same tensors each time.

        The given arrays may be read-only, strided or not pinned. The caller sees to it that
        nothing reads the previous values any more.
        """
        for key, staging in (*self._images.items(), *self._vectors.items()):
            np.copyto(staging.numpy(), arrays[key])
        return (*self._images.values(), *self._vectors.values())

    def unpack(self, *staged: Tensor) -> dict[str, Tensor]:
        """What ``stage`` gives, once on the device, as ``pack`` returns it; a pure function."""
        batch: dict[str, Tensor] = {}
        for key, value in zip((*self._images, *self._vectors), staged, strict=True):
            if key in self._images:
                # In this order the strides are those that PyTorch knows as channels-last.
                value = value.unsqueeze(0).permute(0, 3, 1, 2)
                value = value if self._channels_last else value.contiguous()
                value = value.to(torch.float32).div_(self._full_scale)
            elif value.device.type == 'cpu':
                # Not ours to hand out: the next observation overwrites it.
                value = value.clone()
            batch[self._source_keys.get(key, key)] = value
        return batch

    def example(self) -> Observation:
        """An observation that fits: black images, zero vectors."""
        needs = self._needs
        return Observation(
            images={
                key: np.zeros((height, width, 3), dtype=np.uint8)
                for key, (_, height, width) in needs.image_shapes.items()
            },
            state=_zeros(needs.state_size),
            environment_state=_zeros(needs.environment_state_size),
            task='warm up' if needs.requires_task else None,
        )

    def _host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self._on_cuda)


def resolve_cameras(
    images: Mapping[str, ImageArray], camera_keys: tuple[str, ...]
) -> dict[str, ImageArray]:
    """Match images to the policy's cameras by name, in the policy's order.

    A camera may be called by its policy key, or by what follows ``observation.images.`` or the
    last dot, where that means one camera only. Raises ObservationError listing both sets.
    """
    found: dict[str, ImageArray] = {}
    for name, image in images.items():
        key = _resolve(name, camera_keys)
        if key is None or key in found:
            raise _camera_error(images, camera_keys, f'{name!r} names no camera of its own')
        found[key] = image
    missing = [key for key in camera_keys if key not in found]
    if missing:
        raise _camera_error(images, camera_keys, f'{", ".join(missing)} missing')
    return {key: found[key] for key in camera_keys}


def _resolve(name: str, camera_keys: tuple[str, ...]) -> str | None:
    if name in camera_keys:
        return name
    matches = [
        key
        for key in camera_keys
        if name in (key.removeprefix(_IMAGE_PREFIX), key.rpartition('.')[2])
    ]
    return matches[0] if len(matches) == 1 else None


def _camera_error(
    images: Mapping[str, ImageArray], camera_keys: tuple[str, ...], problem: str
) -> ObservationError:
    return ObservationError(
        'cameras',
        found=f'[{", ".join(images)}]: {problem}',
        expected=f'[{", ".join(camera_keys)}]',
        remedy='name each image by its policy key; cameras are never matched by position',
    )


def _check_image(
    key: str, image: object, *, shape: tuple[int, int, int]
) -> npt.NDArray[np.generic]:
    channels, height, width = shape
    expected = (height, width, channels)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape == expected:
        return image
    remedy = 'resize or crop as in training; this policy resizes nothing itself'
    if not isinstance(image, np.ndarray):
        found = type(image).__name__
        remedy = 'give a numpy array'
    else:
        found = f'{image.dtype} of shape {image.shape}'
        if image.shape == shape:
            remedy = 'move the channels to the end: image.transpose(1, 2, 0)'
        elif image.dtype != np.uint8:
            remedy = 'give the pixels as the camera does, 0 to 255; scaling is done here'
    raise ObservationError(
        key, found=found, expected=f'uint8 of shape {expected}, RGB', remedy=remedy
    )


def _check_vector(key: str, value: object, *, size: int) -> npt.NDArray[np.float32] | None:
    """Return the vector as float32 in memory of its own, or None where the policy takes none."""
    if value is None and size == 0:
        return None
    expected = f'float32 of shape ({size},)' if size else 'nothing: the policy takes none'
    fits = isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)
    if not fits or size == 0 or value.shape != (size,):  # type: ignore[attr-defined]
        found = type(value).__name__
        if isinstance(value, np.ndarray):
            found = f'{value.dtype} of shape {value.shape}'
        raise ObservationError(key, found=found, expected=expected)
    with np.errstate(over='ignore'):
        vector = np.array(value, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise ObservationError(
            key,
            found=f'non-finite values at {", ".join(map(str, bad))}',
            expected='finite float32 values',
        )
    return vector


def _zeros(size: int) -> npt.NDArray[np.float32] | None:
    return np.zeros(size, dtype=np.float32) if size else None

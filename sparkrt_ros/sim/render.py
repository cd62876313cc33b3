"""Draw coloured boxes on a table with OpenCV: no GPU, no display, about a millisecond a frame.

Painter's algorithm. Boxes are drawn far to near; which of two is nearer is decided by a face plane
of one that has the other wholly on its outer side, which is exact for boxes that do not overlap.
Shadows are the boxes' outlines projected straight down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.scene import TABLE_M, Box, View

FloatArray = npt.NDArray[np.float64]
ImageArray = npt.NDArray[np.uint8]

_SIGNS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)
_FACES = np.array(
    [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
)
_NORMALS = np.array(
    [[-1, 0, 0], [1, 0, 0], [0, -1, 0], [0, 1, 0], [0, 0, -1], [0, 0, 1]], dtype=np.float64
)
_LIGHT = np.array([0.45, 0.35, 0.82])
_AMBIENT, _DIFFUSE = 0.52, 0.50
_SHADE = 0.66
_NEAR_M = 0.01
_SHIFT = 4
_TABLE = (206, 188, 160)
_GRID = (188, 169, 141)
_EDGE = (120, 100, 76)
_WALL_TOP, _WALL_BOTTOM = (196, 206, 216), (228, 233, 238)
_GRID_M = 0.1
_TOUCH_M = 1e-4


@dataclass(frozen=True, kw_only=True)
class CameraSpec:
    """Pinhole camera; ``focal_px`` in pixels, the principal point in the middle."""

    width: int = 320
    height: int = 240
    focal_px: float = 300.0


FRONT_CAMERA = CameraSpec(focal_px=292.0)
WRIST_CAMERA = CameraSpec(focal_px=210.0)


class Renderer:
    """Draws what one camera sees, into (height, width, 3) uint8 RGB.

    ``fixed_view`` lets a camera that never moves draw its table once.
    """

    def __init__(self, camera: CameraSpec, *, fixed_view: View | None = None) -> None:
        self.camera = camera
        self._fixed = fixed_view
        self._wall = _gradient(camera)
        self._lit = self._background(fixed_view) if fixed_view else None

    def render(self, boxes: Sequence[Box], view: View | None = None) -> ImageArray:
        """A new image of ``boxes``, from ``view`` or from the fixed view."""
        view = view or self._fixed
        if view is None:
            raise ValueError('a camera without a fixed view needs one to render from')
        image = self._background(view) if self._lit is None else self._lit.copy()
        corners = _corners(boxes)
        self._shadows(image, corners, view)
        seen, order = _visibility(boxes, corners, view.position_m)
        shades = _shades(boxes)
        points = (corners.reshape(-1, 3) - view.position_m) @ view.rotation
        pixels = self._to_pixels(points).reshape(-1, 8, 2)
        depths = points[:, 2].reshape(-1, 8)
        points = points.reshape(-1, 8, 3)
        safe = depths.min(axis=1) > _NEAR_M
        for box in order:
            for face in np.flatnonzero(seen[box]):
                ring = _FACES[face]
                outline = pixels[box, ring] if safe[box] else self._clipped(points[box, ring])
                if outline is not None:
                    self._face(image, outline, shades[box][face])
        return image

    @staticmethod
    def _face(image: ImageArray, outline: npt.NDArray[np.int32], color: FloatArray) -> None:
        fill = color.tolist()
        cv2.fillConvexPoly(image, outline, fill, cv2.LINE_8, _SHIFT)
        edge = (color * 0.86).tolist()
        _line(image, outline, edge, closed=True)

    def _background(self, view: View) -> ImageArray:
        image = self._wall.copy()
        left, right, near, far = TABLE_M
        table = np.array([[left, near, 0], [right, near, 0], [right, far, 0], [left, far, 0]])
        outline = self._ground(table, view)
        if outline is None:
            return image
        cv2.fillConvexPoly(image, outline, _TABLE, cv2.LINE_AA, _SHIFT)
        for line in _grid_lines():
            path = self._ground(line, view)
            if path is not None:
                _line(image, path, _GRID)
        _line(image, outline, _EDGE, closed=True, thickness=2)
        return image

    def _shadows(self, image: ImageArray, corners: FloatArray, view: View) -> None:
        """Darken the table under every box."""
        mask = np.zeros(image.shape[:2], dtype=np.uint8)
        for box in corners:
            hull = cv2.convexHull(box[:, :2].astype(np.float32))[:, 0].astype(np.float64)
            ring = np.concatenate((hull, np.zeros((len(hull), 1))), axis=1)
            outline = self._ground(ring, view)
            if outline is not None:
                cv2.fillConvexPoly(mask, outline, 255, cv2.LINE_8, _SHIFT)
        cv2.copyTo(cv2.convertScaleAbs(image, alpha=_SHADE), mask, image)

    def _ground(self, ring_m: FloatArray, view: View) -> npt.NDArray[np.int32] | None:
        return self._clipped((ring_m - view.position_m) @ view.rotation)

    def _clipped(self, points: FloatArray) -> npt.NDArray[np.int32] | None:
        """Pixels of a polygon in camera axes, cut at the near plane; None if all is behind it."""
        inside = points[:, 2] > _NEAR_M
        if inside.all():
            return self._to_pixels(points)
        if not inside.any():
            return None
        kept = []
        for index, point in enumerate(points):
            last = points[index - 1]
            if inside[index] != inside[index - 1]:
                share = (_NEAR_M - last[2]) / (point[2] - last[2])
                kept.append(last + share * (point - last))
            if inside[index]:
                kept.append(point)
        return self._to_pixels(np.array(kept))

    def _to_pixels(self, points: FloatArray) -> npt.NDArray[np.int32]:
        """Camera axes (N, 3) -> (N, 2) int32 pixels with ``_SHIFT`` fractional bits."""
        camera = self.camera
        depth = np.maximum(points[:, 2:3], 1e-3)
        middle = np.array([(camera.width - 1) / 2, (camera.height - 1) / 2])
        pixels = points[:, :2] / depth * camera.focal_px + middle
        return np.clip(pixels * (1 << _SHIFT), -400000, 400000).astype(np.int32)


def _line(
    image: ImageArray,
    path: npt.NDArray[np.int32],
    color: Sequence[float],
    *,
    closed: bool = False,
    thickness: int = 1,
) -> None:
    cv2.polylines(image, [path], closed, color, thickness, cv2.LINE_AA, _SHIFT)


def _gradient(camera: CameraSpec) -> ImageArray:
    ramp = np.linspace(0.0, 1.0, camera.height)[:, None, None]
    column = np.array(_WALL_TOP) * (1 - ramp) + np.array(_WALL_BOTTOM) * ramp
    return np.ascontiguousarray(
        np.broadcast_to(column, (camera.height, camera.width, 3)), dtype=np.uint8
    )


def _grid_lines() -> list[FloatArray]:
    left, right, near, far = TABLE_M
    across = np.arange(np.ceil(left / _GRID_M) * _GRID_M, right, _GRID_M)
    along = np.arange(np.ceil(near / _GRID_M + 1e-9) * _GRID_M, far - 1e-9, _GRID_M)
    lines = [np.array([[x, near, 0.0], [x, far, 0.0]]) for x in across]
    return lines + [np.array([[left, y, 0.0], [right, y, 0.0]]) for y in along]


def _corners(boxes: Sequence[Box]) -> FloatArray:
    """(N, 8, 3) corners in ``base``."""
    half = np.array([box.half_m for box in boxes])
    rotations = np.stack([box.rotation for box in boxes])
    centers = np.stack([box.center_m for box in boxes])
    return centers[:, None] + np.einsum('nij,nkj->nki', rotations, _SIGNS * half[:, None])


def _shades(boxes: Sequence[Box]) -> FloatArray:
    """(N, 6, 3) colour of every face under the one light (Lambert)."""
    rotations = np.stack([box.rotation for box in boxes])
    colors = np.array([box.color for box in boxes], dtype=np.float64)
    toward = np.einsum('nij,fj,i->nf', rotations, _NORMALS, _LIGHT)
    light = _AMBIENT + _DIFFUSE * np.maximum(toward, 0.0)
    return np.minimum(colors[:, None] * light[..., None], 255.0)


def _visibility(
    boxes: Sequence[Box], corners: FloatArray, eye_m: FloatArray
) -> tuple[npt.NDArray[np.bool_], list[int]]:
    """Which faces (N, 6) look at the eye, and the order to draw boxes in, far to near."""
    rotations = np.stack([box.rotation for box in boxes])
    half = np.array([box.half_m for box in boxes])
    centers = np.stack([box.center_m for box in boxes])
    normals = np.einsum('nij,fj->nfi', rotations, _NORMALS)
    reach = np.repeat(half, 2, axis=1)
    offsets = np.einsum('nfi,ni->nf', normals, centers) + reach
    seen = normals @ eye_m > offsets
    gaps = np.einsum('nfi,mki->nfmk', normals, corners).min(axis=3) - offsets[..., None]
    outside = gaps > -_TOUCH_M
    # behind[a, b]: a plane of b shows that a is farther; ahead[a, b]: a plane of a shows it of b.
    farther = (outside & ~seen[..., None]).any(axis=1)
    nearer = (outside & seen[..., None]).any(axis=1)
    before = farther.T | nearer
    before &= ~before.T
    distance = np.linalg.norm(centers - eye_m, axis=1)
    return seen, _far_to_near(before, distance)


def _far_to_near(before: npt.NDArray[np.bool_], distance: FloatArray) -> list[int]:
    """Topological order of ``before[a, b]`` (a is drawn before b); distance where it is free."""
    waiting = [int(index) for index in np.argsort(-distance)]
    blockers = before.sum(axis=0)
    order: list[int] = []
    while waiting:
        free = next((index for index in waiting if blockers[index] == 0), waiting[0])
        waiting.remove(free)
        order.append(free)
        blockers -= before[free]
    return order

"""Pictures as a vision tower wants them, computed where they are.

Shapes: ``B`` batch, ``H, W`` rows and columns of a picture, ``R`` side of the square.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def letterbox(image: Tensor, side: int, *, bars: float = 0.0) -> Tensor:
    """Scale a picture into a square without distortion, in the middle of two bars.

    image: (B, 3, H, W) float32 in [0, 1] -> (B, 3, R, R). Bilinear, without antialiasing, as in
    LeRobot; an odd pixel of the bars goes right or below. A picture of this size stays as it is.
    bars: their value; LeRobot 0.4 had -1 here.
    """
    height, width = image.shape[-2:]
    if (height, width) == (side, side):
        return image
    ratio = max(width / side, height / side)
    inner_height, inner_width = int(height / ratio), int(width / ratio)
    scaled = F.interpolate(
        image, size=(inner_height, inner_width), mode='bilinear', align_corners=False
    ).clamp(min(bars, 0.0), 1.0)
    top, left = (side - inner_height) // 2, (side - inner_width) // 2
    bottom, right = side - inner_height - top, side - inner_width - left
    return F.pad(scaled, (left, right, top, bottom), value=bars)


def prepare_image(image: Tensor, side: int, *, compat: str = '0.6') -> Tensor:
    """(B, 3, H, W) float32 in [0, 1] -> (B, 3, R, R) in [-1, 1]; bars are -1, under 0.4 -3."""
    boxed = letterbox(image, side, bars=-1.0 if compat == '0.4' else 0.0)
    return boxed * 2.0 - 1.0

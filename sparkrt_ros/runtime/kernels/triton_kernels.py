"""Kernels in Triton for what PyTorch does in several launches, or in one slow one.

Each wrapper takes CUDA tensors in the memory order it names and computes what the plain operators
of ``PlainForms`` compute; sums and norms are in fp32. Importing this needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_POOL_COLUMNS = 16
_PIXELS = 1024


@triton.jit
def _add_norm(x, y, weight, bias, out, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    at = row * size + columns
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / size
    centred = tl.where(inside, total - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / size
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    result = centred * (1.0 / tl.sqrt(variance + eps)) * scale + shift
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _max_pool(
    x,
    out,
    height,
    width,
    out_height,
    out_width,
    channels,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    picture = tl.program_id(0) // out_height
    row = tl.program_id(0) % out_height
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.arange(0, CHANNELS)
    wanted = (column < out_width)[:, None] & (channel < channels)[None, :]
    best = tl.full((COLUMNS, CHANNELS), float('-inf'), x.dtype.element_ty)
    for dy in tl.static_range(3):
        y = tl.full((COLUMNS,), 2 * row - 1 + dy, tl.int32)
        for dx in tl.static_range(3):
            across = 2 * column - 1 + dx
            inside = (y >= 0) & (y < height) & (across >= 0) & (across < width)
            at = ((picture * height + y) * width + across)[:, None] * channels + channel[None, :]
            value = tl.load(x + at, mask=inside[:, None] & wanted, other=float('-inf'))
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    at = ((picture * out_height + row) * out_width + column)[:, None] * channels + channel[None, :]
    tl.store(out + at, best, mask=wanted)


@triton.jit
def _widen_pixels(x, out, count, FROM: tl.constexpr, TO: tl.constexpr, PIXELS: tl.constexpr):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, TO)
    known = (pixel < count)[:, None] & (channel < FROM)[None, :]
    value = tl.load(x + pixel[:, None] * FROM + channel[None, :], mask=known, other=0.0)
    at = pixel[:, None] * TO + channel[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=(pixel < count)[:, None])


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``layer_norm(x + y)`` over the last dimension of contiguous (M, D) tensors."""
    out = torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    _add_norm[(x.numel() // size,)](x, y, weight, bias, out, size, eps, BLOCK=block, num_warps=4)
    return out


def max_pool_3x3(x: Tensor) -> Tensor:
    """Maximum over 3x3 with stride 2 and padding 1; (B, C, H, W) in channels-last memory."""
    batch, channels, height, width = x.shape
    out_height, out_width = (height - 1) // 2 + 1, (width - 1) // 2 + 1
    out = torch.empty(
        (batch, channels, out_height, out_width),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    grid = (batch * out_height, triton.cdiv(out_width, _POOL_COLUMNS))
    _max_pool[grid](
        x,
        out,
        height,
        width,
        out_height,
        out_width,
        channels,
        COLUMNS=_POOL_COLUMNS,
        CHANNELS=triton.next_power_of_2(channels),
        num_warps=4,
    )
    return out


def gather_pixels(images: Sequence[Tensor], *, channels: int, dtype: torch.dtype) -> Tensor:
    """Stack (1, C, H, W) channels-last images of equal size as (n, channels, H, W) of ``dtype``.

    The channels that were not there are 0. ``channels`` is a power of two.
    """
    _, given, height, width = images[0].shape
    out = torch.empty(
        (len(images), channels, height, width),
        dtype=dtype,
        device=images[0].device,
        memory_format=torch.channels_last,
    )
    count = height * width
    grid = (triton.cdiv(count, _PIXELS),)
    for index, image in enumerate(images):
        _widen_pixels[grid](
            image, out[index], count, FROM=given, TO=channels, PIXELS=_PIXELS, num_warps=8
        )
    return out

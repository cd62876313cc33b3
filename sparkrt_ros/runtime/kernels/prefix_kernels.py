"""Triton kernels between the large products of a prefix: one pass over memory for each.

The residual stream is fp32; ``x`` and ``y`` of a product are in the dtype of the weights. Shapes:
``R`` rows, ``W`` width, ``F`` hidden width, ``B`` batch, ``P`` tokens, ``H`` heads, ``G`` heads of
keys, ``h`` size of a head. Needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(
    stream,
    y,
    added,
    weight,
    bias,
    out,
    width,
    eps,
    ADD: tl.constexpr,
    CENTRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``stream += y + added``, then its norm: (R, W).

    CENTRED: a layer norm, with ``added`` (W,) and ``bias`` (W,); else divided by the root mean
    square, without either.
    """
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    value = tl.load(stream + at, mask=inside, other=0.0)
    if ADD:
        value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            value += tl.load(added + column, mask=inside, other=0.0)
        tl.store(stream + at, value, mask=inside)
    if CENTRED:
        value = tl.where(inside, value - tl.sum(value, axis=0) / width, 0.0)
    result = value * (1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps))
    result = result * tl.load(weight + column, mask=inside, other=0.0)
    if CENTRED:
        result += tl.load(bias + column, mask=inside, other=0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotate(
    packed,
    cos,
    sin,
    queries,
    keys,
    values,
    tokens,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of ``HEADS`` queries, keys and values -> (B, H, P, h) rotated, (B, G, P, h) twice.

    packed: (B P, (HEADS + 2 GROUPS) h). BLOCK: a power of two from HALF on.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, BLOCK)
    inside = dim < HALF
    source = packed + (row * (HEADS + 2 * GROUPS) + head) * 2 * HALF + dim
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    sample = row // tokens
    token = row % tokens
    if head < HEADS + GROUPS:
        c = tl.load(cos + row * HALF + dim, mask=inside, other=1.0)
        s = tl.load(sin + row * HALF + dim, mask=inside, other=0.0)
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    kind = keys.dtype.element_ty
    if head < HEADS:
        at = ((sample * HEADS + head) * tokens + token) * 2 * HALF + dim
        tl.store(queries + at, first.to(kind), mask=inside)
        tl.store(queries + at + HALF, second.to(kind), mask=inside)
    elif head < HEADS + GROUPS:
        at = ((sample * GROUPS + head - HEADS) * tokens + token) * 2 * HALF + dim
        tl.store(keys + at, first.to(kind), mask=inside)
        tl.store(keys + at + HALF, second.to(kind), mask=inside)
    else:
        at = ((sample * GROUPS + head - HEADS - GROUPS) * tokens + token) * 2 * HALF + dim
        tl.store(values + at, first.to(kind), mask=inside)
        tl.store(values + at + HALF, second.to(kind), mask=inside)


@triton.jit
def geglu(packed, out, inner, BLOCK: tl.constexpr):
    """Rows of gate and up (R, 2 F) -> ``gelu(gate) * up`` (R, F), with the tanh form of gelu."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    source = packed + row * 2 * inner + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + inner, mask=inside, other=0.0).to(tl.float32)
    bent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    result = gate / (1.0 + tl.exp(-bent)) * up
    tl.store(out + row * inner + column, result.to(out.dtype.element_ty), mask=inside)

"""Triton kernels: attention of heads that share keys, over a prefix and over their own tokens.

The query heads of one head of keys are laid below each other, so that a few tokens still fill a
tensor core. Shapes: ``B`` batch, ``G`` heads of keys, ``N`` query heads of each, ``S`` tokens,
``P`` tokens of the prefix, ``h`` size of a head, ``C`` parts of the keys. Needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparkrt_ros.runtime.kernels.flow_kernels import _fetch, _release, _wait

_HIDDEN = tl.constexpr(-1.0e30)


@triton.jit
def _see(best, total, mixed, queries, keys, values, seen, at, limit, factor, SIZE: tl.constexpr):
    """One tile of keys more, by the running maximum of each row."""
    dim = tl.arange(0, SIZE)
    inside = (at < limit)[:, None] & (dim < SIZE)[None, :]
    k = tl.load(keys + at[:, None] * SIZE + dim[None, :], mask=inside, other=0.0)
    logits = tl.dot(queries, tl.trans(k), input_precision='ieee') * factor
    logits = tl.where(seen, logits, _HIDDEN)
    higher = tl.maximum(best, tl.max(logits, axis=1))
    weights = tl.exp2(logits - higher[:, None])
    fade = tl.exp2(best - higher)
    total = total * fade + tl.sum(weights, axis=1)
    v = tl.load(values + at[:, None] * SIZE + dim[None, :], mask=inside, other=0.0)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision='ieee')
    return higher, total, mixed


@triton.jit
def attend(
    queries,
    keys,
    values,
    own_keys,
    own_values,
    valid,
    out,
    best_of,
    total_of,
    ahead,
    ahead_size,
    tokens,
    prefix,
    own,
    share,
    splits,
    factor,
    NEIGHBOURS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    STATE_FIRST: tl.constexpr,
    ALL_AT_ONCE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
    FETCH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Queries (B, G N, S, h), keys (B, G, P, h), own keys (B, G, S, h), valid (B, P) int8.

    ALL_AT_ONCE: out is (B, S, G N h). Else a program sees ``share`` keys of the prefix, or, the
    last of the ``splits`` ones, its own tokens; out is (B, G, C, N S, h) fp32, not yet divided,
    beside the maximum and the sum of each row, (B, G, C, N S). factor: of the logits, to base 2.
    STATE_FIRST: the first own token sees, of its own kind, itself only.
    """
    _release(PDL)
    _fetch(ahead, ahead_size, FETCH, LANES)
    _wait(PDL)
    split, pair = tl.program_id(1), tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = NEIGHBOURS * tokens
    dim = tl.arange(0, SIZE)
    wanted = (row < rows)[:, None] & (dim < SIZE)[None, :]
    at = pair * rows * SIZE + row[:, None] * SIZE + dim[None, :]
    q = tl.load(queries + at, mask=wanted, other=0.0)
    best = tl.full((BLOCK_M,), _HIDDEN, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, SIZE), tl.float32)
    tile = tl.arange(0, BLOCK_N)
    k = keys + pair * prefix * SIZE
    v = values + pair * prefix * SIZE
    for start in range(split * share, tl.minimum((split + 1) * share, prefix), BLOCK_N):
        place = start + tile
        there = tl.load(valid + pair // GROUPS * prefix + place, mask=place < prefix, other=0)
        seen = (row < rows)[:, None] & (there != 0)[None, :]
        best, total, mixed = _see(best, total, mixed, q, k, v, seen, place, prefix, factor, SIZE)
    if split == splits - 1:
        k = own_keys + pair * own * SIZE
        v = own_values + pair * own * SIZE
        for start in range(0, own, BLOCK_N):
            place = start + tile
            seen = (row < rows)[:, None] & (place < own)[None, :]
            if STATE_FIRST:
                seen = seen & ((row % tokens > 0)[:, None] | (place == 0)[None, :])
            best, total, mixed = _see(best, total, mixed, q, k, v, seen, place, own, factor, SIZE)
    if ALL_AT_ONCE:
        head = pair % GROUPS * NEIGHBOURS + row // tokens
        place = pair // GROUPS * tokens + row % tokens
        at = (place * GROUPS * NEIGHBOURS + head)[:, None] * SIZE + dim[None, :]
        tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=wanted)
    else:
        line = (pair * splits + split) * rows + row
        tl.store(out + line[:, None] * SIZE + dim[None, :], mixed, mask=wanted)
        tl.store(best_of + line, best, mask=row < rows)
        tl.store(total_of + line, total, mask=row < rows)


@triton.jit
def combine(
    parts,
    best_of,
    total_of,
    out,
    tokens,
    splits,
    NEIGHBOURS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The parts of ``attend`` -> (B, S, G N h); ``SPLITS``: a power of two from ``splits`` on."""
    _release(PDL)
    _wait(PDL)
    row, pair = tl.program_id(0), tl.program_id(1)
    rows = NEIGHBOURS * tokens
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, SIZE)
    there = split < splits
    line = (pair * splits + split) * rows + row
    best = tl.load(best_of + line, mask=there, other=-2.0e30)
    weight = tl.exp2(best - tl.max(best, axis=0))
    total = tl.sum(weight * tl.load(total_of + line, mask=there, other=0.0), axis=0)
    wanted = there[:, None] & (dim < SIZE)[None, :]
    part = tl.load(parts + line[:, None] * SIZE + dim[None, :], mask=wanted, other=0.0)
    mixed = tl.sum(part * weight[:, None], axis=0) / total
    head = pair % GROUPS * NEIGHBOURS + row // tokens
    place = pair // GROUPS * tokens + row % tokens
    at = (place * GROUPS * NEIGHBOURS + head) * SIZE + dim
    tl.store(out + at, mixed.to(out.dtype.element_ty))

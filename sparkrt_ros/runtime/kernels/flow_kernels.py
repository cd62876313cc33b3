"""Triton kernels of one layer of an action expert: few rows, much weight.

With 50 rows a layer is bound by reading its weights, and by the number of kernels that wait for
each other. Norms cost no kernel here: ``norm(x) * grow + shift`` times a weight equals
``(x * grow) @ weight`` times one number per row, plus ``shift @ weight``. So whoever writes the
residual stream also writes ``x * grow`` of the next norm and the sums of squares of its columns,
and whoever reads it multiplies the finished rows.
Shapes: ``R`` rows (padded to a multiple of ``BLOCK_M`` where a product reads them), ``W`` width,
``S`` rows of one sample, ``H`` heads, ``G`` heads of keys, ``h`` size of a head. Weights are
(outputs, inputs). Importing this needs Triton.
PDL: whether a kernel is launched while the one before it still runs; it then waits by itself,
after it has asked for whatever no kernel writes.
FETCH: whether programs bring the weights of a later kernel, ``ahead``, into the L2 cache, each its
share, so that memory is read while kernels wait for each other. ``LANES``: threads of a program.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _release(PDL: tl.constexpr):
    """Let the next kernel be launched; it does no harm before its own wait."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _wait(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def _fetch(ahead, size, FETCH: tl.constexpr, LANES: tl.constexpr):
    """Ask for ``size`` bytes from ``ahead`` on to be in the L2 cache; multiples of 16."""
    if FETCH:
        programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
        program = tl.program_id(0) + tl.num_programs(0) * (
            tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
        )
        share = tl.cdiv(size, programs * LANES * 16) * 16
        offset = (program * LANES + tl.arange(0, LANES)) * share
        length = tl.minimum(share, size - offset)
        tl.inline_asm_elementwise(
            asm="""{
            .reg .pred wanted;
            setp.gt.s32 wanted, $2, 0;
            @wanted cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            constraints='=r,l,r',
            args=[ahead.to(tl.int64) + offset, length],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _row_scale(squares, row, known, tiles, stride, width, eps, TILES: tl.constexpr):
    """One over the root mean square of rows, from the sums of squares of their tiles."""
    tile = tl.arange(0, TILES)
    at = tile[:, None] * stride + row[None, :]
    wanted = (tile < tiles)[:, None] & known[None, :]
    total = tl.sum(tl.load(squares + at, mask=wanted, other=0.0), axis=0)
    return 1.0 / tl.sqrt(total / width + eps)


@triton.jit
def prepare(x, grow, stream, scaled, squares, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Rows (R, W) -> residual stream, what the next product reads, sums of squares."""
    _release(PDL)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    factor = tl.load(grow + column, mask=inside, other=0.0)
    _wait(PDL)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(stream + at, value, mask=inside)
    tl.store(scaled + at, (value * factor).to(scaled.dtype.element_ty), mask=inside)
    tl.store(squares + row, tl.sum(value * value, axis=0))


@triton.jit
def project(
    scaled,
    weight,
    bias,
    squares,
    cos,
    sin,
    queries,
    keys,
    values,
    ahead,
    ahead_size,
    rows,
    samples_rows,
    width,
    tiles,
    stride,
    eps,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
    FETCH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Normalised rows -> rotated queries (B, H, S, h) and keys (B, G, S, h), values likewise.

    weight: ((H + 2 G) h, W). A program makes the same ``BLOCK_N`` columns of both halves of a
    head, since these are what rotation mixes.
    """
    _release(PDL)
    _fetch(ahead, ahead_size, FETCH, LANES)
    per_head = HALF // BLOCK_N
    head = tl.program_id(0) // per_head
    inner = (tl.program_id(0) % per_head) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    known = row < rows
    column = head * 2 * HALF + inner
    part = tl.arange(0, BLOCK_K)
    x_at = scaled + row[:, None] * width + part[None, :]
    w_at = weight + column[None, :] * width + part[:, None]
    first = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first_bias = tl.load(bias + column)
    second_bias = tl.load(bias + column + HALF)
    _wait(PDL)
    for start in range(0, width, BLOCK_K):
        x = tl.load(x_at + start)
        first = tl.dot(x, tl.load(w_at + start), first, input_precision='ieee')
        w = tl.load(w_at + HALF * width + start)
        second = tl.dot(x, w, second, input_precision='ieee')
    scale = _row_scale(squares, row, known, tiles, stride, width, eps, TILES)[:, None]
    first = first * scale + first_bias[None, :]
    second = second * scale + second_bias[None, :]
    sample = row // samples_rows
    token = row % samples_rows
    wanted = known[:, None] & (inner < HALF)[None, :]
    turn = row[:, None] * HALF + inner[None, :]
    c = tl.load(cos + turn, mask=wanted, other=1.0)
    s = tl.load(sin + turn, mask=wanted, other=0.0)
    turned_first = first * c - second * s
    turned_second = second * c + first * s
    if head < HEADS:
        at = ((sample * HEADS + head) * samples_rows + token)[:, None] * 2 * HALF + inner[None, :]
        tl.store(queries + at, turned_first.to(queries.dtype.element_ty), mask=wanted)
        tl.store(queries + at + HALF, turned_second.to(queries.dtype.element_ty), mask=wanted)
    elif head < HEADS + GROUPS:
        group = sample * GROUPS + head - HEADS
        at = (group * samples_rows + token)[:, None] * 2 * HALF + inner[None, :]
        tl.store(keys + at, turned_first.to(keys.dtype.element_ty), mask=wanted)
        tl.store(keys + at + HALF, turned_second.to(keys.dtype.element_ty), mask=wanted)
    else:
        group = sample * GROUPS + head - HEADS - GROUPS
        at = (group * samples_rows + token)[:, None] * 2 * HALF + inner[None, :]
        tl.store(values + at, first.to(values.dtype.element_ty), mask=wanted)
        tl.store(values + at + HALF, second.to(values.dtype.element_ty), mask=wanted)


@triton.jit
def feed(
    scaled,
    weight,
    bias,
    squares,
    hidden,
    ahead,
    ahead_size,
    rows,
    width,
    inner,
    tiles,
    stride,
    eps,
    TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
    FETCH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Normalised rows -> ``gelu(gate) * up`` (R, F); weight (2 F, W): gate, then up."""
    _release(PDL)
    _fetch(ahead, ahead_size, FETCH, LANES)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    known = row < rows
    part = tl.arange(0, BLOCK_K)
    x_at = scaled + row[:, None] * width + part[None, :]
    w_at = weight + column[None, :] * width + part[:, None]
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gate_bias = tl.load(bias + column)
    up_bias = tl.load(bias + inner + column)
    _wait(PDL)
    for start in range(0, width, BLOCK_K):
        x = tl.load(x_at + start)
        gate = tl.dot(x, tl.load(w_at + start), gate, input_precision='ieee')
        up = tl.dot(x, tl.load(w_at + inner * width + start), up, input_precision='ieee')
    scale = _row_scale(squares, row, known, tiles, stride, width, eps, TILES)[:, None]
    gate = gate * scale + gate_bias[None, :]
    up = up * scale + up_bias[None, :]
    # The tanh form: (1 + tanh(y)) / 2 is sigmoid(2 y).
    bent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    result = gate / (1.0 + tl.exp(-bent)) * up
    wanted = known[:, None] & (column < inner)[None, :]
    at = row[:, None] * inner + column[None, :]
    tl.store(hidden + at, result.to(hidden.dtype.element_ty), mask=wanted)


@triton.jit
def _settle(total, value, factor, growth, stream, scaled, squares, at, row, place, wanted, rows):
    """Add to the residual stream, and write what the next norm needs."""
    value += total * factor[None, :]
    tl.store(stream + at, value, mask=wanted)
    grown = value * growth[None, :]
    tl.store(scaled + at, grown.to(scaled.dtype.element_ty), mask=wanted)
    tl.store(squares + place, tl.sum(value * value, axis=1), mask=row < rows)


@triton.jit
def add(
    x,
    weight,
    stream,
    gate,
    grow,
    scaled,
    squares,
    sums,
    arrivals,
    ahead,
    ahead_size,
    rows,
    inner,
    share,
    width,
    stride,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
    FETCH: tl.constexpr,
    LANES: tl.constexpr,
):
    """``stream += gate * (x @ weight)``: x (R, I), weight (W, I), stream (R, W).

    ``SPLITS`` programs share a tile, each with ``share`` of ``I``. The last one to arrive adds
    their sums, always in the same order, so that the same input gives the same bits; it also
    sets ``arrivals`` back to 0.
    """
    _release(PDL)
    _fetch(ahead, ahead_size, FETCH, LANES)
    tile, split, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    part = split * share + tl.arange(0, BLOCK_K)
    x_at = x + row[:, None] * inner + part[None, :]
    w_at = weight + column[None, :] * inner + part[:, None]
    factor = tl.load(gate + column)
    growth = tl.load(grow + column)
    wanted = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    place = tile * stride + row
    _wait(PDL)
    # Asked for early, so that it is there when the sum is.
    value = tl.load(stream + at, mask=wanted, other=0.0)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, share, BLOCK_K):
        total = tl.dot(tl.load(x_at + start), tl.load(w_at + start), total, input_precision='ieee')
    if SPLITS == 1:
        _settle(
            total, value, factor, growth, stream, scaled, squares, at, row, place, wanted, rows
        )
    else:
        slot = block * tl.num_programs(0) + tile
        local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        own = sums + slot * SPLITS * BLOCK_M * BLOCK_N + local
        tl.store(own + split * BLOCK_M * BLOCK_N, total)
        # All threads have stored before one of them announces it.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + slot, 1, sem='acq_rel') == SPLITS - 1:
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for other in tl.static_range(SPLITS):
                # Not from the cache of this multiprocessor, which others do not write to.
                total += tl.load(own + other * BLOCK_M * BLOCK_N, cache_modifier='.cg')
            _settle(
                total, value, factor, growth, stream, scaled, squares, at, row, place, wanted, rows
            )
            tl.store(arrivals + slot, 0)


@triton.jit
def velocity(
    stream,
    grow,
    shift,
    weight,
    bias,
    out,
    tokens,
    samples_rows,
    width,
    size,
    eps,
    BLOCK: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The last norm and projection: the last ``tokens`` rows of each sample -> (B, T, D) fp32."""
    _release(PDL)
    _wait(PDL)
    place = tl.program_id(0)
    row = place // tokens * samples_rows + samples_rows - tokens + place % tokens
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(stream + row * width + column, mask=inside, other=0.0)
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps))
    x = x * tl.load(grow + column, mask=inside, other=0.0)
    x += tl.load(shift + column, mask=inside, other=0.0)
    for start in range(0, size, OUTPUTS):
        output = start + tl.arange(0, OUTPUTS)
        known = output < size
        wanted = known[:, None] & inside[None, :]
        at = output[:, None] * width + column[None, :]
        w = tl.load(weight + at, mask=wanted, other=0.0)
        found = tl.sum(w * x[None, :], axis=1) + tl.load(bias + output, mask=known, other=0.0)
        tl.store(out + place * size + output, found, mask=known)

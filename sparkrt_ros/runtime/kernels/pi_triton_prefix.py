"""What is between the large products of a prefix, by Triton kernels.

See ``pi_ops`` for what they compute. Importing this needs Triton.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sparkrt_ros.runtime.kernels import prefix_kernels
from sparkrt_ros.runtime.kernels.pi_ops import NORM_EPS, Heads, Turn


def add_norm(
    stream: Tensor,
    y: Tensor | None,
    weight: Tensor,
    *,
    added: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """See ``pi_ops.add_norm``."""
    rows, width = stream.shape
    out = torch.empty(rows, width, dtype=dtype, device=stream.device)
    prefix_kernels.add_norm[(rows,)](
        stream,
        stream if y is None else y,
        weight if added is None else added,
        weight,
        weight if bias is None else bias,
        out,
        width,
        NORM_EPS,
        ADD=y is not None,
        CENTRED=bias is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )
    return out


def rotate(packed: Tensor, turn: Turn, heads: Heads, keys: Tensor, values: Tensor) -> Tensor:
    """See ``pi_ops.rotate``."""
    samples, _, tokens, _ = keys.shape
    half = heads.size // 2
    queries = packed.new_empty(samples, heads.queries, tokens, heads.size)
    prefix_kernels.rotate[(samples * tokens, heads.queries + 2 * heads.keys)](
        packed,
        turn.cos,
        turn.sin,
        queries if heads.queries else keys,
        keys,
        values,
        tokens,
        HEADS=heads.queries,
        GROUPS=heads.keys,
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
        num_warps=1,
    )
    return queries


def geglu(packed: Tensor) -> Tensor:
    """See ``pi_ops.geglu``."""
    rows, inner = packed.shape[0], packed.shape[1] // 2
    out = packed.new_empty(rows, inner)
    block = min(1024, triton.next_power_of_2(inner))
    prefix_kernels.geglu[(rows, triton.cdiv(inner, block))](
        packed, out, inner, BLOCK=block, num_warps=4
    )
    return out

"""What a fused Pi0 or Pi0.5 is made of, and the form of it that works everywhere.

Shapes: ``B`` samples, ``S`` tokens of each, ``R`` rows: ``B S`` rounded up to whole tiles (what is
in the others is never read), ``W`` width, ``F`` hidden width, ``H`` heads, ``G`` heads of keys,
``h`` size of a head, ``P`` tokens of the prefix, ``D`` size of an action in the network.
``ahead``: weights of a later operation, which a device may read into its cache meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 64
"""Rows of a tile of the residual stream."""
NORM_EPS = 1e-6
"""Of every norm of these policies."""


@dataclass(kw_only=True)
class Stream:
    """The residual stream of the expert, and what the next norm needs of it.

    x: (R, W) float32. scaled: (R, W), ``x`` times what the next norm multiplies columns with, in
    the dtype of the weights. squares: (tiles or more, R) float32, of which the first ``tiles``
    rows add up to the sums of squares of ``x``. arrivals: zeros, int32.
    """

    x: Tensor
    scaled: Tensor
    squares: Tensor
    arrivals: Tensor
    samples: int
    tokens: int
    tiles: int = 1

    @property
    def rows(self) -> int:
        """Rows that are read."""
        return self.samples * self.tokens

    @property
    def width(self) -> int:
        return self.x.shape[1]


def make_stream(
    *, samples: int, tokens: int, width: int, dtype: torch.dtype, device: torch.device
) -> Stream:
    """Memory for a stream; zeros, so that rows nobody writes are finite."""
    padded = -(-samples * tokens // ROWS) * ROWS
    tiles = -(-width // 16)
    return Stream(
        x=torch.zeros(padded, width, device=device),
        scaled=torch.zeros(padded, width, dtype=dtype, device=device),
        squares=torch.zeros(tiles, padded, device=device),
        arrivals=torch.zeros(tiles * padded // ROWS, dtype=torch.int32, device=device),
        samples=samples,
        tokens=tokens,
    )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Rotary embedding of rows: each (B S, h / 2) float32."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Heads of queries, heads of keys, size of each."""

    queries: int
    keys: int
    size: int


@dataclass(frozen=True, kw_only=True)
class PiOps:
    """One callable per operation; see the functions below for what each computes."""

    prepare: Callable[..., None]
    project: Callable[..., tuple[Tensor, Tensor, Tensor]]
    attend: Callable[..., Tensor]
    add_attended: Callable[..., None]
    feed: Callable[..., Tensor]
    add_fed: Callable[..., None]
    velocity: Callable[..., Tensor]
    add_norm: Callable[..., Tensor]
    rotate: Callable[..., Tensor]
    look: Callable[..., Tensor]
    geglu: Callable[..., Tensor]


def prepare(stream: Stream, x: Tensor, grow: Tensor) -> None:
    """Begin a step with rows (B S, W) of any dtype. grow: (W,) float32, of the first norm."""
    stream.x[: stream.rows] = x.float()
    _note(stream, grow)


def project(
    stream: Stream,
    weight: Tensor,
    bias: Tensor,
    turn: Turn,
    heads: Heads,
    *,
    ahead: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm, then queries (B, H, S, h), keys and values (B, G, S, h); the first two rotated.

    weight: ((H + 2 G) h, W). bias: ((H + 2 G) h,) float32, what the shift of the norm becomes.
    """
    packed = _normed_product(stream, weight, bias)[: stream.rows].to(weight.dtype)
    shape = (stream.samples, heads.keys, stream.tokens, heads.size)
    keys, values = packed.new_empty(shape), packed.new_empty(shape)
    queries = rotate(packed, turn, heads, keys, values)
    return queries, keys, values


def attend(
    queries: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    keys: Tensor,
    values: Tensor,
    valid: Tensor,
    *,
    state_first: bool = False,
    ahead: Tensor | None = None,
) -> Tensor:
    """Queries (B, H, S, h) see a prefix (B, G, P, h) and their own keys (B, G, S, h) -> (R, H h).

    valid: (B, P) int8. state_first: the first own token sees, of its own kind, itself only.
    """
    samples, heads, tokens, size = queries.shape
    prefix, own = keys.shape[2], own_keys.shape[2]
    seen = torch.ones(samples, 1, tokens, prefix + own, dtype=torch.bool, device=keys.device)
    seen[..., :prefix] = valid[:, None, None, :] != 0
    if state_first:
        seen[:, :, 0, prefix + 1 :] = False
    all_keys = torch.cat((keys, own_keys), dim=2)
    all_values = torch.cat((values, own_values), dim=2)
    k, v = (x.repeat_interleave(heads // keys.shape[1], 1) for x in (all_keys, all_values))
    mixed = F.scaled_dot_product_attention(queries, k, v, attn_mask=seen)
    return _padded(mixed.transpose(1, 2).reshape(samples * tokens, heads * size))


def feed(stream: Stream, weight: Tensor, bias: Tensor, *, ahead: Tensor | None = None) -> Tensor:
    """The norm, then ``gelu(gate) * up``: (R, F). weight: (2 F, W), gate first; bias: (2 F,)."""
    gate, up = _normed_product(stream, weight, bias).chunk(2, dim=1)
    return (F.gelu(gate, approximate='tanh') * up).to(weight.dtype)


def add(
    stream: Stream,
    x: Tensor,
    weight: Tensor,
    gate: Tensor,
    grow: Tensor,
    *,
    ahead: Tensor | None = None,
) -> None:
    """Add ``gate * (x @ weight)`` to the stream. x: (R, I), weight: (W, I), gate: (W,) float32.

    grow: (W,) float32, of the norm that comes next.
    """
    stream.x += gate * F.linear(x, weight).float()
    _note(stream, grow)


def velocity(
    stream: Stream,
    grow: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    tokens: int,
) -> Tensor:
    """The last norm and projection of the last ``tokens`` rows: (B, tokens, D) float32.

    weight: (D, W), bias: (D,), both float32 like the norm's grow and shift (W,).
    """
    x = stream.x[: stream.rows].view(stream.samples, stream.tokens, -1)[:, -tokens:]
    normed = F.rms_norm(x, (stream.width,), eps=NORM_EPS) * grow + shift
    return F.linear(normed, weight, bias)


def add_norm(
    stream: Tensor,
    y: Tensor | None,
    weight: Tensor,
    *,
    added: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """``stream += y + added``, then its norm in ``dtype``: (M, W) float32.

    weight: (W,) float32. With ``bias`` a layer norm, ``added`` being there too; without, the
    root mean square.
    """
    if y is not None:
        stream += y.float() if added is None else y.float() + added
    width = (stream.shape[1],)
    if bias is None:
        return F.rms_norm(stream, width, weight, NORM_EPS).to(dtype)
    return F.layer_norm(stream, width, weight, bias, NORM_EPS).to(dtype)


def rotate(packed: Tensor, turn: Turn, heads: Heads, keys: Tensor, values: Tensor) -> Tensor:
    """Rows (B P, (H + 2 G) h) -> rotated queries (B, H, P, h); keys and values are written.

    keys, values: (B, G, P, h) contiguous; the keys are rotated too. Without queries in the rows
    (H = 0) there are none in the result.
    """
    samples, _, tokens, _ = keys.shape
    total = heads.queries + 2 * heads.keys
    split = packed.view(samples, tokens, total, 2, heads.size // 2).transpose(1, 2).float()
    cos, sin = (x.view(samples, 1, tokens, -1) for x in (turn.cos, turn.sin))
    first, second = split[:, :, :, 0], split[:, :, :, 1]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    keys.copy_(turned[:, heads.queries : heads.queries + heads.keys])
    values.copy_(split[:, heads.queries + heads.keys :].flatten(3))
    return turned[:, : heads.queries].to(packed.dtype).contiguous()


def look(queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor) -> Tensor:
    """A prefix sees itself: queries (B, H, P, h), keys and values (B, G, P, h) -> (B P, H h)."""
    own = keys[:, :, :0]
    rows = queries.shape[0] * queries.shape[2]
    return attend(queries, own, own, keys, values, valid)[:rows]


def geglu(packed: Tensor) -> Tensor:
    """Rows of gate and up (M, 2 F) -> ``gelu(gate) * up`` (M, F)."""
    gate, up = packed.float().chunk(2, dim=1)
    return (F.gelu(gate, approximate='tanh') * up).to(packed.dtype)


PLAIN = PiOps(
    prepare=prepare,
    project=project,
    attend=attend,
    add_attended=add,
    feed=feed,
    add_fed=add,
    velocity=velocity,
    add_norm=add_norm,
    rotate=rotate,
    look=look,
    geglu=geglu,
)
"""Every operation by PyTorch's own operators; right on every device, what others are judged by."""


def first_line(error: BaseException) -> str:
    """What a receipt says of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _note(stream: Stream, grow: Tensor) -> None:
    stream.scaled.copy_(stream.x * grow)
    stream.squares[0] = torch.square(stream.x).sum(dim=1)
    stream.tiles = 1


def _normed_product(stream: Stream, weight: Tensor, bias: Tensor) -> Tensor:
    squares = stream.squares[: stream.tiles].sum(dim=0)
    scale = torch.rsqrt(squares / stream.width + NORM_EPS).unsqueeze(1)
    return F.linear(stream.scaled, weight).float() * scale + bias


def _padded(rows: Tensor) -> Tensor:
    missing = -len(rows) % ROWS
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows

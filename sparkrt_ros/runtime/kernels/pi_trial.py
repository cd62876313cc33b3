"""Random inputs for the operations of a fused Pi0 or Pi0.5, as large as those that will serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.pi_sizes import GemmaSizes
from sparkrt_ros.runtime.kernels.pi_ops import PLAIN, Heads, PiOps, Stream, Turn, make_stream

Call = Callable[[Callable[..., Any], int], tuple[Tensor, ...]]


class Trial:
    """Random inputs of the sizes that will serve. calls: by operation, one with layer ``i``."""

    def __init__(
        self,
        sizes: GemmaSizes,
        *,
        device: torch.device,
        dtype: torch.dtype,
        tokens: int,
        prefix: int,
    ) -> None:
        self._random = torch.Generator(device).manual_seed(0)
        self._device, self._dtype, self._tokens = device, dtype, tokens
        self.layers, width = sizes.depth, sizes.width
        self.heads = Heads(queries=sizes.heads, keys=sizes.kv_heads, size=sizes.head_dim)
        size, attended = sizes.head_dim, sizes.heads * sizes.head_dim
        outputs = (sizes.heads + 2 * sizes.kv_heads) * size
        self.stream = self._stream(width)
        self.turn = self._turn(tokens)
        self.row, self.bias = self._draw(width), self._draw(max(outputs, 2 * sizes.mlp_width))
        rows = self.stream.x.shape[0]
        self.hidden = self._draw(rows, sizes.mlp_width).to(dtype)
        self.mixed = self._draw(rows, attended).to(dtype)
        self.queries = self._draw(1, sizes.heads, tokens, size).to(dtype)
        own, ahead = (1, sizes.kv_heads, tokens, size), (1, sizes.kv_heads, prefix, size)
        self.own = [self._draw(*own).to(dtype) for _ in range(2)]
        self.ahead = [self._draw(self.layers, *ahead).to(dtype) for _ in range(2)]
        self.valid = torch.ones(1, prefix, dtype=torch.int8, device=device)
        self.valid[:, -prefix // 8 :] = 0
        self.shapes = {
            'project': (outputs, width),
            'add_attended': (width, attended),
            'feed': (2 * sizes.mlp_width, width),
            'add_fed': (width, sizes.mlp_width),
        }
        self._weights: dict[str, Tensor] = {}
        self.calls: dict[str, Call] = {
            'prepare': self._prepare,
            'project': self._project,
            'attend': self._attend,
            'add_attended': partial(self._add, name='add_attended'),
            'feed': self._feed,
            'add_fed': partial(self._add, name='add_fed'),
            'velocity': self._velocity,
            'add_norm': self._add_norm,
            'rotate': self._rotate,
            'look': self._look,
            'geglu': lambda op, i: (op(self.hidden),),
        }

    def chain(self, ops: PiOps) -> tuple[Tensor, ...]:
        """All layers, one after another, as a step has them."""
        stream, row = self._copy(), self.row
        for i in range(self.layers):
            qkv, out, opened, down = (self.weight(name, i) for name in self.shapes)
            following = self.weight('project', (i + 1) % self.layers)
            own = ops.project(stream, qkv, self._bias(0), self.turn, self.heads, ahead=out)
            ahead = (self.ahead[0][i], self.ahead[1][i])
            mixed = ops.attend(*own, *ahead, self.valid, ahead=opened)
            ops.add_attended(stream, mixed, out, row, row, ahead=down)
            hidden = ops.feed(stream, opened, self._bias(1), ahead=following)
            ops.add_fed(stream, hidden, down, row, row)
        return (stream.x[: stream.rows],)

    def weight(self, name: str, i: int) -> Tensor:
        """Of layer ``i``; drawn once for all layers."""
        if name not in self._weights:
            shape = self.shapes[name]
            drawn = self._draw(self.layers, *shape) * shape[1] ** -0.5
            self._weights[name] = drawn.to(self._dtype)
        return self._weights[name][i]

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random, device=self._device)

    def _bias(self, which: int) -> Tensor:
        return self.bias[: self.shapes[('project', 'feed')[which]][0]]

    def _turn(self, rows: int) -> Turn:
        angles = self._draw(rows, self.heads.size // 2)
        return Turn(cos=angles.cos(), sin=angles.sin())

    def _stream(self, width: int) -> Stream:
        stream = make_stream(
            samples=1, tokens=self._tokens, width=width, dtype=self._dtype, device=self._device
        )
        PLAIN.prepare(stream, self._draw(self._tokens, width), self._draw(width))
        return stream

    def _prepare(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        stream = self._copy()
        op(stream, self.stream.x[: stream.rows] + 1, self.row)
        return _seen(stream)

    def _project(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        found = op(self.stream, self.weight('project', i), self._bias(0), self.turn, self.heads)
        return tuple(found)

    def _attend(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        ahead = (self.ahead[0][i], self.ahead[1][i])
        return (op(self.queries, *self.own, *ahead, self.valid)[: self._tokens],)

    def _add(self, op: Callable[..., Any], i: int, *, name: str) -> tuple[Tensor, ...]:
        stream = self._copy() if i == 0 else self.stream
        x = self.hidden if name == 'add_fed' else self.mixed
        # Later layers only for their time: a gate of 0 leaves the stream as it is.
        gate = self.row if i == 0 else self.row * 0
        op(stream, x, self.weight(name, i), gate, self.row)
        return _seen(stream)

    def _feed(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        return (op(self.stream, self.weight('feed', i), self._bias(1))[: self._tokens],)

    def _velocity(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        weight = self.weight('add_attended', 0)[:32].float().repeat(1, 8)[:, : self.row.numel()]
        bias = self.row[:32].contiguous()
        return (
            op(self.stream, self.row, self.row, weight.contiguous(), bias, tokens=self._tokens),
        )

    def _add_norm(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        streams = [self.stream.x.clone() for _ in range(2)]
        y, row = self.stream.scaled, self.row
        plain = op(streams[0], y, row, dtype=self._dtype)
        centred = op(streams[1], y, row, added=row, bias=row, dtype=self._dtype)
        return plain, centred, *streams

    def _rotate(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        outputs = self.shapes['project'][0]
        packed = self.hidden.new_empty(self._tokens, outputs).copy_(self.bias[:outputs])
        keys, values = (torch.empty_like(x) for x in self.own)
        return op(packed, self.turn, self.heads, keys, values), keys, values

    def _look(self, op: Callable[..., Any], i: int) -> tuple[Tensor, ...]:
        keys, values = self.ahead[0][i], self.ahead[1][i]
        queries = keys.repeat_interleave(self.heads.queries // self.heads.keys, 1).contiguous()
        return (op(queries, keys, values, self.valid),)

    def _copy(self) -> Stream:
        names = ('x', 'scaled', 'squares', 'arrivals')
        return replace(self.stream, **{name: getattr(self.stream, name).clone() for name in names})


def _seen(stream: Stream) -> tuple[Tensor, ...]:
    rows = stream.rows
    squares = stream.squares[: stream.tiles, :rows].sum(dim=0)
    return stream.x[:rows], stream.scaled[:rows], squares

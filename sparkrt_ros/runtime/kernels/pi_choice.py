"""Picks the operations of a fused Pi0 or Pi0.5 on a device, after trying and timing them there.

An operation that fails or computes something else is replaced by the plain one, by name and with
the reason. Settings are timed inside a CUDA graph over the weights of as many layers as there are,
so that weights come from memory and launches cost nothing, as when they serve.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.turns import CAPTURES
from sparkrt_ros.runtime.checkpoint.pi_sizes import GemmaSizes
from sparkrt_ros.runtime.kernels.pi_ops import (
    PLAIN,
    Heads,
    PiOps,
    Stream,
    Turn,
    first_line,
    make_stream,
)

TOLERANCE = 0.03
"""Largest difference from the plain operation, over the largest value: a few roundings to bf16."""
GAIN = 1.03
"""How much faster a later setting has to be: noise of a few percent must change no choice."""
STEP = ('project', 'attend', 'add_attended', 'feed', 'add_fed')
_REPLAYS = 7


@dataclass(frozen=True, kw_only=True)
class Choice:
    """ops: one form of every operation. notes: settings and refusals, for the receipt."""

    ops: PiOps
    notes: tuple[str, ...]


@functools.cache
def choose_pi_ops(
    sizes: GemmaSizes, *, device: torch.device, dtype: torch.dtype, tokens: int, prefix: int
) -> Choice:
    """Return the best operations here; the same ones for the same arguments in one process.

    sizes: of the expert. tokens: of one sample of it. prefix: tokens of a usual prefix.
    """
    if device.type != 'cuda':
        return Choice(ops=PLAIN, notes=(f'no kernels are known for {device.type}',))
    try:
        from sparkrt_ros.runtime.kernels.pi_triton import CANDIDATES, TritonOps
    except (ImportError, RuntimeError) as error:
        return Choice(ops=PLAIN, notes=(f'triton: {first_line(error)}',))
    trial = Trial(sizes, device=device, dtype=dtype, tokens=tokens, prefix=prefix)
    chosen: dict[str, Callable[..., Any]] = {}
    settings: dict[str, Any] = {}
    notes: list[str] = []
    with torch.inference_mode(), torch.cuda.device(device):
        for name, call in trial.calls.items():
            best = None
            for setting in CANDIDATES.get(name, (None,)):
                one = {} if setting is None else {name: setting}
                op = getattr(TritonOps(settings=one).ops(), name)
                reason, seconds = judge(
                    call,
                    op,
                    getattr(PLAIN, name),
                    timed=setting is not None,
                    layers=trial.layers,
                )
                if reason:
                    notes.append(f'{name} {setting or ""}: {reason}')
                elif best is None or seconds * GAIN < best[0]:
                    best = (seconds, setting, op)
            if best is not None:
                chosen[name] = best[2]
                if best[1] is not None:
                    settings[name] = best[1]
                    notes.append(f'{name} {best[1]}: {best[0] * 1e6:.1f} us')
            torch.cuda.empty_cache()
        ops = replace(PLAIN, **chosen)
        if set(STEP) <= chosen.keys():
            ops, note = _overlap(ops, TritonOps(settings=settings, overlapped=True).ops(), trial)
            notes.append(note)
    return Choice(ops=ops, notes=tuple(notes))


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
        stream = self._copy()
        for i in range(self.layers):
            own = ops.project(
                stream, self.weight('project', i), self._bias(0), self.turn, self.heads
            )
            mixed = ops.attend(*own, self.ahead[0][i], self.ahead[1][i], self.valid)
            ops.add_attended(stream, mixed, self.weight('add_attended', i), self.row, self.row)
            hidden = ops.feed(stream, self.weight('feed', i), self._bias(1))
            ops.add_fed(stream, hidden, self.weight('add_fed', i), self.row, self.row)
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


def judge(
    call: Call,
    op: Callable[..., Any],
    plain: Callable[..., Any],
    *,
    timed: bool,
    layers: int,
) -> tuple[str, float]:
    """Why an operation cannot serve, or nothing; and its seconds where they are asked for."""
    try:
        found, wanted = call(op, 0), call(plain, 0)
        for one, other in zip(found, wanted, strict=True):
            error = float((one.float() - other.float()).abs().max())
            if not error <= TOLERANCE * float(other.float().abs().max()):
                return f'differs from the plain operation by {error:.2g}', 0.0
        seconds = captured_seconds(lambda: [call(op, i) for i in range(layers)]) if timed else 0.0
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler may raise whatever it likes
        return f'fails: {first_line(error)}', 0.0
    return '', seconds / layers


def captured_seconds(run: Callable[[], object]) -> float:
    """The shortest of a few replays of what ``run`` launches."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        capture = torch.cuda.graph(graph, stream=stream, capture_error_mode='thread_local')
        with CAPTURES.alone(), capture:
            run()
        times = []
        for _ in range(_REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    torch.cuda.current_stream().wait_stream(stream)
    return float(min(times))


def _overlap(ops: PiOps, overlapped: PiOps, trial: Trial) -> tuple[PiOps, str]:
    """Take overlapped launches where they give the same bits sooner."""
    if torch.cuda.get_device_capability()[0] < 9:
        return ops, 'launches one by one: they overlap from compute capability 9 on'
    swapped = {name: getattr(overlapped, name) for name in (*STEP, 'velocity')}
    candidate = replace(ops, **swapped)
    try:
        if not _same(trial.chain(candidate), trial.chain(ops)):
            return ops, 'launches one by one: overlapped ones differ'
        times = [captured_seconds(partial(trial.chain, one)) for one in (ops, candidate)]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a driver may raise whatever it likes
        return ops, f'launches one by one: overlapped ones fail: {first_line(error)}'
    told = ', '.join(f'{seconds / trial.layers * 1e6:.1f} us' for seconds in times)
    if times[1] * GAIN < times[0]:
        return candidate, f'overlapped launches; a layer one by one and overlapped: {told}'
    return ops, f'launches one by one; a layer one by one and overlapped: {told}'


def _same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def _seen(stream: Stream) -> tuple[Tensor, ...]:
    rows = stream.rows
    squares = stream.squares[: stream.tiles, :rows].sum(dim=0)
    return stream.x[:rows], stream.scaled[:rows], squares

"""Kernels of the fused Pi0 and Pi0.5 against plain operators in float32 sums, on fresh inputs.

The same functions run on a CUDA device and, with ``TRITON_INTERPRET=1`` on a machine without one,
in Triton's interpreter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from sparkrt_ros.runtime.device import fp32_products
from sparkrt_ros.runtime.kernels.pi_ops import PLAIN, Heads, PiOps, Stream, Turn, make_stream

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
# Of the largest value: a bf16 input of a sum is rounded to 8 bits of mantissa.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# The interpreter does not know products of bfloat16; on a device nothing else is served.
DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.bfloat16]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One expert, small or as large as the real one."""

    width: int = 64
    inner: int = 128
    heads: Heads = field(default_factory=lambda: Heads(queries=4, keys=1, size=32))
    tokens: int = 7
    prefix: int = 45
    samples: int = 1


SMALL = Sizes()
SHAPES = {
    'small': SMALL,
    'two samples': replace(SMALL, samples=2, tokens=40),
    'shared less': replace(SMALL, heads=Heads(queries=4, keys=2, size=32), prefix=130),
}
REAL = Sizes(
    width=1024, inner=4096, heads=Heads(queries=8, keys=1, size=256), tokens=50, prefix=968
)
if not INTERPRETED:
    SHAPES |= {'real': REAL, 'guided': replace(REAL, samples=2, tokens=51, prefix=562)}


@pytest.fixture(params=[pytest.param('cuda', marks=pytest.mark.gpu), 'interpreter'])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == 'interpreter' and not INTERPRETED:
        pytest.skip("Triton's interpreter is not on: set TRITON_INTERPRET=1")
    pytest.importorskip('triton')
    return torch.device('cpu' if request.param == 'interpreter' else 'cuda')


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=SHAPES)
def sizes(request: pytest.FixtureRequest) -> Sizes:
    return SHAPES[request.param]


WAYS = {
    'one by one': {},
    'overlapped': {'overlapped': True},
    'weights read ahead': {'overlapped': True, 'fetching': True},
}


@pytest.fixture(params=WAYS)
def ops(request: pytest.FixtureRequest, device: torch.device) -> PiOps:
    from sparkrt_ros.runtime.kernels.pi_triton import TritonOps

    way = WAYS[request.param]
    if way and (INTERPRETED or torch.cuda.get_device_capability()[0] < 9):
        pytest.skip('overlapped launches need compute capability 9')
    return TritonOps(**way).ops()


class Draw:
    """Fresh random tensors on the device."""

    def __init__(self, device: torch.device) -> None:
        self.random = torch.Generator()
        self.random.seed()
        self.device = device

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.random).to(self.device, dtype)


@pytest.fixture
def draw(device: torch.device) -> Draw:
    return Draw(device)


def stream_of(sizes: Sizes, draw: Draw, dtype: torch.dtype) -> Stream:
    """A stream with values, noted in several tiles as kernels do it."""
    stream = make_stream(
        samples=sizes.samples,
        tokens=sizes.tokens,
        width=sizes.width,
        dtype=dtype,
        device=draw.device,
    )
    PLAIN.prepare(stream, draw(stream.rows, sizes.width), draw(sizes.width))
    stream.squares[:4] = stream.squares[0] / 4
    stream.tiles = 4
    return stream


def copy(stream: Stream) -> Stream:
    tensors = ('x', 'scaled', 'squares', 'arrivals')
    return replace(stream, **{name: getattr(stream, name).clone() for name in tensors})


def turn_of(rows: int, size: int, draw: Draw) -> Turn:
    angles = draw(rows, size // 2)
    return Turn(cos=angles.cos(), sin=angles.sin())


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape
    error = (found.double() - wanted.double()).abs().max().item()
    assert error <= TOLERANCES[dtype] * wanted.double().abs().max().item()


def assert_streams(found: Stream, wanted: Stream, dtype: torch.dtype) -> None:
    rows = wanted.rows
    assert_near(found.x[:rows], wanted.x[:rows], dtype)
    assert_near(found.scaled[:rows], wanted.scaled[:rows], dtype)
    sums = [one.squares[: one.tiles, :rows].sum(dim=0) for one in (found, wanted)]
    assert_near(*sums, dtype)
    assert not found.arrivals.any()


@pytest.fixture(autouse=True)
def full_products():
    with fp32_products(allow_tf32=False), torch.inference_mode():
        yield


def test_a_step_begins(ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype) -> None:
    wanted = stream_of(sizes, draw, dtype)
    found = copy(wanted)
    x, grow = draw(wanted.rows, sizes.width, dtype=dtype), draw(sizes.width)
    PLAIN.prepare(wanted, x, grow)
    ops.prepare(found, x, grow)
    assert_streams(found, wanted, dtype)


def test_queries_keys_and_values(ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype) -> None:
    stream, heads = stream_of(sizes, draw, dtype), sizes.heads
    outputs = (heads.queries + 2 * heads.keys) * heads.size
    weight = draw(outputs, sizes.width, dtype=dtype) * sizes.width**-0.5
    bias, turn = draw(outputs), turn_of(stream.rows, heads.size, draw)
    found = ops.project(stream, weight, bias, turn, heads, ahead=weight)
    wanted = PLAIN.project(stream, weight, bias, turn, heads)
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other, dtype)


@pytest.mark.parametrize('state_first', [False, True])
def test_attention_to_a_prefix_and_to_each_other(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype, state_first: bool
) -> None:
    heads = sizes.heads
    own = (sizes.samples, heads.keys, sizes.tokens, heads.size)
    ahead = (sizes.samples, heads.keys, sizes.prefix, heads.size)
    queries = 2 * draw(sizes.samples, heads.queries, sizes.tokens, heads.size, dtype=dtype)
    tensors = [draw(*shape, dtype=dtype) for shape in (own, own, ahead, ahead)]
    valid = (torch.arange(sizes.prefix) < sizes.prefix - 9).to(draw.device, torch.int8)
    valid = valid.repeat(sizes.samples, 1)
    valid[0, 3:5] = 0
    ahead = tensors[0]
    found = ops.attend(queries, *tensors, valid, state_first=state_first, ahead=ahead)
    wanted = PLAIN.attend(queries, *tensors, valid, state_first=state_first)
    rows = sizes.samples * sizes.tokens
    assert_near(found[:rows], wanted[:rows], dtype)
    # What is not valid may be anything.
    for tensor in tensors[2:]:
        tensor[:, :, -9:] = 1e4
    assert torch.equal(
        found[:rows], ops.attend(queries, *tensors, valid, state_first=state_first)[:rows]
    )


def test_a_prefix_sees_itself(ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype) -> None:
    heads = sizes.heads
    queries, keys, values = (
        draw(sizes.samples, count, sizes.prefix, heads.size, dtype=dtype)
        for count in (heads.queries, heads.keys, heads.keys)
    )
    valid = torch.ones(sizes.samples, sizes.prefix, dtype=torch.int8, device=draw.device)
    valid[:, -5:] = 0
    assert_near(
        ops.look(queries, keys, values, valid), PLAIN.look(queries, keys, values, valid), dtype
    )


def test_the_feed_forward_network_opens(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype
) -> None:
    stream = stream_of(sizes, draw, dtype)
    weight = draw(2 * sizes.inner, sizes.width, dtype=dtype) * sizes.width**-0.5
    bias = draw(2 * sizes.inner)
    rows = stream.rows
    found, wanted = (one.feed(stream, weight, bias, ahead=weight)[:rows] for one in (ops, PLAIN))
    assert_near(found, wanted, dtype)


@pytest.mark.parametrize('name', ['add_attended', 'add_fed'])
def test_sums_are_added_to_the_stream_and_give_the_same_bits(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype, name: str
) -> None:
    wanted = stream_of(sizes, draw, dtype)
    found, again = copy(wanted), copy(wanted)
    inner = sizes.inner if name == 'add_fed' else sizes.heads.queries * sizes.heads.size
    x = draw(wanted.x.shape[0], inner, dtype=dtype)
    weight = draw(sizes.width, inner, dtype=dtype) * inner**-0.5
    gate, grow = draw(sizes.width), draw(sizes.width)
    getattr(PLAIN, name)(wanted, x, weight, gate, grow)
    for one in (found, again):
        getattr(ops, name)(one, x, weight, gate, grow, ahead=weight)
    assert_streams(found, wanted, dtype)
    assert torch.equal(found.x, again.x)
    assert torch.equal(found.squares, again.squares)


def test_every_setting_computes_the_same(sizes: Sizes, draw: Draw, dtype: torch.dtype) -> None:
    from sparkrt_ros.runtime.kernels.pi_settings import CANDIDATES
    from sparkrt_ros.runtime.kernels.pi_triton import TritonOps

    if sizes not in (SMALL, REAL):
        pytest.skip('one small and one real size are enough')
    wanted = stream_of(sizes, draw, dtype)
    x = draw(wanted.x.shape[0], sizes.inner, dtype=dtype)
    weight = draw(sizes.width, sizes.inner, dtype=dtype) * sizes.inner**-0.5
    gate, grow = draw(sizes.width), draw(sizes.width)
    start = copy(wanted)
    PLAIN.add_fed(wanted, x, weight, gate, grow)
    for setting in CANDIDATES['add_fed']:
        found = copy(start)
        TritonOps(settings={'add_fed': setting}).ops().add_fed(found, x, weight, gate, grow)
        assert_streams(found, wanted, dtype)


def test_the_last_rows_become_a_velocity(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype
) -> None:
    stream = stream_of(sizes, draw, dtype)
    grow, shift, bias = draw(sizes.width), draw(sizes.width), draw(32)
    weight = draw(32, sizes.width) * sizes.width**-0.5
    tokens = sizes.tokens - 1
    found, wanted = (
        one.velocity(stream, grow, shift, weight, bias, tokens=tokens) for one in (ops, PLAIN)
    )
    assert_near(found, wanted, torch.float32)


@pytest.mark.parametrize('centred', [False, True])
@pytest.mark.parametrize('added', [False, True])
def test_norms_of_the_prefix(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype, centred: bool, added: bool
) -> None:
    rows, width = 11, sizes.width + 8
    stream, weight = draw(rows, width) + 1, draw(width)
    y = draw(rows, width, dtype=dtype) if added else None
    extra = {'bias': draw(width), 'added': draw(width)} if centred else {}
    streams = [stream.clone(), stream.clone()]
    found, wanted = (
        one.add_norm(kept, y, weight, dtype=dtype, **extra)
        for one, kept in zip((ops, PLAIN), streams, strict=True)
    )
    assert_near(found, wanted, dtype)
    assert_near(*streams, torch.float32)


@pytest.mark.parametrize('queries', [True, False])
def test_rows_are_rotated_and_sorted(
    ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype, queries: bool
) -> None:
    heads = sizes.heads if queries else replace(sizes.heads, queries=0)
    rows = sizes.samples * sizes.prefix
    packed = draw(rows, (heads.queries + 2 * heads.keys) * heads.size, dtype=dtype)
    turn = turn_of(rows, heads.size, draw)
    shape = (sizes.samples, heads.keys, sizes.prefix, heads.size)
    results = []
    for one in (ops, PLAIN):
        keys, values = (torch.zeros(shape, dtype=dtype, device=draw.device) for _ in range(2))
        results.append((one.rotate(packed, turn, heads, keys, values), keys, values))
    for found, wanted in zip(*results, strict=True):
        if wanted.numel():
            assert_near(found, wanted, dtype)


def test_gates_of_the_prefix(ops: PiOps, sizes: Sizes, draw: Draw, dtype: torch.dtype) -> None:
    packed = 3 * draw(9, 2 * sizes.inner, dtype=dtype)
    assert_near(ops.geglu(packed), PLAIN.geglu(packed), dtype)

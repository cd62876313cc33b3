"""Recorded regions on a GPU: what eager execution gives, at any input, whatever happens around."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import Region, RegionFunction
from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend
from sparkrt_ros.runtime.errors import BackendError

TOLERANCE = 1e-5
"""Of fp32, relative to the largest value."""

pytestmark = pytest.mark.gpu


@pytest.fixture
def backend() -> CudaGraphBackend:
    return CudaGraphBackend(device=torch.device('cuda', 0))


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator('cuda').manual_seed(0)


def draw(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, device='cuda', generator=random)


def assert_near(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max().item()
    assert (found - wanted).abs().max().item() <= TOLERANCE * scale


def network() -> Region:
    weights = torch.randn(64, 64, device='cuda', generator=torch.Generator('cuda').manual_seed(1))

    def compute(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.nn.functional.gelu(x @ weights)
        return hidden, torch.softmax(hidden @ weights, dim=-1)

    return Region(name='network', fn=compute, capturable=True)


def scale_region(**options: object) -> Region:
    """x times the sum of the constants; two inputs."""
    return Region(name='scale', fn=lambda x, c: x * c.sum(), capturable=True, **options)


def report(backend: CudaGraphBackend, name: str = 'network') -> dict[str, object]:
    return backend.report()[name]


def test_each_replay_computes_from_its_own_inputs(
    backend: CudaGraphBackend, random: torch.Generator
) -> None:
    region = network()
    run = backend.compile(region)
    for _ in range(20):
        x = draw(random, 8, 64)
        for found, wanted in zip(run(x), region.fn(x), strict=True):
            assert_near(found, wanted)
    assert report(backend)['recordings'] == 1
    assert report(backend)['replays'] == 20
    assert report(backend)['eager_calls'] == 0


def test_each_shape_has_its_own_recording(
    backend: CudaGraphBackend, random: torch.Generator
) -> None:
    region = network()
    run = backend.compile(region)
    for rows in (1, 3, 8, 3, 1, 8, 8, 1):
        x = draw(random, rows, 64)
        for found, wanted in zip(run(x), region.fn(x), strict=True):
            assert_near(found, wanted)
    assert report(backend)['recordings'] == 3
    assert report(backend)['replays'] == 8


def changed_dtype(x: Tensor) -> Tensor:
    return x.to(torch.float64)


def changed_strides(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def changed_shape(x: Tensor) -> Tensor:
    return x[:4].contiguous()


CHANGES = [changed_dtype, changed_strides, changed_shape]


def doubled() -> Region:
    return Region(name='network', fn=lambda x: x * 2 + 1, capturable=True)


@pytest.mark.parametrize('change', CHANGES)
def test_another_kind_of_input_is_recorded_anew(
    backend: CudaGraphBackend, random: torch.Generator, change: RegionFunction
) -> None:
    run = backend.compile(doubled())
    x = draw(random, 8, 64)
    run(x)
    other = change(x)
    found = run(other)
    assert found.dtype == other.dtype
    assert torch.equal(found, other * 2 + 1)
    assert report(backend)['recordings'] == 2


@pytest.mark.parametrize('change', [*CHANGES, Tensor.cpu])
def test_another_kind_of_input_is_refused_after_sealing(
    backend: CudaGraphBackend, random: torch.Generator, change: RegionFunction
) -> None:
    run = backend.compile(doubled())
    x = draw(random, 8, 64)
    run(x)
    backend.seal()
    with pytest.raises(BackendError, match='after sealing'):
        run(change(x))
    assert torch.equal(run(x), x * 2 + 1)
    assert report(backend)['recordings'] == 1


def test_an_unchanged_invariant_is_not_copied_again(backend: CudaGraphBackend) -> None:
    run = backend.compile(scale_region(invariant_from=1))
    x, constants = torch.ones(4, device='cuda'), torch.full((3,), 2.0, device='cuda')
    assert run(x, constants).tolist() == [6.0] * 4
    # Behind torch's back: what is not copied cannot be seen to have changed.
    constants.data.fill_(5.0)
    assert run(x * 2, constants).tolist() == [12.0] * 4


def test_an_invariant_changed_in_place_is_copied(backend: CudaGraphBackend) -> None:
    run = backend.compile(scale_region(invariant_from=1))
    x, constants = torch.ones(4, device='cuda'), torch.full((3,), 2.0, device='cuda')
    run(x, constants)
    constants.fill_(7.0)
    assert run(x, constants).tolist() == [21.0] * 4


def test_a_replaced_invariant_is_copied(backend: CudaGraphBackend) -> None:
    run = backend.compile(scale_region(invariant_from=1))
    x = torch.ones(4, device='cuda')
    run(x, torch.full((3,), 2.0, device='cuda'))
    for value in (3.0, 4.0):
        assert run(x, torch.full((3,), value, device='cuda')).tolist() == [3 * value] * 4
    assert report(backend, 'scale')['recordings'] == 1


def test_an_invariant_without_versions_is_always_copied(backend: CudaGraphBackend) -> None:
    run = backend.compile(scale_region(invariant_from=1))
    with torch.inference_mode():
        x, constants = torch.ones(4, device='cuda'), torch.full((3,), 2.0, device='cuda')
        run(x, constants)
        constants.fill_(7.0)
        assert run(x, constants).tolist() == [21.0] * 4


def test_a_region_on_the_host_takes_and_gives_host_memory(backend: CudaGraphBackend) -> None:
    def compute(pixels: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        assert pixels.is_cuda
        assert offset.is_cuda
        return pixels.float() / 255 + offset, pixels.sum().reshape(1)

    run = backend.compile(Region(name='host', fn=compute, capturable=True, on_host=True))
    random = torch.Generator().manual_seed(0)
    for _ in range(10):
        pixels = torch.randint(0, 256, (6, 8), dtype=torch.uint8, generator=random)
        offset = torch.randn(1, generator=random)
        scaled, total = run(pixels, offset)
        assert scaled.device.type == total.device.type == 'cpu'
        assert_near(scaled, pixels.float() / 255 + offset)
        assert total.item() == pixels.sum().item()
    assert report(backend, 'host')['recordings'] == 1
    assert report(backend, 'host')['replays'] == 10


def test_a_region_on_the_host_reads_pinned_memory_at_each_replay(
    backend: CudaGraphBackend,
) -> None:
    region = Region(name='host', fn=lambda x: x + 1, capturable=True, on_host=True)
    run = backend.compile(region)
    pinned = torch.zeros(4, pin_memory=True)
    for value in (1.0, 2.0, 3.0):
        pinned.fill_(value)
        assert run(pinned).tolist() == [value + 1] * 4
    assert pinned.tolist() == [3.0] * 4


def test_a_region_that_cannot_be_captured_runs_eagerly_and_says_so(
    backend: CudaGraphBackend, caplog: pytest.LogCaptureFixture
) -> None:
    region = Region(name='steps', fn=lambda x: x * int(x.sum().item()), capturable=False)
    run = backend.compile(region)
    for value in (1.0, 2.0):
        assert run(torch.full((2,), value, device='cuda')).tolist() == [2 * value * value] * 2
    found = report(backend, 'steps')
    assert found['form'] == 'eager'
    assert found['reason'] == 'the region is not capturable'
    assert found['eager_calls'] == 2
    assert found['recordings'] == 0
    assert not found['failed']
    assert not caplog.records


def test_a_failed_capture_falls_back_with_one_warning_a_reason_and_a_count(
    backend: CudaGraphBackend, random: torch.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading a value on the host waits for the device, which a capture does not allow."""
    region = Region(name='peeking', fn=lambda x: x * x.sum().item(), capturable=True)
    run = backend.compile(region)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            x = draw(random, 8)
            assert_near(run(x), region.fn(x))
    found = report(backend, 'peeking')
    assert found['form'] == 'eager'
    assert str(found['reason']).startswith('capture failed: ')
    assert found['failed']
    assert found['eager_calls'] == 5
    assert found['recordings'] == found['replays'] == 0
    assert len(caplog.records) == 1
    assert 'peeking' in caplog.text


def test_a_failed_capture_leaves_the_device_usable(
    backend: CudaGraphBackend, random: torch.Generator
) -> None:
    failing = Region(name='peeking', fn=lambda x: x * x.sum().item(), capturable=True)
    backend.compile(failing)(draw(random, 8))
    region = network()
    run = backend.compile(region)
    for _ in range(5):
        x = draw(random, 8, 64)
        for found, wanted in zip(run(x), region.fn(x), strict=True):
            assert_near(found, wanted)
    assert report(backend)['recordings'] == 1
    torch.cuda.synchronize()


def test_two_regions_do_not_overwrite_each_other(
    backend: CudaGraphBackend, random: torch.Generator
) -> None:
    regions = [
        Region(name='plus', fn=lambda x: x + 1, capturable=True),
        Region(name='times', fn=lambda x: x * 3, capturable=True),
    ]
    plus, times = (backend.compile(region) for region in regions)
    for _ in range(10):
        a, b = draw(random, 8, 64), draw(random, 8, 64)
        first, second = plus(a), times(b)
        assert torch.equal(first, a + 1)
        assert torch.equal(second, b * 3)
        assert torch.equal(times(plus(a)), (a + 1) * 3)


def test_fp32_is_exact_whatever_the_switches_say(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, 'allow_tf32', True)
    a, b = draw(random, 512, 512), draw(random, 512, 512)
    wanted = (a.double() @ b.double()).float()
    region = Region(name='product', fn=torch.matmul, capturable=True)
    device = torch.device('cuda', 0)
    exact = CudaGraphBackend(device=device).compile(region)(a, b)
    assert (exact - wanted).abs().max() <= TOLERANCE * wanted.abs().max()
    rounded = CudaGraphBackend(device=device, allow_tf32=True).compile(region)(a, b)
    assert (rounded - wanted).abs().max() > 5 * (exact - wanted).abs().max()


def test_a_recording_survives_that_others_free_the_workspaces_of_cublas(
    backend: CudaGraphBackend, random: torch.Generator
) -> None:
    """As torch.compile does when it captures."""
    region = network()
    run = backend.compile(region)
    run(draw(random, 8, 64))
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), 7.0, device='cuda') for _ in range(64)]
    for _ in range(5):
        x = draw(random, 8, 64)
        for found, wanted in zip(run(x), region.fn(x), strict=True):
            assert_near(found, wanted)
    torch.cuda.synchronize()
    assert all(bool((other == 7.0).all()) for other in others)

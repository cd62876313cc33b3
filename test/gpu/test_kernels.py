"""Own kernels against the plain operators of PyTorch, on fresh random inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.device import fp32_products
from sparkrt_ros.runtime.kernels.choose import choose_forms
from sparkrt_ros.runtime.kernels.forms import ConvWeights, Forms, PlainForms

pytestmark = pytest.mark.gpu
DEVICE = torch.device('cuda', 0)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Of the largest value: rounding to the dtype, at most three times in a row.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def full_products() -> Iterator[None]:
    with fp32_products(allow_tf32=False):
        yield


@pytest.fixture(params=DTYPES, ids=str)
def forms(request: pytest.FixtureRequest) -> Forms:
    chosen, reason = choose_forms(device=DEVICE, dtype=request.param)
    assert (chosen.name, reason) == ('triton', '')
    return chosen


@pytest.fixture
def plain(forms: Forms) -> PlainForms:
    return PlainForms(device=DEVICE, dtype=forms.dtype)


@pytest.fixture
def random() -> torch.Generator:
    generator = torch.Generator('cuda')
    generator.seed()
    return generator


def draw(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, generator=random)


def pictures(random: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return draw(random, *shape).to(dtype, memory_format=torch.channels_last)


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == dtype
    error = (found.double() - wanted.double()).abs().max().item()
    assert error <= TOLERANCES[dtype] * wanted.double().abs().max().item()


@pytest.mark.parametrize('size', [(240, 320), (7, 5), (1, 1), (2, 33)])
@pytest.mark.parametrize('channels', [64, 48])
def test_pooling_is_exact(
    forms: Forms, random: torch.Generator, size: tuple[int, int], channels: int
) -> None:
    x = pictures(random, 2, channels, *size, dtype=forms.dtype)
    found = forms.pool(x)
    assert torch.equal(found, F.max_pool2d(x, 3, stride=2, padding=1))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_pooling_hands_on_what_is_not_a_number(forms: Forms) -> None:
    x = torch.zeros(1, 64, 8, 8, device=DEVICE, dtype=forms.dtype)
    x[0, 3, 4, 4] = float('nan')
    x = x.contiguous(memory_format=torch.channels_last)
    wanted = F.max_pool2d(x, 3, stride=2, padding=1)
    assert torch.equal(forms.pool(x).isnan(), wanted.isnan())


@pytest.mark.parametrize('rows', [1, 100, 602])
@pytest.mark.parametrize('dim', [64, 512, 500, 1024])
def test_a_sum_is_normalised_as_in_fp64(
    forms: Forms, random: torch.Generator, rows: int, dim: int
) -> None:
    norm = nn.LayerNorm(dim).requires_grad_(requires_grad=False).to(DEVICE, forms.dtype)
    norm.weight.copy_(draw(random, dim))
    norm.bias.copy_(draw(random, dim))
    x, y = (3 * draw(random, rows, dim).to(forms.dtype) + 1 for _ in range(2))
    weight, bias = norm.weight.double(), norm.bias.double()
    wanted = F.layer_norm(x.double() + y.double(), (dim,), weight, bias, norm.eps)
    assert_near(forms.add_norm(x, y, norm), wanted, forms.dtype)


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize('size', [(480, 640), (5, 7)])
def test_pixels_are_cast_and_stacked(
    forms: Forms, plain: PlainForms, random: torch.Generator, count: int, size: tuple[int, int]
) -> None:
    images = [pictures(random, 1, 3, *size, dtype=torch.float32) for _ in range(count)]
    found = forms.pixels(images)
    assert torch.equal(found[:, :3], plain.pixels(images))
    assert not found[:, 3:].any()


def test_images_in_another_memory_order_are_read_right(
    forms: Forms, plain: PlainForms, random: torch.Generator
) -> None:
    images = [draw(random, 1, 3, 30, 40) for _ in range(2)]
    assert torch.equal(forms.pixels(images)[:, :3], plain.pixels(images))


def test_the_first_convolution_takes_the_widened_pixels(
    forms: Forms, plain: PlainForms, random: torch.Generator
) -> None:
    weights = ConvWeights(
        weight=draw(random, 64, 3, 7, 7).cpu() * 0.05,
        bias=draw(random, 64).cpu(),
        stride=(2, 2),
        padding=(3, 3),
        dilation=(1, 1),
    )
    images = [pictures(random, 1, 3, 96, 128, dtype=torch.float32)]
    found = forms.conv(weights).relu(forms.pixels(images))
    assert_near(found, plain.conv(weights).relu(plain.pixels(images)), forms.dtype)

"""Linear layers in 8 bits against integer arithmetic, the way into bytes, and attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_reference import (
    CPU,
    calibration,
    linear_reference,
    near_levels,
    nearest_levels,
    needs_int8,
    span,
    values_of,
)

from sparkrt_ros.runtime.kernels.forms import LinearForm, PlainForms, Wires
from sparkrt_ros.runtime.kernels.int8 import Int8Forms
from sparkrt_ros.runtime.kernels.onednn import OneDnnForms
from sparkrt_ros.runtime.kernels.to_bytes import PicturesToBytes, RowsToBytes
from sparkrt_ros.runtime.precision.calibration import Range

RANGES = calibration(x=span(-3, 2), y=span(0, 5), z=span(-0.2, 5))
FLOAT_ENDS = st.floats(-1e4, 1e4, width=32).filter(lambda value: abs(value) > 1e-3)


def forms(dtype: torch.dtype = torch.float32) -> Int8Forms:
    return Int8Forms(RANGES, device=CPU, attention_dtype=dtype)


def operands(
    inputs: int, outputs: int, rows: int = 9
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fresh random weight, bias and input."""
    weight = torch.randn(outputs, inputs) / np.sqrt(inputs)
    x = near_levels(np.random.default_rng(), RANGES.levels('x'), (rows, inputs), axis=1)
    return weight, torch.randn(outputs), torch.from_numpy(x)


def assert_near(found: torch.Tensor, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@needs_int8
@pytest.mark.parametrize('sizes', [(64, 96), (512, 32), (30, 7), (14, 512)])
@pytest.mark.parametrize('has_bias', [False, True])
def test_a_product_equals_integer_arithmetic(sizes: tuple[int, int], has_bias: bool) -> None:
    weight, bias, x = operands(*sizes)
    layer = forms().linear(weight, bias if has_bias else None, wires=Wires(reads='x'))
    found = layer(x)
    assert found.dtype == torch.float32
    wanted = linear_reference(x.numpy(), weight.numpy(), RANGES.levels('x'))
    assert_near(found, wanted + (bias.numpy() if has_bias else 0))


@needs_int8
def test_after_a_relu_bytes_may_follow() -> None:
    weight, bias, x = operands(64, 96)
    wires = Wires(reads='x', writes='y')
    found = forms().linear(weight, bias, activation='relu', wires=wires)(x)
    wanted = linear_reference(x.numpy(), weight.numpy(), RANGES.levels('x')) + bias.numpy()
    levels = RANGES.levels('y')
    difference = np.abs(values_of(found, levels) - np.clip(wanted, 0, 255 * levels.step[0]))
    assert difference.max() <= 0.501 * levels.step[0]


@needs_int8
def test_without_a_name_for_them_floats_follow_a_relu() -> None:
    weight, bias, x = operands(64, 96)
    found = forms().linear(weight, bias, activation='relu', wires=Wires(reads='x'))(x)
    wanted = linear_reference(x.numpy(), weight.numpy(), RANGES.levels('x')) + bias.numpy()
    assert_near(found, np.maximum(wanted, 0))


@needs_int8
def test_gelu_is_the_exact_one_and_stays_floating_point() -> None:
    weight, bias, x = operands(64, 96)
    wires = Wires(reads='x', writes='z')
    found = forms().linear(weight, bias, activation='gelu', wires=wires)(x)
    wanted = linear_reference(x.numpy(), weight.numpy(), RANGES.levels('x')) + bias.numpy()
    assert_near(found, F.gelu(torch.from_numpy(wanted)).numpy())


@needs_int8
def test_bytes_from_a_layer_before_are_read_as_they_are() -> None:
    weight, bias, _ = operands(64, 96)
    x = torch.randint(0, 256, (9, 64), dtype=torch.uint8)
    found = forms().linear(weight, bias, wires=Wires(reads='y'))(x)
    levels = RANGES.levels('y')
    meant = (x.numpy() * levels.step[0]).astype(np.float32)
    assert_near(found, linear_reference(meant, weight.numpy(), levels) + bias.numpy())


def test_layers_that_no_wire_names_stay_fp32() -> None:
    weight, bias, x = operands(14, 32, rows=1)
    layer: LinearForm = forms().linear(weight, bias)
    torch.testing.assert_close(layer(x), F.linear(x, weight, bias))
    torch.testing.assert_close(forms().head(weight, bias)(x), F.linear(x, weight, bias))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_attention_takes_and_gives_fp32(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(4, rows, 16) for rows in (5, 11, 11))
    found = forms(dtype).attend(q, k, v)
    assert found.dtype == torch.float32
    wanted = PlainForms(device=CPU, dtype=torch.float32).attend(q, k, v)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@given(ends=st.tuples(FLOAT_ENDS, FLOAT_ENDS), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_rows_become_their_nearest_levels(ends: tuple[float, float], seed: int) -> None:
    low, high = sorted(ends)
    levels = span(low, high).levels()
    x = np.random.default_rng(seed).uniform(low - 1, high + 1, (7, 33)).astype(np.float32)
    found = RowsToBytes(levels)(torch.from_numpy(x)).numpy()
    exact = (x.astype(np.float64) - levels.low[0]) / levels.step[0]
    assert np.abs(found - np.clip(exact, 0, 255)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize('value', [np.inf, -np.inf, 1e30, -1e30])
def test_values_without_measure_become_the_ends(value: float) -> None:
    found = RowsToBytes(span(-3, 2).levels())(torch.full((2, 64), value))
    assert set(found.flatten().tolist()) == {255 if value > 0 else 0}


@pytest.mark.parametrize('width', [1, 5, 64])
def test_pictures_become_the_levels_of_their_channels(width: int) -> None:
    ends = Range(low=np.array([-2.0, -1, 0]), high=np.array([1.0, 1, 4]), is_final=True)
    levels = ends.levels()
    x = torch.from_numpy(np.random.default_rng().uniform(-3, 5, (2, 3, 4, width)))
    x = x.float().contiguous(memory_format=torch.channels_last)
    found = PicturesToBytes(levels, padding=(2, 3))(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    inside = found[:, :, 2:-2, 3:-3]
    exact = nearest_levels(x.numpy(), levels, axis=1)
    assert np.abs(inside.numpy() - exact).max() <= 1
    assert (inside.numpy() == exact).mean() > 0.99
    edge = nearest_levels(np.zeros((1, 3, 1, 1)), levels, axis=1)
    border = torch.ones(found.shape, dtype=torch.bool)
    border[:, :, 2:-2, 3:-3] = False
    wanted = np.broadcast_to(edge, found.shape)
    np.testing.assert_array_equal(found.numpy()[border], wanted[border])


def test_bytes_are_left_alone() -> None:
    levels = span(0, 1).levels()
    rows = torch.randint(0, 256, (4, 8), dtype=torch.uint8)
    pictures = torch.randint(0, 256, (1, 3, 4, 8), dtype=torch.uint8)
    assert RowsToBytes(levels)(rows) is rows
    assert PicturesToBytes(levels)(pictures) is pictures


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize('size', [(2, 16, 12, 10), (1, 3, 9, 7), (1, 5, 1, 1), (1, 4, 2, 3)])
def test_pooling_by_comparing_equals_the_operator(
    dtype: torch.dtype, size: tuple[int, ...]
) -> None:
    x = torch.randint(0, 256, size).to(dtype).contiguous(memory_format=torch.channels_last)
    found = OneDnnForms(device=CPU, dtype=torch.float32).pool(x)
    wanted = F.max_pool2d(x.float(), 3, stride=2, padding=1)
    assert found.dtype == dtype
    assert torch.equal(found.float(), wanted)

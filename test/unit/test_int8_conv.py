"""Convolutions in 8 bits against the same computed with plain integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from int8_reference import (
    CPU,
    calibration,
    conv_reference,
    near_levels,
    nearest_levels,
    needs_int8,
    span,
    values_of,
)

from sparkrt_ros.runtime.kernels.forms import ConvForm, ConvWeights, Wires
from sparkrt_ros.runtime.kernels.int8 import Int8Forms
from sparkrt_ros.runtime.precision.calibration import Calibration, Levels, Range

pytestmark = needs_int8

SHAPES = {
    '3x3': {'inputs': 16, 'outputs': 24, 'kernel': 3},
    '3x3 with a stride': {'inputs': 16, 'outputs': 32, 'kernel': 3, 'stride': 2},
    '3x3 dilated': {'inputs': 8, 'outputs': 16, 'kernel': 3, 'dilation': 2},
    '1x1 with a stride': {'inputs': 16, 'outputs': 32, 'kernel': 1, 'stride': 2},
    'channels that fill no register': {'inputs': 5, 'outputs': 7, 'kernel': 3},
    'pixels': {'inputs': 3, 'outputs': 64, 'kernel': 7, 'stride': 2},
}


@pytest.fixture
def rng() -> np.random.Generator:
    """Other numbers at every run, told by pytest where one fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print('seed', seed)  # noqa: T201
    return np.random.default_rng(seed)


def make_weights(
    rng: np.random.Generator,
    *,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
) -> ConvWeights:
    size = (outputs, inputs, kernel, kernel)
    weight = rng.standard_normal(size, dtype=np.float32) / np.sqrt(inputs * kernel * kernel)
    return ConvWeights(
        weight=torch.from_numpy(weight.astype(np.float32)),
        bias=torch.from_numpy(rng.standard_normal(outputs, dtype=np.float32)),
        stride=(stride, stride),
        padding=(dilation * (kernel // 2),) * 2,
        dilation=(dilation, dilation),
    )


def picture(rng: np.random.Generator, channels: int, levels: Levels) -> np.ndarray:
    return near_levels(rng, levels, (2, channels, 13, 18), axis=1)


def tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).contiguous(memory_format=torch.channels_last)


def conv(weights: ConvWeights, ranges: Calibration, **wires: str) -> ConvForm:
    forms = Int8Forms(ranges, device=CPU, attention_dtype=torch.float32)
    return forms.conv(weights, wires=Wires(**wires))


def assert_levels(found: torch.Tensor, wanted: np.ndarray, ranges: Calibration, name: str) -> None:
    """The nearest level of every value, or where two are as near, the other."""
    levels = ranges.levels(name)
    exact = nearest_levels(wanted, levels, axis=1)
    difference = found.numpy().astype(int) - exact
    assert np.abs(difference).max() <= 1
    off = difference != 0
    halfway = np.abs((wanted - levels.low[0]) / levels.step[0] % 1 - 0.5) < 1e-3
    assert not (off & ~halfway).any()
    assert off.mean() < 0.01


@pytest.mark.parametrize('name', SHAPES)
@pytest.mark.parametrize('low', [0.0, -2.0])
def test_relu_equals_integer_arithmetic(name: str, low: float, rng: np.random.Generator) -> None:
    weights = make_weights(rng, **SHAPES[name])
    ranges = calibration(x=span(low, 3), y=span(0, 4))
    x = picture(rng, weights.weight.shape[1], ranges.levels('x'))
    found = conv(weights, ranges, reads='x', writes='y').relu(tensor(x))
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    bias = weights.bias.numpy().reshape(1, -1, 1, 1)
    wanted = conv_reference(x, weights, ranges.levels('x')) + bias
    assert_levels(found, np.maximum(wanted, 0), ranges, 'y')


@pytest.mark.parametrize('name', SHAPES)
def test_a_signed_result_equals_integer_arithmetic(name: str, rng: np.random.Generator) -> None:
    weights = make_weights(rng, **SHAPES[name])
    ranges = calibration(x=span(0, 3), y=span(-5, 3))
    x = picture(rng, weights.weight.shape[1], ranges.levels('x'))
    found = conv(weights, ranges, reads='x', writes='y').plain(tensor(x))
    assert_levels(found, conv_reference(x, weights, ranges.levels('x')), ranges, 'y')


@pytest.mark.parametrize('low', [0.0, -3.0])
def test_a_shortcut_is_added_in_bytes(low: float, rng: np.random.Generator) -> None:
    weights = make_weights(rng, inputs=16, outputs=24, kernel=3)
    ranges = calibration(x=span(0, 2), side=span(low, 2.5), y=span(0, 6))
    x, side = picture(rng, 16, ranges.levels('x')), picture(rng, 24, ranges.levels('side'))
    side_levels = nearest_levels(side, ranges.levels('side'), axis=1)
    layer = conv(weights, ranges, reads='x', adds='side', writes='y')
    found = layer.add_relu(tensor(x), tensor(side_levels.astype(np.uint8)))
    bias = weights.bias.numpy().reshape(1, -1, 1, 1)
    added = ranges.levels('side').low[0] + side_levels * ranges.levels('side').step[0]
    wanted = conv_reference(x, weights, ranges.levels('x')) + bias + added
    assert_levels(found, np.maximum(wanted, 0), ranges, 'y')


def test_bytes_go_in_where_bytes_came_out(rng: np.random.Generator) -> None:
    first = make_weights(rng, inputs=16, outputs=16, kernel=3)
    second = make_weights(rng, inputs=16, outputs=8, kernel=3)
    ranges = calibration(x=span(0, 2), y=span(0, 4), z=span(0, 4))
    x = picture(rng, 16, ranges.levels('x'))
    between = conv(first, ranges, reads='x', writes='y').relu(tensor(x))
    found = conv(second, ranges, reads='y', writes='z').relu(between)
    meant = values_of(between, ranges.levels('y'))
    wanted = conv_reference(meant, second, ranges.levels('y'))
    wanted = np.maximum(wanted + second.bias.numpy().reshape(1, -1, 1, 1), 0)
    assert_levels(found, wanted, ranges, 'z')


def test_every_channel_may_have_a_range_of_its_own(rng: np.random.Generator) -> None:
    """As pixels do: their levels are those of the camera, and lose nothing."""
    mean, std = np.array([0.5, 0.3, 0.7]), np.array([0.2, 0.3, 0.1])
    pixels = rng.integers(0, 256, (2, 3, 13, 18))
    shape = (1, 3, 1, 1)
    x = ((pixels / 255 - mean.reshape(shape)) / std.reshape(shape)).astype(np.float32)
    ends = Range(low=(0 - mean) / std, high=(1 - mean) / std, is_final=True)
    ranges = calibration(x=ends, y=span(0, 4))
    assert (nearest_levels(x, ranges.levels('x'), axis=1) == pixels).all()
    weights = make_weights(rng, inputs=3, outputs=16, kernel=7, stride=2)
    found = conv(weights, ranges, reads='x', writes='y').relu(tensor(x))
    bias = weights.bias.numpy().reshape(1, -1, 1, 1)
    wanted = conv_reference(x, weights, ranges.levels('x')) + bias
    assert_levels(found, np.maximum(wanted, 0), ranges, 'y')


def test_values_beyond_the_ends_are_cut_off(rng: np.random.Generator) -> None:
    weights = make_weights(rng, inputs=16, outputs=24, kernel=3)
    ranges = calibration(x=span(0, 1), y=span(0, 0.05), z=span(-0.05, 0.05))
    beyond, end = np.full((1, 16, 5, 5), 40, np.float32), np.full((1, 16, 5, 5), 1.1, np.float32)
    layer = conv(weights, ranges, reads='x', writes='y')
    cut = layer.relu(tensor(beyond))
    assert torch.equal(cut, layer.relu(tensor(end)))
    assert set(cut.unique().tolist()) >= {0, 255}
    signed = conv(weights, ranges, reads='x', writes='z').plain(tensor(beyond))
    assert set(signed.unique().tolist()) >= {0, 255}


def test_the_largest_sums_do_not_overflow() -> None:
    """Pairs of 8-bit products exceed 16 bits, which older instructions add them up in."""
    weights = ConvWeights(
        weight=torch.ones(16, 64, 3, 3),
        bias=torch.zeros(16),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
    )
    ranges = calibration(x=Range(low=np.zeros(1), high=np.ones(1), is_final=True), y=span(0, 576))
    x = np.ones((1, 64, 6, 6), np.float32)
    found = conv(weights, ranges, reads='x', writes='y').relu(tensor(x))
    np.testing.assert_allclose(values_of(found, ranges.levels('y')), 576, rtol=0.01)


def test_zeros_give_the_bias() -> None:
    weights = make_weights(np.random.default_rng(0), inputs=8, outputs=8, kernel=3)
    for low in (0.0, -1.0):
        ranges = calibration(x=span(low, 1), y=span(0, 3))
        found = conv(weights, ranges, reads='x', writes='y').relu(torch.zeros(1, 8, 4, 4))
        wanted = np.maximum(weights.bias.numpy(), 0).reshape(1, -1, 1, 1)
        step = ranges.levels('y').step[0]
        meant = values_of(found, ranges.levels('y'))
        # What is nearest to 0 among levels that do not begin there is up to half a step off.
        slack = 0 if low == 0 else 0.6 * ranges.levels('x').step[0]
        gain = np.abs(weights.weight.numpy().sum(axis=(1, 2, 3))).max()
        assert np.abs(meant - wanted).max() <= 0.5001 * step + slack * gain


def test_weights_without_a_value_give_the_bias(rng: np.random.Generator) -> None:
    weights = make_weights(rng, inputs=8, outputs=8, kernel=3)
    weights.weight[3] = 0
    ranges = calibration(x=span(0, 1), y=span(0, 3))
    x = picture(rng, 8, ranges.levels('x'))
    found = conv(weights, ranges, reads='x', writes='y').relu(tensor(x))
    step = ranges.levels('y').step[0]
    wanted = max(float(weights.bias[3]), 0)
    assert np.abs(values_of(found, ranges.levels('y'))[:, 3] - wanted).max() <= 0.5001 * step


def test_a_second_size_of_picture_is_served_as_well(rng: np.random.Generator) -> None:
    weights = make_weights(rng, inputs=16, outputs=24, kernel=3)
    ranges = calibration(x=span(0, 2), y=span(0, 4))
    layer = conv(weights, ranges, reads='x', writes='y')
    for size in ((1, 16, 9, 9), (2, 16, 20, 11), (1, 16, 9, 9)):
        x = near_levels(rng, ranges.levels('x'), size, axis=1)
        bias = weights.bias.numpy().reshape(1, -1, 1, 1)
        wanted = conv_reference(x, weights, ranges.levels('x')) + bias
        assert_levels(layer.relu(tensor(x)), np.maximum(wanted, 0), ranges, 'y')


def test_the_same_input_gives_the_same_bytes(rng: np.random.Generator) -> None:
    weights = make_weights(rng, inputs=16, outputs=24, kernel=3)
    ranges = calibration(x=span(0, 2), y=span(0, 4))
    layer = conv(weights, ranges, reads='x', writes='y')
    x = tensor(picture(rng, 16, ranges.levels('x')))
    first = layer.relu(x)
    assert all(torch.equal(layer.relu(x), first) for _ in range(3))

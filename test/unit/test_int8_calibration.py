"""Ranges: how they are noted, what levels become of them, and which observations make them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from act_folder_factory import tiny_config
from hypothesis import given
from hypothesis import strategies as st
from int8_reference import CPU, calibration, needs_int8, span
from test_act_adapter import make_weights
from test_policy import observe

from sparkrt_ros.replay.exchange import ObservationWriter
from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.errors import BackendError, ConfigError
from sparkrt_ros.runtime.kernels.onednn import OneDnnForms
from sparkrt_ros.runtime.kernels.recording import Recorder, RecordingForms
from sparkrt_ros.runtime.observation_file import read_observations, write_observations
from sparkrt_ros.runtime.parity import compare
from sparkrt_ros.runtime.policies.act_adapter import ActAdapter, act_capabilities
from sparkrt_ros.runtime.policies.fused_resnet import FusedResNet
from sparkrt_ros.runtime.policies.resnet import ResNet
from sparkrt_ros.runtime.precision.calibration import HEADROOM, Calibration, Range
from sparkrt_ros.runtime.precision.samples import FEWEST, Samples
from sparkrt_ros.runtime.types import Observation

VALUES = st.floats(-1e6, 1e6, allow_nan=False)


@given(VALUES, VALUES)
def test_levels_hold_the_range_its_headroom_and_zero(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    levels = span(low, high).levels()
    top = levels.low + 255 * levels.step
    assert levels.step[0] > 0
    slack = 1e-6 * max(abs(low), abs(high), 1e-20)
    assert np.isfinite(np.float32(1 / levels.step[0]))
    assert levels.low[0] <= HEADROOM * min(low, 0) + slack
    assert top[0] >= HEADROOM * max(high, 0) - slack
    if low >= 0:
        assert levels.low[0] == 0


@pytest.mark.parametrize('high', [0, 5e-324, 1e-31])
def test_a_range_without_width_has_levels_nevertheless(high: float) -> None:
    levels = span(0, high).levels()
    assert (levels.low[0], levels.step[0]) == (0, 1)


def test_a_final_range_is_taken_as_it_is() -> None:
    levels = Range(low=np.array([1.0, -2]), high=np.array([3.0, 5]), is_final=True).levels()
    np.testing.assert_allclose(levels.low, [1, -2])
    np.testing.assert_allclose(levels.step, [2 / 255, 7 / 255])


@pytest.mark.parametrize(('low', 'high'), [(np.nan, 1), (0, np.inf), (2, 1)])
def test_a_range_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(BackendError, match='calibration: found a range'):
        span(low, high)


def test_a_tensor_that_was_not_noted_is_named() -> None:
    with pytest.raises(BackendError, match=r"no range of 'z'; expected one of x, y"):
        calibration(x=span(0, 1), y=span(0, 1)).levels('z')


def test_a_calibration_does_not_change() -> None:
    ranges = {'x': span(0, 1)}
    made = Calibration(ranges=ranges, coverage=1, source='test', observations=1)
    ranges['x'] = span(0, 2)
    assert made.levels('x').step[0] == pytest.approx(HEADROOM / 255)
    with pytest.raises(TypeError):
        made.ranges['x'] = span(0, 3)  # type: ignore[index]


def test_a_recorder_keeps_the_widest_range() -> None:
    recorder = Recorder()
    recorder.note('x', torch.tensor([[-1.0, 2.0]]))
    recorder.note('x', torch.tensor([[0.5, 3.0]]))
    recorder.note('x', torch.tensor([[-0.5, 0.0]]))
    found = recorder.ranges(1.0)['x']
    assert (found.low[0], found.high[0]) == (-1, 3)


def test_a_cut_leaves_out_the_largest_values() -> None:
    recorder = Recorder([1.0, 0.99])
    values = torch.arange(-999.0, 1001.0).reshape(40, 50)
    recorder.note('x', values[torch.randperm(40)])
    full, cut = recorder.ranges(1.0)['x'], recorder.ranges(0.99)['x']
    assert (full.low[0], full.high[0]) == (-999, 1000)
    assert (cut.low[0], cut.high[0]) == (-990, 990)


def test_ends_win_over_what_was_seen() -> None:
    recorder = Recorder()
    recorder.note('x', torch.full((1, 3, 2, 2), 0.25))
    recorder.note_ends('x', torch.tensor([-1.0, -2, -3]).reshape(1, 3, 1, 1))
    recorder.note_ends('x', torch.tensor([4.0, 5, 6]).reshape(1, 3, 1, 1))
    found = recorder.ranges(1.0)['x']
    assert found.is_final
    np.testing.assert_array_equal(found.low, [-1, -2, -3])
    np.testing.assert_array_equal(found.high, [4, 5, 6])


@pytest.mark.parametrize('backbone', ['resnet18', 'resnet50'])
@torch.inference_mode()
def test_recording_changes_nothing_and_notes_every_tensor(backbone: str) -> None:
    torch.manual_seed(0)
    network = ResNet(backbone).eval().requires_grad_(requires_grad=False)
    recorder = Recorder()
    images = torch.randn(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    recording = FusedResNet(network, forms=RecordingForms(recorder, device=CPU))
    plain = FusedResNet(network, forms=OneDnnForms(device=CPU, dtype=torch.float32))
    assert torch.equal(recording(images), plain(images))
    noted = recorder.ranges(1.0)
    assert noted[FusedResNet.PIXELS].high[0] == pytest.approx(float(images.max()))
    blocks = [f'layer{stage}.{index}' for stage in (1, 2, 3, 4) for index in (0, 1)][:-1]
    assert {'conv1', *blocks, 'layer2.0.downsample', 'layer4.0.downsample'} <= set(noted)
    signed = {name for name, found in noted.items() if found.low[0] < 0}
    assert signed == {FusedResNet.PIXELS, *(n for n in noted if n.endswith('downsample'))}


@needs_int8
@pytest.mark.parametrize('backbone', ['resnet18', 'resnet50'])
@torch.inference_mode()
def test_a_backbone_in_bytes_follows_the_one_in_fp32(backbone: str) -> None:
    torch.manual_seed(0)
    network = ResNet(backbone).eval().requires_grad_(requires_grad=False)
    adapter_forms = RecordingForms(recorder := Recorder(), device=CPU)
    images = [torch.rand(1, 3, 64, 96) * 4 - 2 for _ in range(3)]
    images = [image.contiguous(memory_format=torch.channels_last) for image in images]
    reference = FusedResNet(network, forms=adapter_forms)
    for image in images[:2]:
        reference(image)
    recorder.note(FusedResNet.FEATURES, reference(images[0]))
    ranges = calibration(**recorder.ranges(1.0))
    from sparkrt_ros.runtime.kernels.int8_support import make_int8_forms

    fast = FusedResNet(network, forms=make_int8_forms(ranges, device=CPU))
    found = fast(images[2])
    assert found.dtype == torch.uint8
    step = float(ranges.levels(FusedResNet.FEATURES).step[0])
    agreement = compare(found.float().numpy() * step, reference(images[2]).numpy())
    assert agreement.cosine > 0.99


@needs_int8
@pytest.mark.parametrize(
    'changes',
    [
        {},
        {'feedforward_activation': 'gelu'},
        {'pre_norm': True},
        {'n_decoder_layers': 2},
        {'vision_backbone': 'resnet50', 'replace_final_stride_with_dilation': True},
    ],
)
@torch.inference_mode()
def test_every_tensor_that_int8_asks_for_was_noted(changes: dict[str, object]) -> None:
    config = tiny_config(**changes)
    weights = make_weights() if not changes else _weights_of(config)
    adapter = ActAdapter(config, weights, device=CPU)
    recorder = Recorder()
    inputs = (torch.randn(1, 5), *(torch.randn(1, 3, 64, 64) for _ in range(2)))
    inputs = (
        inputs[0],
        *(x.contiguous(memory_format=torch.channels_last) for x in inputs[1:]),
    )
    (region,) = adapter.recording(recorder).regions()
    wanted = region.fn(*inputs)
    ranges = calibration(**recorder.ranges(1.0))
    (region,) = adapter.calibrated(ranges).regions()
    assert compare(region.fn(*inputs), wanted).cosine > 0.98


def _weights_of(config: object) -> dict[str, torch.Tensor]:
    from act_folder_factory import random_weights

    return {
        key.removeprefix('model.'): torch.from_numpy(value)
        for key, value in random_weights(config).items()  # type: ignore[arg-type]
    }


def test_synthetic_samples_are_judged_by_others() -> None:
    samples = Samples.synthetic(act_capabilities(tiny_config()))
    assert 'synthetic' in samples.source
    for one in samples.calibration:
        for other in samples.gate:
            assert not np.array_equal(one.state, other.state)
            front = 'observation.images.front'
            assert not np.array_equal(one.images[front], other.images[front])


def test_recorded_samples_hold_some_out_over_all_of_the_recording() -> None:
    given_ones = [observe(seed) for seed in range(12)]
    samples = Samples.recorded(given_ones, source='a bag')
    assert samples.source == 'a bag'
    gate, rest = ({id(one) for one in part} for part in (samples.gate, samples.calibration))
    assert gate == {id(given_ones[index]) for index in (3, 7, 11)}
    assert rest == {id(one) for one in given_ones} - gate


def test_too_few_recorded_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=f'frames.npz: found 3 .* at least {FEWEST}'):
        Samples.recorded([observe(seed) for seed in range(3)], source='frames.npz')


def test_a_file_gives_back_the_observations(tmp_path: Path) -> None:
    path = tmp_path / 'frames.npz'
    written = [observe(seed) for seed in range(3)]
    write_observations(path, written)
    found = read_observations(path, most=5)
    assert len(found) == 3
    for one, other in zip(found, written, strict=True):
        np.testing.assert_array_equal(one.state, other.state)
        assert one.state.dtype == np.float32
        assert one.environment_state is None
        assert list(one.images) == ['observation.images.front', 'observation.images.wrist']
        for key, image in other.images.items():
            np.testing.assert_array_equal(one.images[f'observation.images.{key}'], image)


def test_a_few_of_many_are_read_from_all_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / 'frames.npz'
    written = [observe(seed) for seed in range(31)]
    write_observations(path, written)
    found = read_observations(path, most=4)
    for one, index in zip(found, (0, 10, 20, 30), strict=True):
        np.testing.assert_array_equal(one.state, written[index].state)
        np.testing.assert_array_equal(
            one.images['observation.images.wrist'], written[index].images['wrist']
        )


def test_a_file_exported_from_a_bag_is_read(tmp_path: Path) -> None:
    path = tmp_path / 'export.npz'
    written = []
    with ObservationWriter(path) as writer:
        for seed in range(3):
            one = observe(seed)
            images = {f'observation.images.{key}': v for key, v in one.images.items()}
            written.append(replace(one, images=images, stamp_ns=seed))
            writer.add(written[-1], noise=np.zeros((2, 3), np.float32))
        writer.finish({'policy': 'act'})
    found = read_observations(path, most=5)
    for one, other in zip(found, written, strict=True):
        np.testing.assert_array_equal(one.state, other.state)
        assert one.images.keys() == other.images.keys()
        for key in one.images:
            np.testing.assert_array_equal(one.images[key], other.images[key])


def test_observations_of_different_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='2 kinds'):
        write_observations(tmp_path / 'x.npz', [observe(0), Observation(state=observe(1).state)])


def test_what_is_no_file_of_observations_is_named(tmp_path: Path) -> None:
    damaged, uneven, missing = (tmp_path / name for name in ('a.npz', 'b.npz', 'c.npz'))
    damaged.write_bytes(b'PK not a zip')
    key = 'observation.images.a'
    np.savez(uneven, **{key: np.zeros((2, 3)), STATE_KEY: np.zeros((4, 3))})
    np.savez(tmp_path / 'd.npz', a=np.zeros((2, 3)))
    np.savez(tmp_path / 'e.npz', **{key: np.array([None, 'x'], dtype=object)})
    np.savez(tmp_path / 'f.npz', **{key: np.zeros((0, 3))})
    for path in (damaged, uneven, missing, *(tmp_path / f'{name}.npz' for name in 'def')):
        with pytest.raises(ConfigError, match=f'{path.name}: .*--export-observations'):
            read_observations(path, most=4)

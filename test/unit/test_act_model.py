"""The ACT network by itself: structure, training mode, and fitness for recording."""

from __future__ import annotations

import math

import pytest
import torch
from act_folder_factory import act_shapes, feature, features, tiny_config
from torch.utils._python_dispatch import TorchDispatchMode

from sparkrt_ros.runtime.errors import CheckpointError, ConfigError
from sparkrt_ros.runtime.policies.act import ActModel, sine_positions_2d
from sparkrt_ros.runtime.policies.resnet import FrozenBatchNorm2d, ResNet


def example(batch: int = 1) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    return {
        'images': [torch.rand(batch, 3, 64, 64, generator=generator) for _ in range(2)],
        'state': torch.rand(batch, 5, generator=generator),
    }


@pytest.fixture(scope='module')
def model() -> ActModel:
    torch.manual_seed(0)
    return ActModel(tiny_config()).eval()


def test_output_is_one_row_per_step_of_the_chunk(model: ActModel) -> None:
    assert model(**example(batch=3)).shape == (3, 8, 5)


def test_names_are_lerobots_inference_names(model: ActModel) -> None:
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    expected = act_shapes(tiny_config(use_vae=False))
    assert shapes == expected


def test_evaluation_is_deterministic_and_training_drops_out(model: ActModel) -> None:
    inputs = example()
    first = model(**inputs)
    assert torch.equal(model(**inputs), first)
    model.train()
    try:
        assert not torch.equal(model(**inputs), model(**inputs))
    finally:
        model.eval()


def test_training_reaches_every_parameter_and_no_batch_norm() -> None:
    model = ActModel(tiny_config()).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    latent = torch.ones(2, tiny_config().latent_dim)
    model(**example(batch=2), latent=latent).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    moved = [
        key for key, value in model.state_dict().items() if not torch.equal(value, before[key])
    ]
    assert moved == []


def test_the_latent_is_zero_unless_given(model: ActModel) -> None:
    inputs = example()
    zeros = torch.zeros(1, tiny_config().latent_dim)
    assert torch.equal(model(**inputs), model(**inputs, latent=zeros))
    assert not torch.equal(model(**inputs), model(**inputs, latent=zeros + 1))


@pytest.mark.parametrize('missing', ['state', 'camera'])
def test_a_configured_input_cannot_be_left_out(model: ActModel, missing: str) -> None:
    inputs = example()
    if missing == 'state':
        del inputs['state']
    else:
        inputs['images'].pop()
    with pytest.raises(ConfigError, match='every input'):
        model(**inputs)


def test_images_of_another_size_than_configured_are_seen_at_their_size(model: ActModel) -> None:
    inputs = example()
    inputs['images'] = [torch.rand(1, 3, 96, 65), torch.rand(1, 3, 64, 64)]
    assert model(**inputs).shape == (1, 8, 5)


def test_channels_last_gives_the_same_chunk(model: ActModel) -> None:
    inputs = example()
    reference = model(**inputs)
    inputs['images'] = [
        image.contiguous(memory_format=torch.channels_last) for image in inputs['images']
    ]
    torch.testing.assert_close(model(**inputs), reference, atol=1e-5, rtol=0)


def test_glu_is_refused_with_the_reason() -> None:
    with pytest.raises(CheckpointError, match='halves the width'):
        ActModel(tiny_config(feedforward_activation='glu'))


def test_dilation_is_refused_for_basic_blocks() -> None:
    with pytest.raises(ConfigError, match='bottleneck'):
        ResNet('resnet34', dilate_last_stage=True)


def test_an_unknown_backbone_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'resnet18.*resnet50'):
        ResNet('vgg')


@pytest.mark.parametrize('size', [(64, 64), (33, 97), (1, 1), (480, 640)])
@pytest.mark.parametrize(('name', 'dilated'), [('resnet18', False), ('resnet50', True)])
def test_feature_size_is_what_the_backbone_yields(
    size: tuple[int, int], name: str, dilated: bool
) -> None:
    with torch.device('meta'):
        backbone = ResNet(name, dilate_last_stage=dilated)
        shape = backbone(torch.empty(1, 3, *size)).shape
    assert tuple(shape) == (1, backbone.out_channels, *backbone.feature_size(*size))


def test_frozen_batch_norm_equals_torchs_in_evaluation() -> None:
    torch.manual_seed(1)
    theirs = torch.nn.BatchNorm2d(4).eval()
    state = {key: torch.rand(4) + 0.5 for key in ('weight', 'bias', 'running_mean', 'running_var')}
    theirs.load_state_dict({**state, 'num_batches_tracked': torch.tensor(1)})
    ours = FrozenBatchNorm2d(4)
    ours.load_state_dict(state)
    images = torch.rand(2, 4, 5, 5)
    torch.testing.assert_close(ours(images), theirs(images))


def test_sine_positions_follow_the_formula() -> None:
    height, width, dim = 3, 5, 8
    table = sine_positions_2d(height, width, dim)
    assert table.shape == (height * width, 1, dim)
    for row, column, index in [(0, 0, 0), (1, 3, 1), (2, 4, 2), (0, 4, 5), (2, 1, 7)]:
        on_row = index < dim // 2
        i = index % (dim // 2)
        size, place = (height, row) if on_row else (width, column)
        phase = (place + 1) / (size + 1e-6) * 2 * math.pi
        phase /= 10000 ** (2 * (i // 2) / (dim // 2))
        expected = math.cos(phase) if i % 2 else math.sin(phase)
        assert table[row * width + column, 0, index].item() == pytest.approx(expected, abs=1e-5)


class _NoHostReads(TorchDispatchMode):
    """Fails where a value leaves the device, which would stall it and break a recording."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {'_local_scalar_dense', 'nonzero', 'item', 'equal'}, name
        return func(*args, **(kwargs or {}))


def test_forward_never_reads_a_value(model: ActModel) -> None:
    with _NoHostReads(), torch.inference_mode():
        model(**example())


def test_forward_of_configured_sizes_computes_no_positions(
    model: ActModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError('positions computed again')

    monkeypatch.setattr('sparkrt_ros.runtime.policies.act.sine_positions_2d', refuse)
    model(**example())


def test_state_and_environment_without_cameras() -> None:
    config = tiny_config(
        input_features=features(
            feature('observation.environment_state', 'ENV', 3),
            feature('observation.state', 'STATE', 5),
        )
    )
    model = ActModel(config).eval()
    assert not hasattr(model, 'backbone')
    chunk = model(state=torch.ones(2, 5), environment_state=torch.ones(2, 3))
    assert chunk.shape == (2, 8, 5)

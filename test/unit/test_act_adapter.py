"""ACT behind the session's contract: exact weights, one region, named inputs."""

from __future__ import annotations

import pytest
import torch
from act_folder_factory import random_weights, tiny_config

from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.errors import CheckpointError, ConfigError, ObservationError
from sparkrt_ros.runtime.policies.act_adapter import ActAdapter
from sparkrt_ros.runtime.policies.adapter import PolicyContext, make_context
from sparkrt_ros.runtime.policies.registry import ADAPTERS, make_adapter
from sparkrt_ros.runtime.policies.weights import load_weights

CPU = torch.device('cpu')


def make_weights() -> dict[str, torch.Tensor]:
    return {
        key.removeprefix('model.'): torch.from_numpy(value)
        for key, value in random_weights(tiny_config()).items()
    }


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return make_weights()


@pytest.fixture(scope='module')
def adapter() -> ActAdapter:
    return ActAdapter(tiny_config(), make_weights(), device=CPU)


@pytest.fixture
def context(adapter: ActAdapter) -> PolicyContext:
    return make_context(adapter.regions(), backend=EagerBackend(device=CPU))


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    return {
        'observation.images.wrist': torch.full((1, 3, 64, 64), 0.9),
        'observation.images.front': torch.full((1, 3, 64, 64), 0.1),
        'observation.state': torch.zeros(1, 5),
    }


def test_capabilities_say_what_the_configuration_says(adapter: ActAdapter) -> None:
    needs = adapter.capabilities
    assert needs.model_type == 'act'
    assert dict(needs.image_shapes) == {
        'observation.images.front': (3, 64, 64),
        'observation.images.wrist': (3, 64, 64),
    }
    assert (needs.state_size, needs.environment_state_size, needs.action_size) == (5, 0, 5)
    assert (needs.chunk_size, needs.n_action_steps) == (8, 4)
    assert needs.supports_temporal_ensemble
    assert not needs.requires_task


def test_training_only_weights_are_left_aside(weights: dict[str, torch.Tensor]) -> None:
    assert any(key.startswith('vae_encoder') for key in weights)
    ActAdapter(tiny_config(), weights, device=CPU)


@pytest.mark.parametrize(
    'key', ['backbone.layer3.0.downsample.1.running_var', 'decoder.norm.bias', 'action_head.bias']
)
def test_a_missing_weight_is_named(weights: dict[str, torch.Tensor], key: str) -> None:
    del weights[key]
    with pytest.raises(CheckpointError, match=rf'1 missing weights: {key}'):
        ActAdapter(tiny_config(), weights, device=CPU)


@pytest.mark.parametrize(
    'key', ['encoder.layers.1.linear1.weight', 'vae_encoder_pos_enc_2', 'encoder.norm.weight']
)
def test_an_unexpected_weight_is_named(weights: dict[str, torch.Tensor], key: str) -> None:
    weights[key] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=rf'1 unexpected weights: {key}'):
        ActAdapter(tiny_config(), weights, device=CPU)


def test_a_weight_of_another_shape_is_named_with_both_shapes(
    weights: dict[str, torch.Tensor],
) -> None:
    weights['decoder_pos_embed.weight'] = torch.zeros(9, 32)
    with pytest.raises(CheckpointError, match=r'model\.st, decoder_pos.*\(9, 32\).*\(8, 32\)'):
        ActAdapter(tiny_config(), weights, device=CPU, weights_file='model.st')


def test_an_integer_weight_is_refused(weights: dict[str, torch.Tensor]) -> None:
    weights['action_head.bias'] = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(CheckpointError, match='floating-point'):
        ActAdapter(tiny_config(), weights, device=CPU)


def test_nothing_is_loaded_when_one_weight_is_wrong() -> None:
    module = torch.nn.Linear(2, 2)
    before = module.weight.clone()
    with pytest.raises(CheckpointError):
        load_weights(module, {'weight': torch.zeros(2, 2), 'bias': torch.zeros(3)})
    assert torch.equal(module.weight, before)


def test_inputs_are_taken_by_name_whatever_their_order(
    adapter: ActAdapter, context: PolicyContext, batch: dict[str, torch.Tensor]
) -> None:
    chunk = adapter.predict_chunk(context, batch, noise=None)
    reordered = dict(reversed(batch.items()))
    assert torch.equal(adapter.predict_chunk(context, reordered, noise=None), chunk)


def test_cameras_reach_the_region_in_the_order_of_the_configuration(
    adapter: ActAdapter, batch: dict[str, torch.Tensor]
) -> None:
    """The network itself tells cameras apart by nothing else, and hardly by their order."""
    seen: list[torch.Tensor] = []

    def region(*inputs: torch.Tensor) -> torch.Tensor:
        seen.extend(inputs)
        return torch.zeros(1, 8, 5)

    adapter.predict_chunk(PolicyContext(regions={'forward': region}), batch, noise=None)
    keys = ('observation.state', 'observation.images.front', 'observation.images.wrist')
    assert [tensor.data_ptr() for tensor in seen] == [batch[key].data_ptr() for key in keys]


def test_an_input_that_preprocessing_lost_is_named(
    adapter: ActAdapter, context: PolicyContext, batch: dict[str, torch.Tensor]
) -> None:
    del batch['observation.images.wrist']
    with pytest.raises(ObservationError, match=r'observation\.images\.wrist'):
        adapter.predict_chunk(context, batch, noise=None)


def test_noise_is_refused(
    adapter: ActAdapter, context: PolicyContext, batch: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ConfigError, match='draws no noise'):
        adapter.predict_chunk(context, batch, noise=torch.zeros(1))


def test_the_region_can_be_recorded_and_needs_no_gradient(
    adapter: ActAdapter, context: PolicyContext, batch: dict[str, torch.Tensor]
) -> None:
    (region,) = adapter.regions()
    assert region.capturable
    assert region.invariant_from is None
    assert not adapter.predict_chunk(context, batch, noise=None).requires_grad


def test_an_unknown_policy_type_names_the_known_ones(weights: dict[str, torch.Tensor]) -> None:
    class Other:
        model_type = 'foo'

    with pytest.raises(CheckpointError, match=f"'foo'; expected one of {', '.join(ADAPTERS)}"):
        make_adapter(Other(), weights, device=CPU, weights_file='model.safetensors')

"""The weight file of Pi0 and Pi0.5: every known spelling of its names, and no gap anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from act_folder_factory import write_tensors
from pi_folder import CPU, PI_CASES, make_config, make_weights, write_pi_folder
from safetensors.torch import load_file, save_file

from sparkrt_ros.runtime.checkpoint import describe_checkpoint, load_checkpoint
from sparkrt_ros.runtime.checkpoint.pi_tensors import EMBEDDING, LANGUAGE_HEAD, arrange_names
from sparkrt_ros.runtime.errors import CheckpointError
from sparkrt_ros.runtime.policies.pi_weights import load_network

Weights = dict[str, torch.Tensor]


def load(kind: str, weights: Weights) -> Any:
    """Through the repairs of names and into the network, as a policy folder is loaded."""
    config = make_config(PI_CASES[kind])
    names, notes = arrange_names(config, {name: name for name in weights})
    arranged = {name: weights[stored] for name, stored in names.items()}
    return load_network(config, arranged, device=CPU), notes


@pytest.fixture
def weights() -> Weights:
    return dict(make_weights(make_config(PI_CASES['pi05'])))


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_text_embeddings_may_only_be_there_as_the_language_head(weights: Weights) -> None:
    del weights[EMBEDDING]
    network, notes = load('pi05', weights)
    assert torch.equal(network.embed_tokens.weight, weights[LANGUAGE_HEAD])
    assert 'the language head holds them' in notes[0]


def test_text_embeddings_of_their_own_win(weights: Weights) -> None:
    network, notes = load('pi05', weights)
    assert torch.equal(network.embed_tokens.weight, weights[EMBEDDING])
    assert not torch.equal(weights[EMBEDDING], weights[LANGUAGE_HEAD])
    assert notes == ()


def test_language_heads_may_be_left_out(weights: Weights) -> None:
    whole, _ = load('pi05', weights)
    lean = {name: value for name, value in weights.items() if 'lm_head' not in name}
    assert same(load('pi05', lean)[0], whole)


@pytest.mark.parametrize(
    ('kind', 'theirs', 'other'),
    [('pi05', 'time_mlp_', 'action_time_mlp_'), ('pi0', 'action_time_mlp_', 'time_mlp_')],
)
def test_the_time_network_may_have_its_other_name(kind: str, theirs: str, other: str) -> None:
    given = dict(make_weights(make_config(PI_CASES[kind])))
    renamed = {
        other + name.removeprefix(theirs) if name.startswith(theirs) else name: value
        for name, value in given.items()
    }
    assert set(renamed) != set(given)
    assert same(load(kind, renamed)[0], load(kind, given)[0])


def test_the_level_of_the_vision_model_may_be_left_out(weights: Weights) -> None:
    renamed = {name.replace('.vision_model.', '.'): value for name, value in weights.items()}
    assert set(renamed) != set(weights)
    assert same(load('pi05', renamed)[0], load('pi05', weights)[0])


def test_weights_of_a_pi0_in_a_pi05_file_are_left_out_with_a_note(weights: Weights) -> None:
    whole, _ = load('pi05', weights)
    expert = 'paligemma_with_expert.gemma_expert.model.'
    weights['state_proj.weight'] = torch.zeros(32, 32)
    weights['state_proj.bias'] = torch.zeros(32)
    weights[f'{expert}layers.1.input_layernorm.weight'] = torch.zeros(32)
    weights[f'{expert}norm.weight'] = torch.zeros(32)
    network, notes = load('pi05', weights)
    assert same(network, whole)
    assert 'state_proj.weight' in notes[0]


def test_two_spellings_of_one_weight_are_refused(weights: Weights) -> None:
    weights['action_time_mlp_in.bias'] = weights['time_mlp_in.bias']
    with pytest.raises(CheckpointError, match=r'time_mlp_in\.bias: found two tensors'):
        load('pi05', weights)


@pytest.mark.parametrize(
    'name',
    [
        'paligemma_with_expert.gemma_expert.model.layers.2.input_layernorm.dense.bias',
        'paligemma_with_expert.paligemma.model.vision_tower.vision_model.post_layernorm.weight',
        'paligemma_with_expert.paligemma.model.language_model.layers.0.mlp.up_proj.weight',
        'action_out_proj.bias',
    ],
)
def test_a_missing_weight_is_named_before_anything_is_read(name: str, tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    stored = load_file(folder / 'model.safetensors')
    del stored[f'model.{name}']
    save_file(stored, folder / 'model.safetensors')
    with pytest.raises(CheckpointError, match=f'1 missing weights: {name}'):
        describe_checkpoint(folder)


def test_an_unexpected_weight_is_named(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    stored = load_file(folder / 'model.safetensors')
    stored['model.paligemma_with_expert.gemma_expert.model.layers.3.mlp.up_proj.weight'] = (
        torch.zeros(64, 32)
    )
    save_file(stored, folder / 'model.safetensors')
    with pytest.raises(CheckpointError, match=r'1 unexpected weights: .*layers\.3\.mlp'):
        describe_checkpoint(folder)


def test_a_weight_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    stored = load_file(folder / 'model.safetensors')
    stored['model.action_in_proj.weight'] = torch.zeros(32, 31)
    save_file(stored, folder / 'model.safetensors')
    with pytest.raises(CheckpointError, match=r'action_in_proj.*\(32, 31\).*\(32, 32\)'):
        describe_checkpoint(folder)


def test_weights_of_a_pi0_are_no_pi05(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    pi0 = make_weights(make_config(PI_CASES['pi0']))
    write_tensors(
        folder / 'model.safetensors', {name: value.numpy() for name, value in pi0.items()}
    )
    with pytest.raises(CheckpointError, match='missing weights'):
        describe_checkpoint(folder)


def test_the_prefix_model_may_be_left_out_and_weights_be_bfloat16(tmp_path: Path) -> None:
    folder = write_pi_folder('pi0', tmp_path / 'policy')
    stored = load_file(folder / 'model.safetensors')
    bare = {name.removeprefix('model.'): value.bfloat16() for name, value in stored.items()}
    save_file(bare, folder / 'model.safetensors')
    checkpoint = load_checkpoint(folder)
    assert checkpoint.weights['action_in_proj.bias'].dtype == torch.bfloat16
    network = load_network(checkpoint.config, checkpoint.weights, device=CPU)
    expected = stored['model.action_in_proj.bias'].bfloat16().float()
    assert torch.equal(network.action_in_proj.bias, expected)


def test_the_network_outlives_its_file(tmp_path: Path) -> None:
    """It is read from a mapping of the file, which somebody may replace or cut short."""
    folder = write_pi_folder('pi0', tmp_path / 'policy')
    checkpoint = load_checkpoint(folder)
    network = load_network(checkpoint.config, checkpoint.weights, device=CPU)
    before = network.embed_tokens.weight.clone()
    with (folder / 'model.safetensors').open('r+b') as stream:
        stream.seek(200_000)
        stream.write(b'\xff' * 200_000)
    assert torch.equal(network.embed_tokens.weight, before)


def test_an_integer_weight_is_refused(weights: Weights) -> None:
    weights['action_in_proj.bias'] = torch.zeros(32, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r'action_in_proj\.bias.*floating-point'):
        load('pi05', weights)

"""Gemma's decoder: shared heads of keys, norms, and a prefix that is read once."""

from __future__ import annotations

import math

import pytest
import torch

from sparkrt_ros.runtime.checkpoint.pi_sizes import GemmaSizes
from sparkrt_ros.runtime.policies.gemma import (
    MASKED,
    AdaptiveRmsNorm,
    Decoder,
    Modulation,
    RmsNorm,
    Rotation,
    attend,
    modulations_of,
    rotary_frequencies,
    rotation_at,
)

pytestmark = pytest.mark.usefixtures('one_thread')

SIZES = GemmaSizes(width=12, depth=3, mlp_width=20, heads=4, kv_heads=2, head_dim=8, vocabulary=10)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_decoder(condition: int = 0) -> Decoder:
    decoder = Decoder(SIZES, condition=condition).requires_grad_(requires_grad=False)
    for number, parameter in enumerate(decoder.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=number) * 0.3)
    return decoder


def rotation_of(tokens: int) -> Rotation:
    frequencies = rotary_frequencies(8, rounded=False)
    return rotation_at(torch.arange(tokens)[None], frequencies, dtype=torch.float32)


def test_heads_share_keys_as_if_these_were_repeated() -> None:
    queries, keys, values = draw(2, 4, 5, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    mask = torch.where(draw(2, 1, 5, 7, seed=3) > 0, 0.0, MASKED)
    mask[:, :, :, 0] = 0.0
    found = attend(queries, keys, values, mask=mask)
    repeated = (part.repeat_interleave(2, dim=1) for part in (keys, values))
    expected = torch.nn.functional.scaled_dot_product_attention(queries, *repeated, attn_mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_query_that_may_see_nothing_gives_numbers() -> None:
    keys = draw(1, 2, 6, 8)
    found = attend(draw(1, 4, 3, 8, seed=1), keys, keys, mask=torch.full((1, 1, 1, 6), MASKED))
    assert torch.isfinite(found).all()


def test_tokens_that_continue_a_prefix_get_what_one_pass_over_all_gives() -> None:
    """The prefix does not see what continues it, so it can be read once and kept."""
    decoder = make_decoder()
    x, frequencies = draw(2, 9, 12), rotary_frequencies(8, rounded=False)
    rotation = rotation_at(torch.arange(9).expand(2, 9), frequencies, dtype=torch.float32)
    mask = torch.zeros(1, 1, 9, 9)
    mask[:, :, :6, 6:] = MASKED
    every = decoder.continue_from(
        x, rotation, mask, keys=torch.empty(3, 2, 2, 0, 8), values=torch.empty(3, 2, 2, 0, 8)
    )
    ahead = type(rotation)(*(part[:, :, :6] for part in rotation))
    behind = type(rotation)(*(part[:, :, 6:] for part in rotation))
    keys, values = decoder.fill(x[:, :6], ahead, torch.zeros(1, 1, 1, 6))
    assert keys.shape == values.shape == (3, 2, 2, 6, 8)
    found = decoder.continue_from(
        x[:, 6:], behind, torch.zeros(1, 1, 1, 9), keys=keys, values=values
    )
    torch.testing.assert_close(found, every[:, 6:], rtol=1e-5, atol=1e-5)


def test_a_prefix_is_never_written_while_it_is_continued() -> None:
    decoder = make_decoder()
    rotation = rotation_of(4)
    keys, values = decoder.fill(draw(1, 4, 12), rotation, torch.zeros(1, 1, 1, 4))
    kept = keys.clone(), values.clone()
    for seed in (1, 2):
        decoder.continue_from(
            draw(1, 4, 12, seed=seed),
            rotation,
            torch.zeros(1, 1, 1, 8),
            keys=keys,
            values=values,
        )
    assert torch.equal(keys, kept[0])
    assert torch.equal(values, kept[1])


def test_norms_are_of_unit_mean_square_before_their_weight() -> None:
    x, norm = draw(2, 3, 12) * 7, RmsNorm(12)
    assert torch.allclose(norm(x).square().mean(-1), torch.ones(2, 3), atol=1e-4)
    norm.weight.data.fill_(1.0)
    assert torch.allclose(norm(x).square().mean(-1), torch.full((2, 3), 4.0), atol=1e-3)


def test_modulations_are_scale_shift_and_gate_of_every_norm_in_order() -> None:
    decoder = make_decoder(condition=5)
    condition = draw(4, 5, seed=9)
    table = decoder.modulate(condition)
    assert table.shape == (4, 2 * 3 + 1, 3, 12)
    second = decoder.layers[1].post_attention_layernorm
    assert isinstance(second, AdaptiveRmsNorm)
    torch.testing.assert_close(table[2, 3].flatten(), second.dense(condition[2]))
    one = modulations_of(table[2])
    assert len(one) == 7
    x = draw(1, 3, 12, seed=4)
    plain = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    scale, shift, _ = second.dense(condition[2]).chunk(3)
    torch.testing.assert_close(second(x, one[3]), plain * (1 + scale) + shift)


def test_a_gate_of_zero_leaves_a_layer_out() -> None:
    decoder = make_decoder(condition=5)
    table = decoder.modulate(draw(1, 5, seed=9))[0]
    table[:-1, 2] = 0.0
    table[-1] = 0.0
    x = draw(1, 3, 12)
    rotation = rotation_of(3)
    found = decoder.continue_from(
        x,
        rotation,
        torch.zeros(1, 1, 1, 3),
        keys=torch.empty(3, 1, 2, 0, 8),
        values=torch.empty(3, 1, 2, 0, 8),
        modulations=modulations_of(table),
    )
    torch.testing.assert_close(found, x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())


def test_rotation_depends_on_the_distance_of_two_tokens_only() -> None:
    frequencies = rotary_frequencies(8, rounded=False)
    query, key = draw(1, 1, 1, 8), draw(1, 1, 1, 8, seed=1)

    def product(first: int, second: int) -> float:
        rotated = [
            rotation_at(torch.tensor([[place]]), frequencies, dtype=torch.float32).apply(vector)
            for place, vector in ((first, query), (second, key))
        ]
        return float((rotated[0] * rotated[1]).sum())

    assert product(3, 7) == pytest.approx(product(13, 17), abs=1e-5)
    assert abs(product(3, 7) - product(3, 9)) > 1e-3


def test_rounded_frequencies_differ_where_it_matters() -> None:
    exact, rounded = (rotary_frequencies(256, rounded=flag) for flag in (False, True))
    assert exact[0] == rounded[0] == 1.0
    assert float((exact - rounded).abs().max() * 700) > 0.5
    assert math.isclose(float(exact[-1]), 10000 ** (-254 / 256), rel_tol=1e-6)


def test_activations_stay_in_the_dtype_of_the_projections() -> None:
    norm = RmsNorm(12)
    assert norm(draw(1, 3, 12).bfloat16()).dtype == torch.bfloat16
    adaptive = AdaptiveRmsNorm(12, condition=5)
    modulation = Modulation(*(torch.ones(1, 1, 12) for _ in range(3)))
    assert adaptive(draw(1, 3, 12).bfloat16(), modulation).dtype == torch.bfloat16

"""Gemma's decoder (arXiv:2403.08295) in plain PyTorch, and its form with modulated norms.

Parameter names are those of the reference implementation. Arithmetic follows the dtype of the
projections: their inputs, the residual stream and attention are in it, while the norms compute in
float32 and masks and softmax are float32.
Shapes: ``B`` batch, ``S`` tokens, ``K`` keys, ``W`` width, ``H`` heads, ``G`` heads of keys and
values, ``h`` size of a head, ``L`` layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_sizes import GemmaSizes

NORM_EPS = 1e-6
ROPE_BASE = 10_000.0
MASKED = -2.3819763e38
"""Added to the logit of a key that is not to be seen. Finite, so that a query that sees nothing
gives numbers, which nobody reads, and no NaN, which would spread."""


class Modulation(NamedTuple):
    """What an adaptive norm does at one moment of the flow: each (B or 1, 1, W) float32."""

    scale: Tensor
    shift: Tensor
    gate: Tensor


class RmsNorm(nn.Module):
    """``x / rms(x) * (1 + weight)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        """(B, S, W) -> the same shape and dtype."""
        assert modulation is None
        return (normalized(x) * (1.0 + self.weight.float())).type_as(x)


class AdaptiveRmsNorm(nn.Module):
    """``x / rms(x) * (1 + scale) + shift``; ``dense`` derives them, and a gate, from a condition.

    The condition of a flow depends on its time alone, so modulations are computed ahead.
    """

    def __init__(self, width: int, *, condition: int) -> None:
        super().__init__()
        self.dense = nn.Linear(condition, 3 * width)

    def forward(self, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        """(B, S, W) -> the same shape and dtype."""
        assert modulation is not None
        return (normalized(x) * (1.0 + modulation.scale) + modulation.shift).type_as(x)


def normalized(x: Tensor) -> Tensor:
    """``x`` over its root mean square along the last axis, in float32."""
    mean_square = torch.mean(torch.square(x.float()), dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + NORM_EPS)


class Mlp(nn.Module):
    """``down(gelu(gate(x)) * up(x))``."""

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.mlp_width, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.mlp_width, bias=False)
        self.down_proj = nn.Linear(sizes.mlp_width, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, W) -> (B, S, W)."""
        hidden = F.gelu(self.gate_proj(x), approximate='tanh') * self.up_proj(x)
        out: Tensor = self.down_proj(hidden)
        return out


class Rotation(NamedTuple):
    """Rotary position embedding of some tokens: each (B, 1, S, h) in the dtype of activations."""

    cos: Tensor
    sin: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Rotate queries or keys (B, heads, S, h); the halves of a head are the pairs."""
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin


class SelfAttention(nn.Module):
    """Projections of attention with fewer heads of keys and values than of queries."""

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = sizes.heads, sizes.kv_heads, sizes.head_dim
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, queries, bias=False)
        self.k_proj = nn.Linear(sizes.width, keys, bias=False)
        self.v_proj = nn.Linear(sizes.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, sizes.width, bias=False)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """(B, S, W) -> rotated keys and values, each (B, G, S, h)."""
        keys = rotation.apply(self._split(self.k_proj(x), self.kv_heads))
        return keys, self._split(self.v_proj(x), self.kv_heads)

    def forward(
        self, x: Tensor, rotation: Rotation, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """Tokens (B, S, W) attend to keys and values (B, G, K, h).

        mask: (B or 1, 1, S or 1, K) float32, added to the logits.
        """
        queries = rotation.apply(self._split(self.q_proj(x), self.heads))
        mixed = attend(queries, keys, values, mask=mask)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor, heads: int) -> Tensor:
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, heads, self.head_dim).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor) -> Tensor:
    """Queries (B, H, S, h), keys and values (B, G, K, h) -> (B, H, S, h).

    Softmax in float32, its weights in the dtype of the queries. Heads that share keys are laid
    side by side, so that keys need not be copied for each.
    """
    batch, heads, tokens, size = queries.shape
    groups = keys.shape[1]
    rows = queries.reshape(batch, groups, heads // groups * tokens, size)
    logits = torch.matmul(rows, keys.transpose(2, 3)) * size**-0.5
    logits = logits.view(batch, heads, tokens, -1) + mask
    weights = logits.softmax(dim=-1, dtype=torch.float32).to(queries.dtype)
    mixed = torch.matmul(weights.view(batch, groups, heads // groups * tokens, -1), values)
    return mixed.view(batch, heads, tokens, size)


class DecoderLayer(nn.Module):
    """Attention and feed-forward network, each normalised before, gated and added."""

    def __init__(self, sizes: GemmaSizes, *, condition: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(sizes)
        self.mlp = Mlp(sizes)
        self.input_layernorm = make_norm(sizes.width, condition=condition)
        self.post_attention_layernorm = make_norm(sizes.width, condition=condition)

    def finish(
        self, x: Tensor, mixed: Tensor, before: Modulation | None, after: Modulation | None
    ) -> Tensor:
        """Add what attention found (B, S, W), then run the feed-forward network."""
        x = _add(x, mixed, before)
        return _add(x, self.mlp(self.post_attention_layernorm(x, after)), after)


def make_norm(width: int, *, condition: int) -> RmsNorm | AdaptiveRmsNorm:
    """A norm with its own weight, or one modulated by a condition of that width."""
    return AdaptiveRmsNorm(width, condition=condition) if condition else RmsNorm(width)


def _add(x: Tensor, y: Tensor, modulation: Modulation | None) -> Tensor:
    return x + y if modulation is None else x + y * modulation.gate.to(x.dtype)


class Decoder(nn.Module):
    """The layers and the norm after them; ``condition``: see ``make_norm``."""

    def __init__(self, sizes: GemmaSizes, *, condition: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(sizes, condition=condition) for _ in range(sizes.depth)
        )
        self.norm = make_norm(sizes.width, condition=condition)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer.self_attn.q_proj.weight.dtype

    def fill(self, x: Tensor, rotation: Rotation, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Read tokens (B, S, W): the keys and values of every layer, each (L, B, G, S, h).

        What the last layer would make of its own tokens is not computed: nobody reads it.
        """
        keys, values = [], []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            normed = layer.input_layernorm(x)
            key, value = layer.self_attn.keys_values(normed, rotation)
            keys.append(key)
            values.append(value)
            if number + 1 < len(self.layers):
                mixed = layer.self_attn(normed, rotation, key, value, mask)
                x = layer.finish(x, mixed, None, None)
        return torch.stack(keys), torch.stack(values)

    def continue_from(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor,
        *,
        keys: Tensor,
        values: Tensor,
        modulations: tuple[Modulation, ...] | None = None,
    ) -> Tensor:
        """Tokens (B, S, W) that also see a prefix -> (B, S, W), after the last norm.

        keys, values: of the prefix, (L, B, G, K, h); never written. mask: over the prefix and
        then the tokens. modulations: two per layer and one for the last norm.
        """
        steps = modulations or (None,) * (2 * len(self.layers) + 1)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            before, after = steps[2 * number], steps[2 * number + 1]
            normed = layer.input_layernorm(x, before)
            key, value = layer.self_attn.keys_values(normed, rotation)
            all_keys = torch.cat((keys[number], key), dim=2)
            all_values = torch.cat((values[number], value), dim=2)
            mixed = layer.self_attn(normed, rotation, all_keys, all_values, mask)
            x = layer.finish(x, mixed, before, after)
        out: Tensor = self.norm(x, steps[-1])
        return out

    def modulate(self, condition: Tensor) -> Tensor:
        """Conditions (N, C) -> the modulations of every norm, (N, 2 L + 1, 3, W) float32.

        In the order in which the norms come; of the three, scale, shift and gate.
        """
        norms = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            norms += [layer.input_layernorm, layer.post_attention_layernorm]
        rows = []
        for norm in (*norms, self.norm):
            assert isinstance(norm, AdaptiveRmsNorm)
            rows.append(norm.dense(condition).float().unflatten(-1, (3, -1)))
        return torch.stack(rows, dim=1)


def modulations_of(table: Tensor) -> tuple[Modulation, ...]:
    """One moment of ``Decoder.modulate``, (2 L + 1, 3, W), as the decoder takes it."""
    return tuple(Modulation(*(part.view(1, 1, -1) for part in row)) for row in table)


def rotary_frequencies(head_dim: int, *, rounded: bool) -> Tensor:
    """Angles per position: (head_dim / 2,) float32 on the CPU.

    rounded: through bfloat16, as they are in a policy whose modules were cast to it.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64, device='cpu').to(torch.float32)
    frequencies = 1.0 / (ROPE_BASE ** (exponent / head_dim))
    return frequencies.to(torch.bfloat16).to(torch.float32) if rounded else frequencies


def rotation_at(positions: Tensor, frequencies: Tensor, *, dtype: torch.dtype) -> Rotation:
    """Positions (B, S) integers -> their rotation; angles in float32, then cast."""
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return Rotation(cos=angles.cos().to(dtype), sin=angles.sin().to(dtype))

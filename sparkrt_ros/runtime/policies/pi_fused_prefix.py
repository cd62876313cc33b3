"""The prefix of a fused Pi0 or Pi0.5: pictures and text to keys and values.

Hundreds of rows: the products are the vendor's, which are near the peak there; packed, and with
one pass over memory between two of them. The residual streams are float32. Shapes: see
``pi_ops``; ``C`` pictures, ``V`` patches of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_sizes import PATCH_SIZE
from sparkrt_ros.runtime.kernels.pi_ops import Heads, PiOps, Turn
from sparkrt_ros.runtime.policies.gemma import Decoder, DecoderLayer, RmsNorm
from sparkrt_ros.runtime.policies.siglip import SiglipVision, VisionLayer

_ALIGNED = 8
"""Inputs of a product: what tensor cores read at once."""


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    """One layer: queries, keys and values packed, gate and up packed; each (outputs, inputs)."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def pack(cls, layer: nn.Module, dtype: torch.dtype) -> DecoderWeights:
        assert isinstance(layer, DecoderLayer)
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            qkv=stacked((attention.q_proj, attention.k_proj, attention.v_proj), dtype),
            out=cast(attention.o_proj.weight, dtype),
            gate_up=stacked((mlp.gate_proj, mlp.up_proj), dtype),
            down=cast(mlp.down_proj.weight, dtype),
        )


class FusedLanguage:
    """Gemma's layers, as far as their keys and values need them."""

    def __init__(self, decoder: Decoder, heads: Heads, *, ops: PiOps, dtype: torch.dtype) -> None:
        self._ops, self._heads, self._dtype = ops, heads, dtype
        self._layers = [DecoderWeights.pack(layer, dtype) for layer in decoder.layers]
        self._grow = [
            tuple(
                grow_of(norm) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
            )
            for layer in decoder.layers
            if isinstance(layer, DecoderLayer)
        ]

    def __call__(self, x: Tensor, turn: Turn, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (B P, W) float32, overwritten -> keys and values, each (L, B, G, P, h).

        valid: (B, P) int8.
        """
        ops, heads, dtype = self._ops, self._heads, self._dtype
        samples, tokens = valid.shape
        shape = (2, len(self._layers), samples, heads.keys, tokens, heads.size)
        keys, values = torch.empty(shape, dtype=dtype, device=x.device).unbind()
        only_keys = Heads(queries=0, keys=heads.keys, size=heads.size)
        y: Tensor | None = None
        for number, layer in enumerate(self._layers):
            before, after = self._grow[number]
            normed = ops.add_norm(x, y, before, dtype=dtype)
            if number + 1 == len(self._layers):
                packed = F.linear(normed, layer.qkv[heads.queries * heads.size :])
                ops.rotate(packed, turn, only_keys, keys[number], values[number])
                break
            packed = F.linear(normed, layer.qkv)
            queries = ops.rotate(packed, turn, heads, keys[number], values[number])
            mixed = ops.look(queries, keys[number], values[number], valid)
            normed = ops.add_norm(x, F.linear(mixed, layer.out), after, dtype=dtype)
            y = F.linear(ops.geglu(F.linear(normed, layer.gate_up)), layer.down)
        return keys, values


@dataclass(frozen=True, kw_only=True)
class _VisionWeights:
    """One layer; norms and the biases that join the residual stream in float32."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    fc1: tuple[Tensor, Tensor]
    fc2: tuple[Tensor, Tensor]

    @classmethod
    def pack(cls, layer: nn.Module, dtype: torch.dtype) -> _VisionWeights:
        assert isinstance(layer, VisionLayer)
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        bias = torch.cat([one.bias.detach() for one in projections]).to(dtype)
        return cls(
            norm1=_affine(layer.layer_norm1),
            qkv=(stacked(projections, dtype), bias),
            out=(cast(attention.out_proj.weight, dtype), attention.out_proj.bias.float()),
            norm2=_affine(layer.layer_norm2),
            fc1=(cast(mlp.fc1.weight, dtype), cast(mlp.fc1.bias, dtype)),
            fc2=(cast(mlp.fc2.weight, dtype), mlp.fc2.bias.float()),
        )


class FusedVision:
    """SigLIP and the projection after it, all pictures at once."""

    def __init__(
        self, vision: SiglipVision, projector: nn.Linear, *, ops: PiOps, dtype: torch.dtype
    ) -> None:
        self._ops, self._dtype = ops, dtype
        embeddings = vision.embeddings
        patch = embeddings.patch_embedding
        flat = patch.weight.detach().flatten(1)
        self._padding = -flat.shape[1] % _ALIGNED
        self._patch = F.pad(flat, (0, self._padding)).to(dtype)
        assert patch.bias is not None
        self._place = (embeddings.position_embedding.weight + patch.bias).detach().float()
        self._layers = [_VisionWeights.pack(layer, dtype) for layer in vision.encoder.layers]
        first = vision.encoder.layers[0]
        assert isinstance(first, VisionLayer)
        self._heads = first.self_attn.heads
        self._last = _affine(vision.post_layernorm)
        self._project = (cast(projector.weight, dtype), cast(projector.bias, dtype))

    def __call__(self, images: Tensor) -> Tensor:
        """(C, 3, R, R) in [-1, 1] -> (C, V, W) in the dtype of the weights."""
        ops, dtype = self._ops, self._dtype
        count = images.shape[0]
        patches = F.linear(self._patches(images), self._patch)
        x = (patches.float() + self._place).flatten(0, 1)
        y, added = None, None
        for layer in self._layers:
            weight, bias = layer.norm1
            normed = ops.add_norm(x, y, weight, added=_or(added, bias), bias=bias, dtype=dtype)
            y = F.linear(self._attend(F.linear(normed, *layer.qkv), count), layer.out[0])
            weight, bias = layer.norm2
            normed = ops.add_norm(x, y, weight, added=layer.out[1], bias=bias, dtype=dtype)
            y = F.linear(_gelu(normed, *layer.fc1), layer.fc2[0])
            added = layer.fc2[1]
        weight, bias = self._last
        normed = ops.add_norm(x, y, weight, added=_or(added, bias), bias=bias, dtype=dtype)
        return F.linear(normed, *self._project).view(count, len(normed) // count, -1)

    def _patches(self, images: Tensor) -> Tensor:
        """(C, 3, R, R) -> (C, V, inputs of the first product); what fills no patch is left out."""
        count, channels, side, _ = images.shape
        across = side // PATCH_SIZE
        used = images[:, :, : across * PATCH_SIZE, : across * PATCH_SIZE].to(self._dtype)
        grid = used.reshape(count, channels, across, PATCH_SIZE, across, PATCH_SIZE)
        rows = grid.permute(0, 2, 4, 1, 3, 5).reshape(count, across * across, -1)
        return F.pad(rows, (0, self._padding))

    def _attend(self, packed: Tensor, count: int) -> Tensor:
        """Rows (C V, 3 W) -> (C V, W)."""
        rows, width = packed.shape[0], packed.shape[1] // 3
        split = packed.view(count, rows // count, 3, self._heads, width // self._heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(rows, width)


def grow_of(norm: nn.Module) -> Tensor:
    """What a plain norm multiplies columns with: (W,) float32."""
    assert isinstance(norm, RmsNorm)
    return 1.0 + norm.weight.detach().float()


def stacked(projections: tuple[nn.Linear, ...], dtype: torch.dtype) -> Tensor:
    """Their weights below each other."""
    return torch.cat([one.weight.detach().to(dtype) for one in projections])


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in ``dtype``, apart from its module."""
    return weight.detach().to(dtype)


def _affine(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight.detach().float(), norm.bias.detach().float()


def _or(added: Tensor | None, like: Tensor) -> Tensor:
    """Nothing is added before the first norm; whatever is named there is not read."""
    return like if added is None else added


def _gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The tanh form; as part of the product where that computes this form."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate='tanh')

"""ACT for inference at batch 1: the function of ``ActModel``, in far fewer operations.

What ``ActModel`` computes anew although it never changes is computed once: batch norms are folded
into the convolutions; position embeddings go through their projections when the network is built
and return as the addend of one product for queries, keys and values; the token of the zero
latent, and all of the first decoder layer that does not depend on the observation (its
self-attention reads only learned queries), are constants. Cameras of equal size share one pass.

Shapes: ``S`` tokens, ``D`` dim_model, ``T`` rows of a chunk, ``A`` action size, ``N`` heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.kernels.forms import Forms, Wires
from sparkrt_ros.runtime.policies.act import (
    ActModel,
    Attention,
    DecoderLayer,
    EncoderLayer,
    sine_positions_2d,
)
from sparkrt_ros.runtime.policies.fused_resnet import FusedResNet


class FusedAct:
    """Built from a loaded ``ActModel`` in evaluation mode, which it does not change.

    The arithmetic is ``dtype``; sums inside products, softmax and norms are at least fp32, and
    the action head runs in fp32. ``forms`` decides which operators compute it.
    """

    def __init__(
        self, model: ActModel, *, forms: Forms, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.config = model.config
        self._forms, self._device, self._dtype = forms, device, dtype
        self._sizes = [tuple(feature.shape[1:]) for feature in self.config.image_features.values()]
        with torch.no_grad():
            positions = self._token_positions(model)
            self._head_tokens(model)
            if self._sizes:
                self._backbone = FusedResNet(model.backbone, forms=forms)
                conv = model.encoder_img_feat_input_proj
                assert conv.bias is not None
                self._pixels = forms.linear(
                    conv.weight.flatten(1).detach(),
                    conv.bias.detach(),
                    wires=Wires(reads=FusedResNet.FEATURES),
                )
            self._encoder = [
                _FusedEncoderLayer(
                    cast(EncoderLayer, layer), positions, self._make, name=f'encoder.{index}'
                )
                for index, layer in enumerate(model.encoder.layers)
            ]
            self._encoder_norm = self._make.norm(model.encoder.norm)
            self._decoder = _FusedDecoder(model, positions, self._make)
            head = model.action_head
            self._action = forms.head(head.weight.detach(), head.bias.detach())

    @property
    def _make(self) -> _Maker:
        return _Maker(self._forms, self._device, self._dtype)

    def __call__(
        self,
        *,
        images: Sequence[Tensor] = (),
        state: Tensor | None = None,
        environment_state: Tensor | None = None,
    ) -> Tensor:
        """Predict (1, T, A) float32; inputs as ``ActModel.forward`` takes them, with batch 1."""
        tokens = [self._latent]
        for value, project in ((state, self._state), (environment_state, self._environment)):
            if value is not None and project is not None:
                tokens.append(project(value.to(self._dtype)))
        tokens += self._see(images)
        memory = torch.cat(tokens)
        for layer in self._encoder:
            memory = layer(memory)
        if self._encoder_norm is not None:
            memory = self._encoder_norm(memory)
        return self._action(self._decoder(memory)).unsqueeze(0)

    def _see(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Tokens (h * w, D) of every camera, in the cameras' order."""
        if not images:
            return []
        if len({tuple(image.shape) for image in images}) == 1:
            return [self._tokens(self._forms.pixels(images))]
        return [self._tokens(self._forms.pixels([image])) for image in images]

    def _tokens(self, pixels: Tensor) -> Tensor:
        features = self._backbone(pixels)
        return self._pixels(features.permute(0, 2, 3, 1).reshape(-1, features.shape[1]))

    def _token_positions(self, model: ActModel) -> Tensor:
        """Positions (S, D) float32 of all tokens."""
        parts = [model.encoder_1d_feature_pos_embed.weight.float().cpu()]
        for height, width in self._sizes:
            size = model.backbone.feature_size(height, width)
            parts.append(sine_positions_2d(*size, self.config.dim_model).squeeze(1))
        return torch.cat(parts)

    def _head_tokens(self, model: ActModel) -> None:
        """The token of the zero latent, which is its bias, and the projections of the vectors."""
        bias = model.encoder_latent_input_proj.bias.detach()
        self._latent = bias.to(self._device, self._dtype).unsqueeze(0)
        config = self.config
        self._state = self._environment = None
        if config.robot_state_feature is not None:
            self._state = self._make.linear(model.encoder_robot_state_input_proj)
        if config.env_state_feature is not None:
            self._environment = self._make.linear(model.encoder_env_state_input_proj)


class _Maker:
    """Casts parameters and prepares layers for one device and dtype."""

    def __init__(self, forms: Forms, device: torch.device, dtype: torch.dtype) -> None:
        self.forms, self.device, self.dtype = forms, device, dtype

    def cast(self, value: Tensor) -> Tensor:
        return value.detach().to(self.device, self.dtype).contiguous()

    def linear(
        self, layer: nn.Linear, *, activation: str | None = None, wires: Wires | None = None
    ) -> Callable[..., Tensor]:
        assert layer.bias is not None
        return self.forms.linear(
            layer.weight.detach(), layer.bias.detach(), activation=activation, wires=wires
        )

    def norm(self, module: nn.Module) -> nn.LayerNorm | None:
        """A cast copy of a layer norm; None for the identity."""
        if not isinstance(module, nn.LayerNorm):
            return None
        copy = nn.LayerNorm(module.normalized_shape, eps=module.eps)
        copy.load_state_dict(module.state_dict())
        return copy.to(self.device, self.dtype).requires_grad_(requires_grad=False)


class _PlacedProjection:
    """``[(x + positions) W_q, (x + positions) W_k, x W_v] + bias`` as one product of x.

    ``positions W`` does not depend on the observation, so it becomes an addend (S, O).
    """

    def __init__(
        self, parts: Sequence[tuple[Tensor, Tensor, Tensor | None]], make: _Maker, *, reads: str
    ) -> None:
        weights, addends = [], []
        for weight, bias, positions in parts:
            addend = bias.detach().double().cpu().unsqueeze(0)
            if positions is not None:
                addend = addend + positions.double() @ weight.detach().double().cpu().t()
            weights.append(weight.detach())
            addends.append(addend)
        rows = max(addend.shape[0] for addend in addends)
        full = torch.cat([addend.expand(rows, -1) for addend in addends], dim=1)
        self._addend = make.cast(full.float())
        self._product = make.forms.linear(torch.cat(weights), None, wires=Wires(reads=reads))

    def __call__(self, x: Tensor) -> Tensor:
        # Not one product with the addend inside: that copies the addend first, which costs more.
        return self._product(x).add_(self._addend)


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, forms: Forms) -> Tensor:
    """Multi-head attention of rows (Q, D) to rows (K, D): (Q, D)."""

    def split(x: Tensor) -> Tensor:
        return x.view(x.shape[0], heads, -1).transpose(0, 1)

    mixed = forms.attend(split(q), split(k), split(v))
    return mixed.transpose(0, 1).reshape(q.shape[0], -1)


def _thirds(attention: Attention) -> list[tuple[Tensor, Tensor]]:
    """The projections of query, key and value: (weight (D, D), bias (D,)) each."""
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


class _FusedFeedForward:
    """The feed-forward network with its skip connection and norm, before or after."""

    def __init__(
        self, layer: EncoderLayer | DecoderLayer, norm: nn.Module, make: _Maker, *, name: str
    ) -> None:
        wide = f'{name}.wide'
        self._widen = make.linear(
            layer.linear1,
            activation=layer.activation_name,
            wires=Wires(reads=f'{name}.fed', writes=wide),
        )
        self._narrow = make.linear(layer.linear2, wires=Wires(reads=wide))
        self._norm = make.norm(norm)
        self._pre_norm = layer.pre_norm
        self._forms = make.forms

    def __call__(self, x: Tensor) -> Tensor:
        assert self._norm is not None
        if self._pre_norm:
            return x + self._narrow(self._widen(self._norm(x)))
        return self._forms.add_norm(x, self._narrow(self._widen(x)), self._norm)


class _FusedEncoderLayer:
    """One encoder layer on tokens (S, D)."""

    def __init__(self, layer: EncoderLayer, positions: Tensor, make: _Maker, *, name: str) -> None:
        query, key, value = _thirds(layer.self_attn)
        self._project = _PlacedProjection(
            [(*query, positions), (*key, positions), (*value, None)], make, reads=f'{name}.tokens'
        )
        self._heads = layer.self_attn.heads
        self._out = make.linear(layer.self_attn.out_proj, wires=Wires(reads=f'{name}.mixed'))
        self._norm = make.norm(layer.norm1)
        self._pre_norm = layer.pre_norm
        self._forms = make.forms
        self._feed = _FusedFeedForward(layer, layer.norm2, make, name=name)

    def __call__(self, x: Tensor) -> Tensor:
        assert self._norm is not None
        placed = self._norm(x) if self._pre_norm else x
        q, k, v = self._project(placed).chunk(3, dim=1)
        mixed = self._out(_attend(q, k, v, self._heads, self._forms))
        x = x + mixed if self._pre_norm else self._forms.add_norm(x, mixed, self._norm)
        return self._feed(x)


class _FusedDecoder:
    """All decoder layers: memory (S, D) -> rows (T, D), normalised."""

    def __init__(self, model: ActModel, positions: Tensor, make: _Maker) -> None:
        layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
        queries = model.decoder_pos_embed.weight.detach()
        self._start, self._first_query = self._constants(layers[0], queries, make)
        parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
        for layer in layers:
            _, key, value = _thirds(layer.multihead_attn)
            parts += [(*key, positions), (*value, None)]
        self._memory = _PlacedProjection(parts, make, reads='memory')
        self._layers = [
            _FusedDecoderLayer(layer, queries, make, first=index == 0, name=f'decoder.{index}')
            for index, layer in enumerate(layers)
        ]
        self._norm = make.norm(model.decoder.norm)

    @staticmethod
    def _constants(layer: DecoderLayer, queries: Tensor, make: _Maker) -> tuple[Tensor, Tensor]:
        """Rows after the first self-attention, and the first query of the memory: both (T, D)."""
        placed = queries.float().unsqueeze(1)
        rows = torch.zeros_like(placed)

        def attend(y: Tensor) -> Tensor:
            out: Tensor = layer.self_attn(y + placed, y + placed, y)
            return out

        rows = layer.residual(rows, layer.norm1, attend)
        asked = layer.norm2(rows) if layer.pre_norm else rows
        weight, bias = _thirds(layer.multihead_attn)[0]
        query = F.linear(asked + placed, weight, bias)
        return make.cast(rows.squeeze(1)), make.cast(query.squeeze(1))

    def __call__(self, memory: Tensor) -> Tensor:
        assert self._norm is not None
        shared = self._memory(memory).chunk(2 * len(self._layers), dim=1)
        rows, query = self._start, self._first_query
        for index, layer in enumerate(self._layers):
            if index:
                rows, query = layer.ask(rows)
            rows = layer.consult(rows, query, shared[2 * index], shared[2 * index + 1])
        out: Tensor = self._norm(rows)
        return out


class _FusedDecoderLayer:
    """One decoder layer on rows (T, D); the self-attention of the first one is a constant."""

    def __init__(
        self, layer: DecoderLayer, queries: Tensor, make: _Maker, *, first: bool, name: str
    ) -> None:
        placed = queries.float().cpu()
        self._pre_norm, self._forms = layer.pre_norm, make.forms
        self._heads = layer.multihead_attn.heads
        if not first:
            query, key, value = _thirds(layer.self_attn)
            self._project = _PlacedProjection(
                [(*query, placed), (*key, placed), (*value, None)], make, reads=f'{name}.rows'
            )
            self._self_out = make.linear(
                layer.self_attn.out_proj, wires=Wires(reads=f'{name}.rows_mixed')
            )
            asked = _thirds(layer.multihead_attn)[0]
            self._ask = _PlacedProjection([(*asked, placed)], make, reads=f'{name}.asked')
        self._norm1, self._norm2 = make.norm(layer.norm1), make.norm(layer.norm2)
        self._out = make.linear(layer.multihead_attn.out_proj, wires=Wires(reads=f'{name}.mixed'))
        self._feed = _FusedFeedForward(layer, layer.norm3, make, name=name)

    def ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Self-attention, and the query of the memory that follows from it."""
        assert self._norm1 is not None
        assert self._norm2 is not None
        placed = self._norm1(x) if self._pre_norm else x
        q, k, v = self._project(placed).chunk(3, dim=1)
        mixed = self._self_out(_attend(q, k, v, self._heads, self._forms))
        x = x + mixed if self._pre_norm else self._forms.add_norm(x, mixed, self._norm1)
        return x, self._ask(self._norm2(x) if self._pre_norm else x)

    def consult(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention to the memory, then the feed-forward network."""
        assert self._norm2 is not None
        mixed = self._out(_attend(query, key, value, self._heads, self._forms))
        x = x + mixed if self._pre_norm else self._forms.add_norm(x, mixed, self._norm2)
        return self._feed(x)

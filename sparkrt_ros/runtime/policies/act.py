"""Action Chunking with Transformers (arXiv:2304.13705) in plain PyTorch, for inference.

``ActModel`` computes what LeRobot's ACT computes, with the same parameter names minus the
``model.`` prefix. The variational encoder, which only training uses, is not part of it.

Shapes: ``B`` batch, ``S`` tokens, ``D`` dim_model, ``T`` chunk_size, ``A`` action size, ``N``
heads, ``C`` channels, ``H, W`` pixels, ``h, w`` rows and columns of a feature map. Token sequences
are (S, B, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.config import ActConfig
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.policies.resnet import ResNet

TRAINING_ONLY_PREFIXES = (
    'vae_encoder.',
    'vae_encoder_cls_embed.',
    'vae_encoder_robot_state_input_proj.',
    'vae_encoder_action_input_proj.',
    'vae_encoder_latent_output_proj.',
    'vae_encoder_pos_enc',
)
"""Weights of the variational encoder: a checkpoint may hold them, inference never reads them."""

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {'relu': F.relu, 'gelu': F.gelu}
_SINE_TEMPERATURE = 10000
_SINE_EPS = 1e-6


def sine_positions_2d(height: int, width: int, dim: int) -> Tensor:
    """Sine position embedding of a feature map: (height * width, 1, dim) float32 on the CPU.

    Row-major. The first half of ``dim`` encodes the row, the second the column. A position runs
    from 1, is scaled so that the last is 2 pi, is divided by ``10000 ** (2 * (i // 2) / (dim /
    2))``, and contributes sine at even ``i`` and cosine at odd ``i``.
    """
    half = dim // 2
    exponent = 2 * (torch.arange(half, dtype=torch.float32, device='cpu') // 2) / half
    frequency = _SINE_TEMPERATURE**exponent

    def axis(size: int) -> Tensor:
        position = torch.arange(1, size + 1, dtype=torch.float32, device='cpu')
        position = position / (position[-1:] + _SINE_EPS) * (2 * math.pi)
        phase = position.unsqueeze(-1) / frequency
        return torch.stack((phase[:, 0::2].sin(), phase[:, 1::2].cos()), dim=-1).flatten(1)

    rows = axis(height).unsqueeze(1).expand(height, width, half)
    columns = axis(width).unsqueeze(0).expand(height, width, half)
    return torch.cat((rows, columns), dim=-1).reshape(height * width, 1, dim)


class Attention(nn.Module):
    """Multi-head attention with packed input projections.

    Written out instead of calling a fused kernel: the products and the softmax are then those of
    ``torch.nn.MultiheadAttention`` with ``need_weights=True``, to the last bit.
    """

    def __init__(self, dim: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query (S, B, D), key and value (K, B, D) -> (S, B, D)."""
        tokens, batch, dim = query.shape
        q_weight, k_weight, v_weight = self.in_proj_weight.chunk(3)
        q_bias, k_bias, v_bias = self.in_proj_bias.chunk(3)
        q = self._split(F.linear(query, q_weight, q_bias)) * math.sqrt(1.0 / self.head_dim)
        k = self._split(F.linear(key, k_weight, k_bias))
        v = self._split(F.linear(value, v_weight, v_bias))
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
        if self.training and self.dropout > 0.0:
            weights = F.dropout(weights, self.dropout)
        mixed = torch.bmm(weights, v).transpose(0, 1).reshape(tokens * batch, dim)
        out: Tensor = self.out_proj(mixed)
        return out.view(tokens, batch, dim)

    def _split(self, x: Tensor) -> Tensor:
        """(S, B, D) -> (B * N, S, D / N)."""
        tokens, batch, _ = x.shape
        return x.view(tokens, batch * self.heads, self.head_dim).transpose(0, 1)


class _FeedForward(nn.Module):
    """The two linear layers that both kinds of transformer layer share."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.linear1 = nn.Linear(config.dim_model, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, config.dim_model)
        self.dropout = nn.Dropout(config.dropout)
        self.activation_name = config.feedforward_activation
        self.activation = _ACTIVATIONS[config.feedforward_activation]
        self.pre_norm = config.pre_norm

    def feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return out

    def residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """One sublayer with its skip connection, normalised before or after."""
        out: Tensor
        if self.pre_norm:
            out = x + self.dropout(sublayer(norm(x)))
        else:
            out = norm(x + self.dropout(sublayer(x)))
        return out


class EncoderLayer(_FeedForward):
    """Self-attention over the observation tokens, then the feed-forward network."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        self.self_attn = Attention(config.dim_model, config.n_heads, dropout=config.dropout)
        self.norm1 = nn.LayerNorm(config.dim_model)
        self.norm2 = nn.LayerNorm(config.dim_model)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Tokens (S, B, D) and their positions (S, 1, D) -> (S, B, D)."""

        def attend(y: Tensor) -> Tensor:
            placed = y + positions
            out: Tensor = self.self_attn(placed, placed, y)
            return out

        x = self.residual(x, self.norm1, attend)
        return self.residual(x, self.norm2, self.feed_forward)


class DecoderLayer(_FeedForward):
    """Self-attention over the chunk, attention to the memory, then the feed-forward network."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__(config)
        self.self_attn = Attention(config.dim_model, config.n_heads, dropout=config.dropout)
        self.multihead_attn = Attention(config.dim_model, config.n_heads, dropout=config.dropout)
        self.norm1 = nn.LayerNorm(config.dim_model)
        self.norm2 = nn.LayerNorm(config.dim_model)
        self.norm3 = nn.LayerNorm(config.dim_model)

    def forward(self, x: Tensor, queries: Tensor, memory: Tensor, memory_keys: Tensor) -> Tensor:
        """Rows (T, B, D), their queries (T, 1, D), memory and placed memory (S, B, D)."""

        def attend(y: Tensor) -> Tensor:
            placed = y + queries
            out: Tensor = self.self_attn(placed, placed, y)
            return out

        def consult(y: Tensor) -> Tensor:
            out: Tensor = self.multihead_attn(y + queries, memory_keys, memory)
            return out

        x = self.residual(x, self.norm1, attend)
        x = self.residual(x, self.norm2, consult)
        return self.residual(x, self.norm3, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers; normalised at its end only in the pre-norm form."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_encoder_layers))
        self.norm = nn.LayerNorm(config.dim_model) if config.pre_norm else nn.Identity()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions)
        out: Tensor = self.norm(x)
        return out


class Decoder(nn.Module):
    """A stack of decoder layers; always normalised at its end."""

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        self.norm = nn.LayerNorm(config.dim_model)

    def forward(self, x: Tensor, queries: Tensor, memory: Tensor, positions: Tensor) -> Tensor:
        memory_keys = memory + positions
        for layer in self.layers:
            x = layer(x, queries, memory, memory_keys)
        out: Tensor = self.norm(x)
        return out


class ActModel(nn.Module):
    """Normalised observations in, a normalised action chunk out.

    The configuration has refused what cannot run (glu, dilated basic blocks) when it was made.
    In training mode dropout (``config.dropout``) is active; the batch norms stay frozen.
    The forward pass has no data-dependent control flow and never waits for the device.
    """

    def __init__(self, config: ActConfig) -> None:
        super().__init__()
        dim = config.dim_model
        self.config = config
        self._n_cameras = len(config.image_features)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        n_vector_tokens = 1
        if config.robot_state_feature is not None:
            size = config.robot_state_feature.shape[0]
            self.encoder_robot_state_input_proj = nn.Linear(size, dim)
            n_vector_tokens += 1
        if config.env_state_feature is not None:
            size = config.env_state_feature.shape[0]
            self.encoder_env_state_input_proj = nn.Linear(size, dim)
            n_vector_tokens += 1
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, dim)
        self.encoder_1d_feature_pos_embed = nn.Embedding(n_vector_tokens, dim)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, dim)
        self.action_head = nn.Linear(dim, config.action_feature.shape[0])
        if config.image_features:
            self._add_cameras(config)
        for parameter in chain(self.encoder.parameters(), self.decoder.parameters()):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def _add_cameras(self, config: ActConfig) -> None:
        """The backbone, its projection, and one table of positions per size of feature map."""
        self.backbone = ResNet(
            config.vision_backbone,
            dilate_last_stage=config.replace_final_stride_with_dilation,
        )
        channels = self.backbone.out_channels
        self.encoder_img_feat_input_proj = nn.Conv2d(channels, config.dim_model, 1)
        for feature in config.image_features.values():
            self.add_positions(*self.backbone.feature_size(*feature.shape[1:]))

    def add_positions(self, height: int, width: int) -> None:
        """Hold the positions of a (height, width) feature map, so that forward need not."""
        name = f'positions_{height}x{width}'
        table = sine_positions_2d(height, width, self.config.dim_model)
        weight = self.action_head.weight
        # A network that is still without memory gets its weights later; the table is no weight.
        table = table.to(weight.dtype) if weight.is_meta else table.to(weight)
        self.register_buffer(name, table, persistent=False)

    def forward(
        self,
        *,
        images: Sequence[Tensor] = (),
        state: Tensor | None = None,
        environment_state: Tensor | None = None,
        latent: Tensor | None = None,
    ) -> Tensor:
        """Predict (B, T, A).

        images: one (B, 3, H, W) per camera, in the order of ``config.image_features``; sizes may
            differ between cameras.
        state: (B, S); environment_state: (B, E); each exactly when the configuration has it.
        latent: (B, latent_dim); zeros, which is what inference uses, when None.
        """
        if len(images) != self._n_cameras:
            raise _input_error(f'{len(images)} images')
        batch = (images[0] if images else _required(environment_state)).shape[0]
        if latent is None:
            weight = self.encoder_latent_input_proj.weight
            latent = weight.new_zeros(batch, self.config.latent_dim)
        tokens = [self.encoder_latent_input_proj(latent).unsqueeze(0)]
        positions = [self.encoder_1d_feature_pos_embed.weight.unsqueeze(1)]
        if self.config.robot_state_feature is not None:
            state = _required(state)
            tokens.append(self.encoder_robot_state_input_proj(state).unsqueeze(0))
        if self.config.env_state_feature is not None:
            environment_state = _required(environment_state)
            tokens.append(self.encoder_env_state_input_proj(environment_state).unsqueeze(0))
        for image in images:
            pixels, where = self._see(image)
            tokens.append(pixels)
            positions.append(where)
        return self._decode(torch.cat(tokens), torch.cat(positions))

    def _see(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """One camera (B, 3, H, W) -> its tokens (h * w, B, D) and positions (h * w, 1, D)."""
        features = self.encoder_img_feat_input_proj(self.backbone(image))
        height, width = features.shape[2:]
        table = getattr(self, f'positions_{height}x{width}', None)
        if table is None:
            table = sine_positions_2d(height, width, self.config.dim_model).to(features)
        return features.flatten(2).permute(2, 0, 1), table

    def _decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        memory = self.encoder(tokens, positions)
        queries = self.decoder_pos_embed.weight.unsqueeze(1)
        rows = tokens.new_zeros(self.config.chunk_size, tokens.shape[1], self.config.dim_model)
        rows = self.decoder(rows, queries, memory, positions)
        chunk: Tensor = self.action_head(rows.transpose(0, 1))
        return chunk


def _required(value: Tensor | None) -> Tensor:
    if value is None:
        raise _input_error('a vector missing')
    return value


def _input_error(found: str) -> ConfigError:
    return ConfigError(
        'ActModel', found=found, expected='every input that the configuration names'
    )

"""SigLIP's vision transformer (arXiv:2303.15343) in plain PyTorch: pictures to tokens.

Parameter names are those of the reference implementation. Shapes: ``B`` batch, ``P`` patches,
``W`` width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_sizes import PATCH_SIZE, VisionSizes

_NORM_EPS = 1e-6


class VisionAttention(nn.Module):
    """Every patch attends to every patch of its picture."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.q_proj = nn.Linear(sizes.width, sizes.width)
        self.k_proj = nn.Linear(sizes.width, sizes.width)
        self.v_proj = nn.Linear(sizes.width, sizes.width)
        self.out_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, W) -> (B, P, W)."""
        q, k, v = (self._split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out

    def _split(self, x: Tensor) -> Tensor:
        batch, patches, _ = x.shape
        return x.view(batch, patches, self.heads, -1).transpose(1, 2)


class VisionMlp(nn.Module):
    """Two layers with a tanh-approximated GELU between them."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.width, sizes.mlp_width)
        self.fc2 = nn.Linear(sizes.mlp_width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, W) -> (B, P, W)."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate='tanh'))
        return out


class VisionLayer(nn.Module):
    """Attention and feed-forward network, each normalised before and added."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(sizes.width, eps=_NORM_EPS)
        self.self_attn = VisionAttention(sizes)
        self.layer_norm2 = nn.LayerNorm(sizes.width, eps=_NORM_EPS)
        self.mlp = VisionMlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, W) -> (B, P, W)."""
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class VisionEmbeddings(nn.Module):
    """Patches, row by row, each with the embedding of its place."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, sizes.width, PATCH_SIZE, stride=PATCH_SIZE)
        self.position_embedding = nn.Embedding(sizes.patches, sizes.width)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, P, W)."""
        patches = self.patch_embedding(image).flatten(2).transpose(1, 2)
        out: Tensor = patches + self.position_embedding.weight
        return out


class VisionEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.depth))

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, W) -> (B, P, W)."""
        for layer in self.layers:
            x = layer(x)
        return x


class SiglipVision(nn.Module):
    """Pictures in [-1, 1] in, one token per patch out; no class token and no pooling."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(sizes)
        self.encoder = VisionEncoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=_NORM_EPS)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in the dtype of the weights -> (B, P, W)."""
        tokens: Tensor = self.post_layernorm(self.encoder(self.embeddings(image)))
        return tokens


def vision_dtype(vision: SiglipVision) -> torch.dtype:
    """The dtype that pictures are wanted in."""
    return vision.embeddings.patch_embedding.weight.dtype

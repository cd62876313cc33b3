"""How large the parts of a Pi0 or Pi0.5 policy are, by the variant its configuration names.

The sizes are those of Gemma (arXiv:2403.08295), SigLIP So400m/14 (arXiv:2303.15343) and the
action expert of Pi0 (arXiv:2410.24164). Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PATCH_SIZE = 14
"""Pixels along each side of one SigLIP patch."""


@dataclass(frozen=True, kw_only=True)
class GemmaSizes:
    """One Gemma decoder; heads share ``kv_heads`` keys and values of ``head_dim`` each."""

    width: int
    depth: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int = 257_152


@dataclass(frozen=True, kw_only=True)
class VisionSizes:
    """A SigLIP vision transformer for square pictures of ``image_size`` pixels."""

    width: int
    depth: int
    mlp_width: int
    heads: int
    image_size: int = 224

    @property
    def patches(self) -> int:
        """Tokens that one picture becomes."""
        return (self.image_size // PATCH_SIZE) ** 2


@dataclass(frozen=True, kw_only=True)
class PiSizes:
    """All parts of one policy. language reads pictures and text, expert writes actions."""

    vision: VisionSizes
    language: GemmaSizes
    expert: GemmaSizes


GEMMA_VARIANTS: Mapping[str, GemmaSizes] = MappingProxyType(
    {
        'gemma_2b': GemmaSizes(
            width=2048, depth=18, mlp_width=16_384, heads=8, kv_heads=1, head_dim=256
        ),
        'gemma_300m': GemmaSizes(
            width=1024, depth=18, mlp_width=4096, heads=8, kv_heads=1, head_dim=256
        ),
        'tiny': GemmaSizes(
            width=48, depth=3, mlp_width=96, heads=4, kv_heads=1, head_dim=16, vocabulary=640
        ),
        'tiny_expert': GemmaSizes(
            width=32, depth=3, mlp_width=64, heads=4, kv_heads=1, head_dim=16, vocabulary=640
        ),
    }
)
"""By the name in ``config.json``. The tiny ones are this project's own, for tests: LeRobot knows
gemma_2b and gemma_300m."""

_SO400M = VisionSizes(width=1152, depth=27, mlp_width=4304, heads=16)
_TINY_VISION = VisionSizes(width=24, depth=2, mlp_width=40, heads=2)


def pi_sizes(*, language: str, expert: str, image_size: int) -> PiSizes:
    """Return the sizes for two names of ``GEMMA_VARIANTS`` and the side of a square picture."""
    vision = _TINY_VISION if language.startswith('tiny') else _SO400M
    sized = VisionSizes(
        width=vision.width,
        depth=vision.depth,
        mlp_width=vision.mlp_width,
        heads=vision.heads,
        image_size=image_size,
    )
    return PiSizes(vision=sized, language=GEMMA_VARIANTS[language], expert=GEMMA_VARIANTS[expert])

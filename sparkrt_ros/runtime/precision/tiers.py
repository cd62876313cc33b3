"""The tiers by name. Imports no torch, so that configuration can name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One arithmetic, and the gate it has to pass before it serves.

    dtype: name of the torch dtype of activations and weights. allow_tf32: whether fp32 products
        on a GPU may round their inputs to 10 bits of mantissa.
    min_cosine, max_abs: agreement of a chunk with the fp32 reference, in the policy's normalised
        action space; over all observations of the gate.
    """

    name: str
    dtype: str
    min_cosine: float
    max_abs: float
    allow_tf32: bool = False


_ALL = (
    Tier(name='fp32', dtype='float32', min_cosine=0.999999, max_abs=1e-4),
    Tier(name='tf32', dtype='float32', min_cosine=0.9999, max_abs=5e-2, allow_tf32=True),
    Tier(name='fp16', dtype='float16', min_cosine=0.9999, max_abs=5e-2),
    Tier(name='bf16', dtype='bfloat16', min_cosine=0.9999, max_abs=1e-1),
)

TIERS: Mapping[str, Tier] = MappingProxyType({tier.name: tier for tier in _ALL})
"""Name -> tier, the most faithful first."""

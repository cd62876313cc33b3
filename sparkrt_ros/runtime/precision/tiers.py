"""The tiers by name. Imports no torch, so that configuration can name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One arithmetic, and the gate it has to pass before it serves.

    dtype: name of the torch dtype of what enters the large products: activations and weights.
    allow_tf32: whether fp32 products on a GPU may round their inputs to 10 bits of mantissa.
    is_calibrated: whether activations become bytes, by ranges found on observations (int8).
    min_cosine, max_abs: agreement of a chunk with the fp32 reference, in the policy's normalised
        action space, where 1 is the deviation of an action in the training data; over all
        observations of the gate. How these were chosen: ``docs/precision.md``.
    """

    name: str
    dtype: str
    min_cosine: float
    max_abs: float
    allow_tf32: bool = False
    is_calibrated: bool = False


_ALL = (
    Tier(name='fp32', dtype='float32', min_cosine=0.999999, max_abs=1e-4),
    Tier(name='tf32', dtype='float32', min_cosine=0.9999, max_abs=5e-2, allow_tf32=True),
    Tier(name='fp16', dtype='float16', min_cosine=0.9999, max_abs=5e-2),
    Tier(name='bf16', dtype='bfloat16', min_cosine=0.9999, max_abs=1e-1),
    Tier(name='int8', dtype='int8', min_cosine=0.995, max_abs=5e-1, is_calibrated=True),
)

TIERS: Mapping[str, Tier] = MappingProxyType({tier.name: tier for tier in _ALL})
"""Name -> tier, the most faithful first."""

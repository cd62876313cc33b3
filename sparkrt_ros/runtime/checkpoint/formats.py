"""How the weight file of each kind of policy is read. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sparkrt_ros.runtime.checkpoint import act_shapes, pi_tensors
from sparkrt_ros.runtime.checkpoint.safetensors_file import SafetensorsHeader
from sparkrt_ros.runtime.checkpoint.weights import StoredWeights, load_weights

if TYPE_CHECKING:
    from torch import Tensor

Arranged = tuple[Mapping[str, str], tuple[str, ...]]


def _as_named(_: Any, names: Mapping[str, str]) -> Arranged:
    return names, ()


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """The weight file of one kind of policy.

    check: raises CheckpointError for tensors that do not fit the configuration.
    read: names (runtime name -> name in the file) -> the tensors.
    unread_prefixes: of weights that a file may hold and inference never reads.
    arrange: sorts out other spellings of names; returns warnings with them.
    has_older_form: whether statistics among the weights make up for missing processor files.
    """

    check: Callable[..., None]
    read: Callable[[SafetensorsHeader, Mapping[str, str]], Mapping[str, Tensor]]
    unread_prefixes: tuple[str, ...]
    arrange: Callable[[Any, Mapping[str, str]], Arranged] = _as_named
    has_older_form: bool = False


_PI = WeightFormat(
    check=pi_tensors.check_shapes,
    read=StoredWeights,
    unread_prefixes=pi_tensors.UNREAD_WEIGHTS,
    arrange=pi_tensors.arrange_names,
)

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        'act': WeightFormat(
            check=act_shapes.check_shapes,
            read=load_weights,
            unread_prefixes=('vae_encoder',),
            has_older_form=True,
        ),
        'pi0': _PI,
        'pi05': _PI,
    }
)
"""By the type of the policy."""

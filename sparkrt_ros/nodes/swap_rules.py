"""What a change of parameters asks for, and whether what came about is that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkrt_ros.nodes.parameter_spec import Value
from sparkrt_ros.nodes.policy_parameters import SWAP_PARAMETERS, PolicySettings


@dataclass(frozen=True, kw_only=True)
class SwapReport:
    """For the status; state as in PolicyStatus.msg. last_s: from the set to the changeover."""

    state: str = 'idle'
    text: str = ''
    target: str = ''
    done: int = 0
    failed: int = 0
    last_s: float = 0.0


def acceptable(
    wanted: PolicySettings, serving: PolicySettings, receipt: Mapping[str, Any]
) -> Callable[[str, str], bool]:
    """Whether a backend and a precision would do for ``wanted``.

    A swap brings what was asked for, or nothing. Only what was not asked anew may stay the
    substitute that serves: on a machine without CUDA, a change of precision leaves alone that
    ``cudagraph`` is ``fused`` there.
    serving, receipt: of the policy that serves.
    """
    backends, precisions = {wanted.config.backend}, {wanted.config.precision}
    if wanted.config.backend == serving.config.backend:
        backends.add(receipt['backend'])
    if wanted.config.precision == serving.config.precision:
        precisions.add(receipt['precision'])

    def accepts(backend: str, precision: str) -> bool:
        return ('auto' in backends or backend in backends) and precision in precisions

    return accepts


def is_another_policy(receipt: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two receipts are of policies that answer differently, not only in rounding."""
    return any(receipt.get(key) != other.get(key) for key in ('digest', 'vla'))


def target_text(wanted: Mapping[str, Value], in_effect: Mapping[str, Value]) -> str:
    """What a swap changes, for people: ``precision bf16, backend fused``."""
    names = [name for name in wanted if name in SWAP_PARAMETERS]
    changed = [name for name in names if wanted[name] != in_effect[name]]
    return ', '.join(f'{name} {wanted[name]}' for name in changed)

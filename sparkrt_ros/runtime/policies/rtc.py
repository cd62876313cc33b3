"""Real-time chunking (arXiv:2506.07339): a new chunk is drawn towards the one being played.

The sums are those of LeRobot 0.6.1, whose gradient through the network is the identity, so no
gradient is computed here. Everything that changes between inferences is a tensor: one recording
serves every delay and every previous chunk.
Shapes: ``B`` batch, ``T`` rows of a chunk, ``D`` width of an action in the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkrt_ros.runtime.policies.flow_matching import Velocity


@dataclass(frozen=True, kw_only=True)
class PreviousChunk:
    """What a new chunk has to continue, in the space of the network.

    actions: (B, T, D) float32, row 0 due when the observation was made; dimensions that the robot
        does not have are 0. weights: (B, T) float32 in [0, 1], all 0 for no previous chunk.
    """

    actions: Tensor
    weights: Tensor


def prefix_weights(
    delay: Tensor, horizon: Tensor, *, rows: int, schedule: str = 'linear'
) -> Tensor:
    """How much of the previous chunk each row keeps: (B, rows) float32.

    delay, horizon: (B,) integers in rows. Rows before the delay will have been played when the
    new chunk arrives, so they weigh 1; rows from the horizon on are free and weigh 0. In between
    the weight falls in a line, as ``exp``, or is that of the schedule's name.
    """
    end = horizon.unsqueeze(1)
    start = torch.minimum(delay.unsqueeze(1), end)
    row = torch.arange(rows, device=delay.device).unsqueeze(0)
    if schedule == 'zeros':
        return (row < start).to(torch.float32)
    if schedule == 'ones':
        return (row < end).to(torch.float32)
    falling = _line(row - start + 1, (end.clamp(max=rows) - start).clamp(min=0))
    if schedule == 'exp':
        falling = falling * torch.expm1(falling) / (math.e - 1)
    falling = torch.where(row < end, falling, torch.zeros_like(falling))
    return torch.where(row < start, torch.ones_like(falling), falling)


def _line(place: Tensor, count: Tensor) -> Tensor:
    """Inner points of ``torch.linspace(1, 0, count + 2)``, in its own order of operations."""
    step = -1.0 / (count + 1).to(torch.float32)
    ahead = 1.0 + step * place
    behind = -step * (count + 1 - place)
    return torch.where(place < (count + 2) // 2, ahead, behind)


def guidance_weights(times: Sequence[float], *, max_weight: float) -> tuple[float, ...]:
    """How strongly a step at each time pulls: ``(1 - s) / s * (s**2 + (1 - s)**2) / (1 - s)**2``.

    With ``s = 1 - time``; never above ``max_weight``, which is also the value at time 1. In single
    precision, as in LeRobot.
    """
    weights = []
    for time in times:
        s = torch.tensor(1.0 - time, dtype=torch.float32, device='cpu')
        rest = (1 - s) ** 2
        ratio = torch.nan_to_num((1 - s) / s, posinf=max_weight)
        weight = torch.nan_to_num(ratio * ((rest + s**2) / rest), posinf=max_weight)
        weights.append(min(float(weight), max_weight))
    return tuple(weights)


def guided(
    velocity: Velocity,
    previous: PreviousChunk,
    *,
    times: Sequence[float],
    weights: Sequence[float],
) -> Velocity:
    """Return ``velocity`` bent towards the previous chunk.

    times, weights: per evaluation; see ``guidance_weights``.
    """
    share = previous.weights.unsqueeze(-1)

    def bent(actions: Tensor, number: int) -> Tensor:
        plain = velocity(actions, number)
        outcome = actions - times[number] * plain
        return plain - weights[number] * ((previous.actions - outcome) * share)

    return bent

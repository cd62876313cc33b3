"""Flow matching: from noise at time 1 to actions at time 0 along a learned velocity.

Shapes: ``B`` batch, ``T`` rows of a chunk, ``D`` width of an action in the network, ``N``
evaluations of the velocity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkrt_ros.runtime.vla_config import SCHEDULES, SOLVERS

Velocity = Callable[[Tensor, int], Tensor]
"""(actions (B, T, D), number of the evaluation) -> velocity (B, T, D)."""


@dataclass(frozen=True, kw_only=True)
class FlowPlan:
    """When the velocity is asked for, and how far each step goes.

    times: of every evaluation, in their order; the tables of a network have a row for each.
    deltas: of every step, below 0.
    """

    solver: str
    times: tuple[float, ...]
    deltas: tuple[float, ...]


def make_plan(*, steps: int, schedule: str = 'uniform', solver: str = 'euler') -> FlowPlan:
    """Return the plan of ``steps`` steps.

    The uniform one has LeRobot's own numbers: ``1 + i * (-1 / steps)`` in double precision.
    """
    assert solver in SOLVERS
    power = SCHEDULES[schedule]
    if schedule == 'uniform':
        delta = -1.0 / steps
        starts = [1.0 + number * delta for number in range(steps)]
        deltas = [delta] * steps
    else:
        nodes = [((steps - number) / steps) ** power for number in range(steps + 1)]
        starts = nodes[:-1]
        deltas = [after - before for before, after in itertools.pairwise(nodes)]
    times = starts
    if solver == 'midpoint':
        pairs = zip(starts, deltas, strict=True)
        times = [time for start, delta in pairs for time in (start, start + delta / 2)]
    return FlowPlan(solver=solver, times=tuple(times), deltas=tuple(deltas))


def integrate(velocity: Velocity, noise: Tensor, plan: FlowPlan) -> Tensor:
    """Follow the velocity from ``noise`` (B, T, D) to the actions (B, T, D)."""
    actions = noise
    for number, delta in enumerate(plan.deltas):
        if plan.solver == 'euler':
            actions = actions + delta * velocity(actions, number)
            continue
        halfway = actions + delta / 2 * velocity(actions, 2 * number)
        actions = actions + delta * velocity(halfway, 2 * number + 1)
    return actions


def time_embedding(
    times: tuple[float, ...], *, width: int, min_period: float, max_period: float
) -> Tensor:
    """Sines, then cosines of the times: (N, width) float32 on the CPU.

    The periods are spaced geometrically. Computed in double precision from times in single
    precision, as in openpi.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device='cpu')
    period = min_period * (max_period / min_period) ** fraction
    frequency = 1.0 / period * 2 * math.pi
    moments = torch.tensor(times, dtype=torch.float32, device='cpu')
    phase = frequency[None, :] * moments[:, None]
    return torch.cat((phase.sin(), phase.cos()), dim=1).to(torch.float32)

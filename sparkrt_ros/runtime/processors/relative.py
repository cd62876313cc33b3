"""Actions relative to the state they were predicted from (LeRobot's relative actions).

Shapes: ``B`` batch, ``T`` rows of a chunk, ``A`` action size, ``S`` state size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.steps import RelativeActionsStep

ANCHOR_KEY = 'relative_actions.anchor'
"""Where preprocessing leaves the raw state (B, S) for whoever makes actions absolute."""


def relative_mask(step: RelativeActionsStep, action_size: int) -> tuple[bool, ...]:
    """Which of ``action_size`` actions are relative.

    One stays absolute when its name contains one of the excluded words, whatever their case.
    Without names all are relative, and so is an action beyond the names.
    """
    words = [word.lower() for word in step.exclude_joints if word]
    names = [name.lower() for name in (step.action_names or ())[:action_size]]
    mask = [not any(word in name for word in words) for name in names]
    return (*mask, *([True] * (action_size - len(mask))))


class Anchor:
    """Adds the state to relative actions, and takes it off again."""

    def __init__(
        self, step: RelativeActionsStep, *, action_size: int, device: torch.device
    ) -> None:
        self._size = action_size
        mask = relative_mask(step, action_size)
        self._mask = torch.tensor(mask, dtype=torch.float32, device=device)

    def to_absolute(self, actions: Tensor, state: Tensor) -> Tensor:
        """(B, T, A) or (B, A) relative to the state (B, S) -> absolute."""
        return actions + self._offset(actions, state)

    def to_relative(self, actions: Tensor, state: Tensor) -> Tensor:
        """The inverse of ``to_absolute``."""
        return actions - self._offset(actions, state)

    def _offset(self, actions: Tensor, state: Tensor) -> Tensor:
        offset = state[..., : self._size].to(actions) * self._mask
        return offset.unsqueeze(-2) if actions.dim() == 3 else offset

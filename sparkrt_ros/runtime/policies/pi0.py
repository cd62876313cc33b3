"""Pi0 (arXiv:2410.24164) in plain PyTorch, for inference: LeRobot's network, to the last digits.

The state is a token of the expert, ahead of the actions; time is mixed into each of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.policies.flow_matching import time_embedding
from sparkrt_ros.runtime.policies.gemma import MASKED, Modulation
from sparkrt_ros.runtime.policies.pi_network import PiNetwork


class Pi0Network(PiNetwork):
    """See PiNetwork. A row of ``moments`` is (W,): the embedding of the time."""

    def __init__(
        self, config: PiConfig, *, dtype: torch.dtype, exact_text_scale: bool = False
    ) -> None:
        super().__init__(config, dtype=dtype, exact_text_scale=exact_text_scale)
        width = config.sizes.expert.width
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    @staticmethod
    def condition_width(config: PiConfig) -> int:
        """See PiNetwork."""
        return 0

    def moments(self, times: Sequence[float]) -> Tensor:
        """See PiNetwork: (N, W)."""
        weight = self.action_in_proj.weight
        return time_embedding(
            tuple(times),
            width=weight.shape[0],
            min_period=self.config.min_period,
            max_period=self.config.max_period,
        ).to(weight)

    def expert_tokens(self, actions: Tensor, moment: Tensor, state: Tensor | None) -> Tensor:
        """See PiNetwork: the state, then one token per action."""
        assert state is not None
        weight = self.action_in_proj.weight
        embedded = self.action_in_proj(actions.to(weight.dtype))
        placed = torch.cat((embedded, moment.expand_as(embedded)), dim=2)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(placed)))
        return torch.cat((state.unsqueeze(1), mixed), dim=1)

    def modulations(self, moment: Tensor) -> tuple[Modulation, ...] | None:
        """See PiNetwork: plain norms."""
        return None

    def state_token(self, state: Tensor | None) -> Tensor | None:
        """See PiNetwork: (B, max_state_dim), padded with zeros -> (B, W)."""
        assert state is not None
        token: Tensor = self.state_proj(state.to(self.state_proj.weight.dtype))
        return token

    def _among(self, rows: int, device: torch.device) -> Tensor:
        """The state sees itself only; actions see everything."""
        mask = torch.zeros(1, 1, rows, rows, device=device)
        mask[:, :, 0, 1:] = MASKED
        return mask

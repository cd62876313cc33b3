"""Pi0.5 (arXiv:2504.16054) in plain PyTorch, for inference: LeRobot's network, to the last digits.

The state is text in the prompt; time modulates every norm of the expert.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparkrt_ros.runtime.checkpoint.pi_config import PiConfig
from sparkrt_ros.runtime.policies.flow_matching import time_embedding
from sparkrt_ros.runtime.policies.gemma import Modulation, modulations_of
from sparkrt_ros.runtime.policies.pi_network import PiNetwork


class Pi05Network(PiNetwork):
    """See PiNetwork. A row of ``moments`` is (2 L + 1, 3, W): what every norm of the expert does.

    So during a step neither time nor its network is computed.
    """

    def __init__(
        self, config: PiConfig, *, dtype: torch.dtype, exact_text_scale: bool = False
    ) -> None:
        super().__init__(config, dtype=dtype, exact_text_scale=exact_text_scale)
        width = config.sizes.expert.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    @staticmethod
    def condition_width(config: PiConfig) -> int:
        """See PiNetwork."""
        return config.sizes.expert.width

    def moments(self, times: Sequence[float]) -> Tensor:
        """See PiNetwork: (N, 2 L + 1, 3, W) float32."""
        weight = self.time_mlp_in.weight
        embedded = time_embedding(
            tuple(times),
            width=weight.shape[1],
            min_period=self.config.min_period,
            max_period=self.config.max_period,
        )
        hidden = F.silu(self.time_mlp_in(embedded.to(weight)))
        return self.expert.modulate(F.silu(self.time_mlp_out(hidden)))

    def expert_tokens(self, actions: Tensor, moment: Tensor, state: Tensor | None) -> Tensor:
        """See PiNetwork: one token per action."""
        tokens: Tensor = self.action_in_proj(actions.to(self.action_in_proj.weight.dtype))
        return tokens

    def modulations(self, moment: Tensor) -> tuple[Modulation, ...]:
        """See PiNetwork."""
        return modulations_of(moment)

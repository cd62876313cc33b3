"""What fits a policy network to a session: its regions, and how they make a chunk.

Shapes: ``B`` batch, ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from sparkrt_ros.runtime.backends.base import ExecutionBackend, Region, RegionFunction
from sparkrt_ros.runtime.precision.tiers import Tier
from sparkrt_ros.runtime.types import Capabilities


@dataclass(frozen=True, kw_only=True)
class PolicyContext:
    """The compiled regions of one session, and what it remembers within an episode.

    regions: by region name. memory: emptied at every reset; for policies that keep something
        between predictions (an encoded instruction, a cache).
    """

    regions: Mapping[str, RegionFunction]
    memory: dict[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget the episode."""
        self.memory.clear()


class PolicyAdapter(Protocol):
    """A policy as a session sees it.

    An adapter holds weights and no state of an episode: that lives in the context, so several
    sessions, with different backends, may share one adapter and compare their results.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the policy needs and yields."""

    def regions(self) -> tuple[Region, ...]:
        """Return every region, with distinct names; the same ones at each call."""

    def predict_chunk(
        self, context: PolicyContext, batch: Mapping[str, Tensor], *, noise: Tensor | None
    ) -> Tensor:
        """Preprocessed inputs by policy key -> (B, T, A) in model space (normalised).

        noise: the random start of an iterative policy; None draws it, a policy that takes none
            refuses any other value with ConfigError.
        The result may live in a buffer that the next prediction overwrites.
        """

    def fused(self, tier: Tier, *, plain_operators: bool = False) -> PolicyAdapter:
        """Return the same policy in its form for inference, in the arithmetic of ``tier``.

        plain_operators: leave fusing operators to a compiler. Raises BackendError when there is
        no such form.
        """

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the receipt should know about this form."""


def make_context(regions: Iterable[Region], *, backend: ExecutionBackend) -> PolicyContext:
    """Compile the regions with ``backend``. Raises BackendError when it cannot serve one."""
    return PolicyContext(regions={region.name: backend.compile(region) for region in regions})

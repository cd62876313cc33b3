"""How long each region of a policy took, where regions run one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sparkrt_ros.runtime.backends.base import RegionFunction
from sparkrt_ros.runtime.policies.adapter import PolicyContext


class StageTimes:
    """Wraps the regions of a context. One thread.

    synchronize: waits until the device has nothing left to do.
    """

    def __init__(self, *, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._seconds: dict[str, float] = {}

    def watch(self, context: PolicyContext) -> PolicyContext:
        """The same context, its regions timed; one that has a single region is left alone."""
        if len(context.regions) < 2:
            return context
        timed = {name: self._timed(name, region) for name, region in context.regions.items()}
        return PolicyContext(regions=timed, memory=context.memory)

    def take(self) -> Mapping[str, float]:
        """Region -> seconds, in the order of their ends, since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _timed(self, name: str, region: RegionFunction) -> RegionFunction:
        def run(*inputs: Tensor) -> Any:
            start_s = time.perf_counter()
            outputs = region(*inputs)
            self._synchronize()
            self._seconds[name] = time.perf_counter() - start_s
            return outputs

        return run

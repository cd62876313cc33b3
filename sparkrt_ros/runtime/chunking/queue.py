"""The action queue: one inference, then its first rows one by one.

Imports no torch. Shapes: ``T`` rows of a chunk, ``A`` action size.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sparkrt_ros.runtime.errors import ActionError, ConfigError
from sparkrt_ros.runtime.types import FloatArray


class ActionQueue:
    """Holds the first ``n_action_steps`` rows of the newest chunk (LeRobot's select_action).

    Raises ConfigError for fewer than one step.
    """

    def __init__(self, *, n_action_steps: int) -> None:
        if n_action_steps < 1:
            raise ConfigError(
                'n_action_steps', found=str(n_action_steps), expected='an integer of at least 1'
            )
        self._n_action_steps = n_action_steps
        self._rows: deque[FloatArray] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def refill(self, chunk: FloatArray) -> None:
        """Replace what is held by the first rows of ``chunk`` (T, A) float32, copied.

        Raises ActionError when the chunk is not two-dimensional or has too few rows.
        """
        if chunk.ndim != 2 or chunk.shape[0] < self._n_action_steps:
            raise ActionError(
                'action queue',
                found=f'a chunk of shape {chunk.shape}',
                expected=f'(rows, actions) with at least {self._n_action_steps} rows',
            )
        used = np.array(chunk[: self._n_action_steps], dtype=np.float32)
        self._rows = deque(used)

    def pop(self) -> FloatArray:
        """Return the next row (A,) float32, a copy. Raises ActionError when empty."""
        if not self._rows:
            raise ActionError('action queue', found='no action left', expected='a refill first')
        return self._rows.popleft().copy()

    def clear(self) -> None:
        """Drop all rows."""
        self._rows.clear()

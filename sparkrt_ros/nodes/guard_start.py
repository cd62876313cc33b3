"""The ramp from where a robot stands to the course it is to follow.

``from + s(t / T) (target - from)`` with ``s(x) = 10 x^3 - 15 x^4 + 6 x^5``, whose speed and
acceleration are 0 at both ends. The way to the first target takes at least as long as keeps it
within SHARE of the limits of speed and acceleration, the rest being left to the course itself:

    T >= PEAK_SPEED * distance / (SHARE * speed),
    T >= sqrt(PEAK_ACCELERATION * distance / (SHARE * acceleration))
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparkrt_ros.runtime.errors import ConfigError

MAX_BLEND_IN_S = 30.0
SHARE = 0.5
# Of s: 15/8 at x = 1/2, and 10/sqrt(3) at x = (1 - 1/sqrt(3)) / 2.
PEAK_SPEED = 1.875
PEAK_ACCELERATION = 5.7735026918962575

Float64Array = npt.NDArray[np.float64]


class StartRamp:
    """One ramp at a time, for ``size`` columns; nothing is allocated while it runs.

    duration_s: of a ramp, and more where the way is long; 0: none.
    """

    def __init__(self, *, size: int) -> None:
        self._duration_s = 0.0
        self._begin, self._work = np.zeros((2, size))
        self._length_s = 0.0
        self._passed_s = 0.0
        self._waiting = False
        self._wanted_s = 0.0
        self.running = False

    @property
    def duration_s(self) -> float:
        return self._duration_s

    @duration_s.setter
    def duration_s(self, duration_s: float) -> None:
        if not 0.0 <= duration_s <= MAX_BLEND_IN_S:
            raise ConfigError(
                'guard.blend_in_s',
                found=str(duration_s),
                expected=f'0 to {MAX_BLEND_IN_S:g} s',
            )
        self._duration_s = float(duration_s)

    def arm(self, *, at_most_s: float = np.inf) -> None:
        """The next target is the first of a motion; its ramp takes no longer than this.

        Or as long as is left of the ramp that this one replaces.
        """
        left_s = 0.0
        if self.running:
            left_s = self._length_s - self._passed_s
        elif self._waiting:
            left_s = self._wanted_s
        self._wanted_s = min(self._duration_s, max(at_most_s, left_s))
        self._waiting = self._wanted_s > 0.0
        self.running = False

    def shape(
        self,
        target: Float64Array,
        *,
        begin: Float64Array,
        max_rate: Float64Array,
        max_rate_change: Float64Array,
        period_s: float,
    ) -> None:
        """Move ``target``, in place, to where the ramp is one ``period_s`` later.

        begin: the command before the first one of the ramp. max_rate, max_rate_change: limits of
        the command, inf where there is none.
        """
        if self._waiting:
            self._waiting = False
            self.running = True
            self._passed_s = 0.0
            np.copyto(self._begin, begin)
            self._length_s = self._length(target, max_rate, max_rate_change)
        self._passed_s += period_s
        x = self._passed_s / self._length_s
        if x >= 1.0:
            self.running = False
            return
        share = x * x * x * (10.0 - x * (15.0 - 6.0 * x))
        np.subtract(target, self._begin, out=self._work)
        np.multiply(self._work, share, out=self._work)
        np.add(self._begin, self._work, out=target)

    @property
    def active(self) -> bool:
        """Whether the next target is to be shaped."""
        return self._waiting or self.running

    def _length(
        self, target: Float64Array, max_rate: Float64Array, max_rate_change: Float64Array
    ) -> float:
        way = np.abs(target - self._begin)
        slowest = float((way / (SHARE * max_rate)).max(initial=0.0))
        hardest = float((way / (SHARE * max_rate_change)).max(initial=0.0))
        return max(
            self._wanted_s, PEAK_SPEED * slowest, float(np.sqrt(PEAK_ACCELERATION * hardest))
        )

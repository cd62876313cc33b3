"""The last check before a command leaves: limits, first motion, finite values.

Everything is SI, one value per column of the action vector. Pure: no clock, no ROS, and nothing
allocated per command. The limits and their order are those of ``guard_limits``.

A motion begins at the measured pose. Its first target may be required to lie near that pose; then,
with ``blend_in_s``, the command goes over from the pose to the course along a ramp (see
``guard_start``), and so it does from the held command after a hold, within the time that was held
where that was shorter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.nodes.guard_limits import START, Float64Array, Limiter
from sparkrt_ros.nodes.guard_start import StartRamp
from sparkrt_ros.runtime.errors import ActionError, ConfigError

KINDS = ('position', 'velocity', 'acceleration', 'step', 'start', 'refused')


class Verdict(IntEnum):
    """PASSED: as wanted. LIMITED: changed by a limit. REFUSED: must not be sent."""

    PASSED = 0
    LIMITED = 1
    REFUSED = 2


class Guard:
    """Turns wanted commands into ones that may leave, each near enough to the one before.

    names: the A columns. limits: of the contract. velocity_columns: (A,) bool, columns that are
    velocities; a hold brings these to 0.
    velocity_scale: fraction of the contract's speeds, above 0 up to 1.
    start_max_error: refuse to start when a joint's first target is further than this from its
    measured position [rad or m]; 0: ramp from wherever the robot is.
    blend_in_s: duration of the ramp at the start and after a hold [s]; 0: the first command after
    :meth:`start` is one step of the limits from the measured pose.
    """

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        limits: ActionLimits,
        velocity_columns: npt.NDArray[np.bool_],
        velocity_scale: float = 1.0,
        start_max_error: float = 0.0,
        blend_in_s: float = 0.0,
    ) -> None:
        self._names = names
        self._velocity = velocity_columns
        self._limiter = Limiter(limits, velocity_columns)
        self._ramp = StartRamp(size=len(names))
        self._mask = np.zeros(len(names), dtype=np.bool_)
        self._aimed = np.zeros(len(names))
        self._begun = False
        self._held_s = 0.0
        self.started = False
        self.reason = ''
        self.reset_counters()
        self.set_options(
            velocity_scale=velocity_scale, start_max_error=start_max_error, blend_in_s=blend_in_s
        )

    def set_options(
        self, *, velocity_scale: float, start_max_error: float, blend_in_s: float = 0.0
    ) -> None:
        """Change all between two commands. Raises ConfigError, and changes none, if one is bad."""
        if not 0.0 < velocity_scale <= 1.0:
            raise ConfigError(
                'guard.velocity_scale', found=str(velocity_scale), expected='above 0 up to 1'
            )
        if not start_max_error >= 0.0:
            raise ConfigError(
                'guard.start_max_error', found=str(start_max_error), expected='0 or more'
            )
        self._ramp.duration_s = blend_in_s
        self._start_max_error = start_max_error
        self._limiter.scale(velocity_scale)

    @property
    def interventions(self) -> dict[str, int]:
        """Commands that were changed or not sent, by kind.

        position, velocity, acceleration, step: changed by that limit; a command may count under
        several. start: changed by the ramp, or too far from the measured pose. refused: not sent.
        """
        return dict(zip(KINDS, (*self._counts, self.refused), strict=True))

    def set_limits(self, limits: ActionLimits) -> None:
        """Other limits for the same joints, between two commands; the motion goes on.

        Joints that are outside by the new ones come back in within the limits of speed.
        """
        self._limiter.set_limits(limits)

    def start(self, measured: Float64Array) -> None:
        """Begin from the measured pose, (A,); columns that are velocities begin at 0.

        A joint that no sensor measures is NaN: it begins at its first target.
        Raises ActionError if the pose is mis-sized or infinite.
        """
        if measured.shape != self._mask.shape or np.isinf(measured).any():
            raise ActionError(
                'measured pose',
                found=f'{measured}',
                expected=f'{len(self._names)} values, finite or NaN, for {list(self._names)}',
            )
        self._limiter.begin(measured)
        self._begun = False
        self._held_s = 0.0
        self._ramp.arm()
        self.started = True

    def stop(self) -> None:
        """Forget the last command: the next motion begins from a measured pose again."""
        self.started = False

    def reset_counters(self) -> None:
        self.passed = 0
        self.limited = 0
        self.refused = 0
        self._counts = [0] * (len(KINDS) - 1)

    def apply(self, target: Float64Array, *, period_s: float, out: Float64Array) -> Verdict:
        """Write what may be sent instead of ``target``, (A,), one period after the last command.

        When REFUSED, ``out`` is unchanged, nothing must be sent, and ``reason`` says why.
        """
        refusal = self._refusal(target)
        if refusal:
            return self._refuse(refusal)
        limiter = self._limiter
        limiter.aim(target)
        if not self._begun:
            limiter.begin_unmeasured()
        touched = self._blend_in(period_s)
        limiter.approach(period_s)
        np.isfinite(limiter.target, out=self._mask)
        if np.count_nonzero(self._mask) < self._mask.size:
            return self._refuse(f'no finite command for {self._first_bad()}')
        self._begun = True
        self._held_s = 0.0
        limiter.finish(period_s, out)
        return self._count(touched | limiter.touched)

    def hold(self, *, period_s: float, out: Float64Array) -> None:
        """Write the command that keeps the robot where it is, (A,).

        Positions repeat the last command, or brake to rest where the contract limits
        acceleration; velocities go to 0.
        """
        if not self.started or not self._begun:
            raise ActionError(
                'guard', found='hold before any command', expected='start, then apply first'
            )
        self._limiter.brake(period_s)
        self._limiter.finish(period_s, out)
        self._held_s += period_s
        self._ramp.arm(at_most_s=self._held_s)

    def _blend_in(self, period_s: float) -> int:
        """Let the ramp shape the target, while there is one."""
        ramp, limiter = self._ramp, self._limiter
        if not ramp.active:
            return 0
        np.copyto(self._aimed, limiter.target)
        ramp.shape(
            limiter.target,
            begin=limiter.previous,
            max_rate=limiter.max_rate,
            max_rate_change=limiter.max_rate_change,
            period_s=period_s,
        )
        np.not_equal(self._aimed, limiter.target, out=self._mask)
        return START if np.count_nonzero(self._mask) else 0

    def _count(self, touched: int) -> Verdict:
        if not touched:
            self.passed += 1
            return Verdict.PASSED
        self.limited += 1
        for index in range(len(self._counts)):
            self._counts[index] += bool(touched & (1 << index))
        return Verdict.LIMITED

    def _refuse(self, reason: str) -> Verdict:
        self.reason = reason
        self.refused += 1
        return Verdict.REFUSED

    def _refusal(self, target: Float64Array) -> str:
        if not self.started:
            return 'no measured pose to start from'
        if target.shape != self._mask.shape:
            return f'{target.size} values for {len(self._names)} joints'
        np.isfinite(target, out=self._mask)
        if np.count_nonzero(self._mask) < self._mask.size:
            column = int(np.argmin(self._mask))
            return f'{target[column]} for joint {self._names[column]!r}'
        if not self._begun and self._start_max_error > 0.0:
            return self._start_refusal(target)
        return ''

    def _start_refusal(self, target: Float64Array) -> str:
        error = np.nan_to_num(np.abs(target - self._limiter.previous), nan=0.0)
        error[self._velocity] = 0.0
        column = int(np.argmax(error))
        if error[column] <= self._start_max_error:
            return ''
        self._counts[KINDS.index('start')] += 1
        return (
            f'first target of joint {self._names[column]!r} is {error[column]:.3f} from its '
            f'measured position, more than guard.start_max_error {self._start_max_error:g}'
        )

    def _first_bad(self) -> str:
        return f'joint {self._names[int(np.argmin(self._mask))]!r}'

"""The last check before a command leaves: limits, first motion, finite values.

Everything is SI, one value per column of the action vector. Pure: no clock, no ROS, and nothing
allocated per command. Where limits contradict each other, position counts before velocity, and
velocity before acceleration.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.runtime.errors import ActionError, ConfigError

# Rounding of the braking formula [rad or m]; a target missed by less is reached.
ROUNDING = 1e-9

Float64Array = npt.NDArray[np.float64]


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

    The first command after :meth:`start` is one velocity step from the measured pose.
    """

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        limits: ActionLimits,
        velocity_columns: npt.NDArray[np.bool_],
        velocity_scale: float = 1.0,
        start_max_error: float = 0.0,
    ) -> None:
        size = len(names)
        self._names = names
        self._limits = limits
        self._velocity = velocity_columns
        self._previous = np.zeros(size)
        self._previous_target = np.zeros(size)
        self._rate = np.zeros(size)
        self._target, self._feed, self._gap, self._step, self._bound = np.zeros((5, size))
        self._mask = np.zeros(size, dtype=np.bool_)
        self._limits_rate_change = bool(np.isfinite(limits.max_rate_change).any())
        self._fresh = True
        self._begun = False
        self.started = False
        self.reason = ''
        self.reset_counters()
        self.set_options(velocity_scale=velocity_scale, start_max_error=start_max_error)

    def set_options(self, *, velocity_scale: float, start_max_error: float) -> None:
        """Change both between two commands. Raises ConfigError for impossible values."""
        if not 0.0 < velocity_scale <= 1.0:
            raise ConfigError(
                'guard.velocity_scale', found=str(velocity_scale), expected='above 0 up to 1'
            )
        if not start_max_error >= 0.0:
            raise ConfigError(
                'guard.start_max_error', found=str(start_max_error), expected='0 or more'
            )
        self._start_max_error = start_max_error
        scale = np.where(self._velocity, velocity_scale, 1.0)
        self._low = self._limits.low * scale
        self._high = self._limits.high * scale
        self._max_rate = self._limits.max_rate * np.where(self._velocity, 1.0, velocity_scale)

    def start(self, measured: Float64Array) -> None:
        """Begin from the measured pose, (A,); columns that are velocities begin at 0.

        A joint that no sensor measures is NaN: it begins at its first target.
        Raises ActionError if the pose is mis-sized or infinite.
        """
        if measured.shape != self._previous.shape or np.isinf(measured).any():
            raise ActionError(
                'measured pose',
                found=f'{measured}',
                expected=f'{len(self._names)} values, finite or NaN, for {list(self._names)}',
            )
        self._previous[:] = measured
        self._previous[self._velocity] = 0.0
        self._rate[:] = 0.0
        self._fresh = True
        self._begun = False
        self.started = True

    def stop(self) -> None:
        """Forget the last command: the next motion begins from a measured pose again."""
        self.started = False

    def reset_counters(self) -> None:
        self.passed = 0
        self.limited = 0
        self.refused = 0

    def apply(self, target: Float64Array, *, period_s: float, out: Float64Array) -> Verdict:
        """Write what may be sent instead of ``target``, (A,), one period after the last command.

        When REFUSED, ``out`` is unchanged, nothing must be sent, and ``reason`` says why.
        """
        refusal = self._refusal(target)
        if refusal:
            self.reason = refusal
            self.refused += 1
            return Verdict.REFUSED
        self._approach(target, period_s)
        self._finish(period_s, out)
        np.not_equal(out, target, out=self._mask)
        if self._mask.any():
            self.limited += 1
            return Verdict.LIMITED
        self.passed += 1
        return Verdict.PASSED

    def hold(self, *, period_s: float, out: Float64Array) -> None:
        """Write the command that keeps the robot where it is, (A,).

        Positions repeat the last command, or brake to rest where the contract limits
        acceleration; velocities go to 0.
        """
        if not self.started or not self._begun:
            raise ActionError(
                'guard', found='hold before any command', expected='start, then apply first'
            )
        self._rate_bounds(period_s)
        np.clip(0.0, self._gap, self._bound, out=self._rate)
        np.multiply(self._rate, period_s, out=self._step)
        np.add(self._previous, self._step, out=self._target)
        self._keep_inside()
        np.multiply(self._max_rate, period_s, out=self._step)
        np.subtract(self._previous, self._step, out=self._gap)
        np.add(self._previous, self._step, out=self._bound)
        np.clip(0.0, self._gap, self._bound, out=self._feed)
        np.copyto(self._target, self._feed, where=self._velocity)
        self._finish(period_s, out)
        self._fresh = True

    def _refusal(self, target: Float64Array) -> str:
        if not self.started:
            return 'no measured pose to start from'
        if target.shape != self._previous.shape:
            return f'{target.size} values for {len(self._names)} joints'
        np.isfinite(target, out=self._mask)
        if not self._mask.all():
            column = int(np.argmin(self._mask))
            return f'{target[column]} for joint {self._names[column]!r}'
        if not self._begun and self._start_max_error > 0.0:
            return self._start_refusal(target)
        return ''

    def _start_refusal(self, target: Float64Array) -> str:
        error = np.nan_to_num(np.abs(target - self._previous), nan=0.0)
        error[self._velocity] = 0.0
        column = int(np.argmax(error))
        if error[column] <= self._start_max_error:
            return ''
        return (
            f'first target of joint {self._names[column]!r} is {error[column]:.3f} from its '
            f'measured position, more than guard.start_max_error {self._start_max_error:g}'
        )

    def _approach(self, target: Float64Array, period_s: float) -> None:
        """The nearest to ``target`` that every limit allows, into ``self._target``.

        Each limit narrows an interval by clipping, so that an allowed target passes bit for bit.
        """
        np.clip(target, self._low, self._high, out=self._feed)
        np.copyto(self._target, self._feed)
        if not self._begun:
            np.isnan(self._previous, out=self._mask)
            np.copyto(self._previous, self._target, where=self._mask)
        if self._limits_rate_change:
            self._limit_rate_change(period_s)
        np.multiply(self._max_rate, period_s, out=self._step)
        np.subtract(self._previous, self._step, out=self._gap)
        np.add(self._previous, self._step, out=self._bound)
        np.clip(self._target, self._gap, self._bound, out=self._target)
        self._keep_inside()
        self._fresh = False
        self._begun = True

    def _finish(self, period_s: float, out: Float64Array) -> None:
        np.subtract(self._target, self._previous, out=self._rate)
        np.divide(self._rate, period_s, out=self._rate)
        np.copyto(self._previous, self._target)
        np.copyto(out, self._target)

    def _keep_inside(self) -> None:
        """Inside the position limits, or no further outside than the last command was."""
        np.minimum(self._low, self._previous, out=self._gap)
        np.maximum(self._high, self._previous, out=self._bound)
        np.clip(self._target, self._gap, self._bound, out=self._target)

    def _rate_bounds(self, period_s: float) -> None:
        """Rates that acceleration allows next: from ``_gap`` to ``_bound``."""
        np.multiply(self._limits.max_rate_change, period_s, out=self._step)
        np.subtract(self._rate, self._step, out=self._gap)
        np.add(self._rate, self._step, out=self._bound)

    def _limit_rate_change(self, period_s: float) -> None:
        """Change speed no faster than allowed, and brake in time not to overshoot the target.

        The speed of approach, relative to the moving target, is the discrete-time braking limit
        ``a T (sqrt(1/4 + q) - 1/2)`` with ``q = 2 d / (a T^2)``, from which rest is reached within
        the distance ``d``; written ``2 d / (T (1/2 + sqrt(1/4 + q)))`` it holds for ``a = inf``.
        """
        if self._fresh:
            np.copyto(self._previous_target, self._target)
        self._feed_rate(period_s)
        np.multiply(self._feed, period_s, out=self._step)
        np.subtract(self._target, self._previous, out=self._gap)
        np.subtract(self._gap, self._step, out=self._gap)
        np.abs(self._gap, out=self._gap)
        self._braking_rate(period_s)
        np.subtract(self._feed, self._step, out=self._gap)
        np.add(self._feed, self._step, out=self._bound)
        self._clip_between_rates(period_s)
        self._rate_bounds(period_s)
        self._clip_between_rates(period_s)
        np.subtract(self._target, self._previous_target, out=self._gap)
        np.abs(self._gap, out=self._gap)
        np.less_equal(self._gap, ROUNDING, out=self._mask)
        np.copyto(self._target, self._previous_target, where=self._mask)

    def _feed_rate(self, period_s: float) -> None:
        """How fast the target moves, into ``_feed``; the target is remembered."""
        np.subtract(self._target, self._previous_target, out=self._feed)
        np.divide(self._feed, period_s, out=self._feed)
        np.negative(self._max_rate, out=self._bound)
        np.clip(self._feed, self._bound, self._max_rate, out=self._feed)
        np.copyto(self._previous_target, self._target)

    def _braking_rate(self, period_s: float) -> None:
        """From the distance in ``_gap`` to the speed of approach in ``_step``."""
        np.multiply(self._gap, 2.0, out=self._gap)
        np.multiply(self._limits.max_rate_change, period_s * period_s, out=self._bound)
        np.divide(self._gap, self._bound, out=self._step)
        np.add(self._step, 0.25, out=self._step)
        np.sqrt(self._step, out=self._step)
        np.add(self._step, 0.5, out=self._step)
        np.multiply(self._step, period_s, out=self._step)
        np.divide(self._gap, self._step, out=self._step)

    def _clip_between_rates(self, period_s: float) -> None:
        """Clip the target between the rates in ``_gap`` and ``_bound``."""
        for rate in (self._gap, self._bound):
            np.multiply(rate, period_s, out=rate)
            np.add(rate, self._previous, out=rate)
        np.clip(self._target, self._gap, self._bound, out=self._target)

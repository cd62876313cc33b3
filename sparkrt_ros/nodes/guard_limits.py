"""The limits of a command: position, speed, acceleration and step of every joint.

Each limit narrows an interval around the last command by clipping, so that an allowed target
passes bit for bit. They come in this order, and a later one wins where two contradict each other:
acceleration, speed, step, position. A robot that begins inside its position limits and at rest
never meets such a contradiction while the period stays the same or grows: acceleration also brakes
in time for the position limits.

Braking: rest can be reached within the distance ``d`` from the speed

    v = d / (k T) + a T (k - 1) / 2        k = ceil(sqrt(1/4 + 2 d / (a T^2)) - 1/2)

at an acceleration of at most ``a``, where ``k`` counts the periods ``T`` it takes: the sum of
``v, v - a T, v - 2 a T, ...`` over ``k`` periods is ``d / T``. Nothing is allocated per command.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import ActionLimits

# A target missed by less [rad or m] is reached: braking formulas round.
ROUNDING = 1e-9
# Stands for no limit of acceleration where infinity would make 0 * inf.
UNLIMITED = 1e15

Float64Array = npt.NDArray[np.float64]


def clip(
    values: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, *, out: Float64Array
) -> None:
    """As numpy's, which takes several times as long for a few joints."""
    np.maximum(values, low, out=out)
    np.minimum(out, high, out=out)


# What changed a command; bits, so that one command can have several.
POSITION, VELOCITY, ACCELERATION, STEP, START = (1 << bit for bit in range(5))


class Limiter:
    """Narrows ``target``, (A,), between the command before it and every limit.

    limits: of the contract. velocity_columns: (A,) bool, columns that are velocities: there the
    limits of the command are of its speed, and those of its rate of its acceleration.

    previous: the last command. touched: which kinds of limit changed the target since
    :meth:`aim`, as bits.
    """

    def __init__(self, limits: ActionLimits, velocity_columns: npt.NDArray[np.bool_]) -> None:
        size = velocity_columns.size
        self._velocity = velocity_columns
        self._position = ~velocity_columns
        self.target, self.previous, self.rate = np.zeros((3, size))
        self._goal, self._feed, self._gap, self._step = np.zeros((4, size))
        self._stages = tuple(np.zeros((4, size)))
        self._ways, self._count, self._brakes = np.zeros((3, 3, size))
        self._low_end, self._high_end = np.zeros((2, size))
        self._mask, self._changed = np.zeros((2, size), dtype=np.bool_)
        self.touched = 0
        self._fresh = True
        self._velocity_scale = 1.0
        self.set_limits(limits)

    @property
    def max_rate(self) -> Float64Array:
        """Largest change of the command, (A,) per second, as scaled."""
        return self._max_rate

    @property
    def max_rate_change(self) -> Float64Array:
        return self._limits.max_rate_change

    def set_limits(self, limits: ActionLimits) -> None:
        """Other limits from the next command on; the scale stays, and so does the motion."""
        self._limits = limits
        change = limits.max_rate_change
        self.limits_acceleration = bool(np.isfinite(change).any())
        self._acceleration = np.where(np.isfinite(change), change, UNLIMITED)
        # Thrice, since numpy allocates where shapes differ.
        self._decelerations = np.tile(self._acceleration, (3, 1))
        step = limits.max_step
        self._max_step = np.full(self.target.size, np.inf) if step is None else step
        self._limits_step = bool(np.isfinite(self._max_step).any())
        self.scale(self._velocity_scale)

    def scale(self, velocity_scale: float) -> None:
        """Use this fraction of the contract's speeds."""
        self._velocity_scale = velocity_scale
        scale = np.where(self._velocity, velocity_scale, 1.0)
        self._low = self._limits.low * scale
        self._high = self._limits.high * scale
        self._max_rate = self._limits.max_rate * np.where(self._velocity, 1.0, velocity_scale)

    def begin(self, at: Float64Array) -> None:
        """Start from rest at ``at``; columns that are velocities at 0."""
        self.previous[:] = at
        self.previous[self._velocity] = 0.0
        self.rate[:] = 0.0
        self._fresh = True

    def begin_unmeasured(self) -> None:
        """Joints that started at NaN begin at the target."""
        np.isnan(self.previous, out=self._mask)
        np.copyto(self.previous, self.target, where=self._mask)

    def aim(self, target: Float64Array) -> None:
        """Take a new target, inside its position limits."""
        self.touched = 0
        clip(target, self._low, self._high, out=self.target)
        np.not_equal(target, self.target, out=self._mask)
        if np.count_nonzero(self._mask):
            self._note(POSITION, VELOCITY)

    def approach(self, period_s: float) -> None:
        """Narrow the target by all limits, for a command ``period_s`` after the last one."""
        np.copyto(self._stages[0], self.target)
        if self.limits_acceleration:
            self._accelerate(period_s)
        np.copyto(self._stages[1], self.target)
        self._bound_rate(period_s)
        np.copyto(self._stages[2], self.target)
        self._bound_step()
        np.copyto(self._stages[3], self.target)
        self._keep_inside()
        self._fresh = False
        np.not_equal(self._stages[0], self.target, out=self._mask)
        if np.count_nonzero(self._mask):
            self._tell_apart()

    def brake(self, period_s: float) -> None:
        """Aim at rest: positions stay, or come to rest within acceleration; velocities go to 0."""
        self.touched = 0
        self._rate_window(period_s)
        clip(0.0, self._low_end, self._high_end, out=self.target)
        np.multiply(self.target, period_s, out=self.target)
        np.add(self.previous, self.target, out=self.target)
        np.copyto(self.target, 0.0, where=self._velocity)
        self._bound_rate(period_s)
        self._bound_step()
        self._keep_inside()
        self._fresh = True

    def finish(self, period_s: float, out: Float64Array) -> None:
        """The target leaves as the next command."""
        np.subtract(self.target, self.previous, out=self.rate)
        np.divide(self.rate, period_s, out=self.rate)
        np.copyto(self.previous, self.target)
        np.copyto(out, self.target)

    def _bound_rate(self, period_s: float) -> None:
        np.multiply(self._max_rate, period_s, out=self._gap)
        self._stay_within(self._gap)

    def _bound_step(self) -> None:
        if self._limits_step:
            self._stay_within(self._max_step)

    def _stay_within(self, gap: Float64Array) -> None:
        """No further than ``gap`` from the last command."""
        np.subtract(self.previous, gap, out=self._low_end)
        np.add(self.previous, gap, out=self._high_end)
        clip(self.target, self._low_end, self._high_end, out=self.target)

    def _keep_inside(self) -> None:
        """Inside the position limits, or no further outside than the last command was."""
        np.minimum(self._low, self.previous, out=self._low_end)
        np.maximum(self._high, self.previous, out=self._high_end)
        clip(self.target, self._low_end, self._high_end, out=self.target)

    def _accelerate(self, period_s: float) -> None:
        """Change speed no faster than allowed; brake in time for the target and for the limits.

        The speed of approach is relative to the moving target, so that a steady course is followed
        without lag.
        """
        self._feed_step(period_s)
        ways = self._ways
        np.subtract(self.target, self.previous, out=ways[0])
        np.subtract(ways[0], self._feed, out=ways[0])
        np.abs(ways[0], out=ways[0])
        np.subtract(self._high, self.previous, out=ways[1])
        np.subtract(self.previous, self._low, out=ways[2])
        self._braking_steps(period_s)
        np.add(self.previous, self._feed, out=self._feed)
        np.subtract(self._feed, ways[0], out=self._low_end)
        np.add(self._feed, ways[0], out=self._high_end)
        clip(self.target, self._low_end, self._high_end, out=self.target)
        np.subtract(self.previous, ways[2], out=self._low_end)
        np.add(self.previous, ways[1], out=self._high_end)
        clip(self.target, self._low_end, self._high_end, out=self.target)
        self._rate_window(period_s)
        for end in (self._low_end, self._high_end):
            np.multiply(end, period_s, out=end)
            np.add(end, self.previous, out=end)
        clip(self.target, self._low_end, self._high_end, out=self.target)
        np.subtract(self.target, self._goal, out=self._gap)
        np.abs(self._gap, out=self._gap)
        np.less_equal(self._gap, ROUNDING, out=self._mask)
        np.copyto(self.target, self._goal, where=self._mask)

    def _feed_step(self, period_s: float) -> None:
        """How far the target moved by itself since the last command, into ``_feed``."""
        if self._fresh:
            np.copyto(self._goal, self.target)
        np.subtract(self.target, self._goal, out=self._feed)
        np.copyto(self._goal, self.target)
        np.multiply(self._max_rate, period_s, out=self._high_end)
        np.negative(self._high_end, out=self._low_end)
        clip(self._feed, self._low_end, self._high_end, out=self._feed)

    def _braking_steps(self, period_s: float) -> None:
        """From the distances in ``_ways`` to the largest steps from which rest is reached in them.

        Of the way to the target, to the upper and to the lower position limit.
        """
        ways, count = self._ways, self._count
        clip(ways, 0.0, UNLIMITED, out=ways)
        np.multiply(self._decelerations, period_s * period_s, out=self._brakes)
        np.divide(ways, self._brakes, out=count)
        np.multiply(count, 2.0, out=count)
        np.add(count, 0.25, out=count)
        np.sqrt(count, out=count)
        np.subtract(count, 0.5, out=count)
        np.ceil(count, out=count)
        np.maximum(count, 1.0, out=count)
        np.divide(ways, count, out=ways)
        np.subtract(count, 1.0, out=count)
        np.multiply(count, self._brakes, out=count)
        np.multiply(count, 0.5, out=count)
        np.add(ways, count, out=ways)

    def _rate_window(self, period_s: float) -> None:
        """Rates that acceleration allows next: from ``_low_end`` to ``_high_end``."""
        np.multiply(self._acceleration, period_s, out=self._step)
        np.subtract(self.rate, self._step, out=self._low_end)
        np.add(self.rate, self._step, out=self._high_end)

    def _tell_apart(self) -> None:
        """Which limits changed the target, by the kind of column."""
        kinds = ((ACCELERATION, ACCELERATION), (VELOCITY, ACCELERATION), (STEP, STEP))
        stages = (*self._stages, self.target)
        for index, (position, velocity) in enumerate((*kinds, (POSITION, VELOCITY))):
            np.not_equal(stages[index], stages[index + 1], out=self._mask)
            self._note(position, velocity)

    def _note(self, position: int, velocity: int) -> None:
        np.logical_and(self._mask, self._velocity, out=self._changed)
        if np.count_nonzero(self._changed):
            self.touched |= velocity
        np.logical_and(self._mask, self._position, out=self._changed)
        if np.count_nonzero(self._changed):
            self.touched |= position

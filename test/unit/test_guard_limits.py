"""Every limit holds for any targets and periods, and each intervention is counted by its kind."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.nodes.guard import KINDS, Guard, Verdict
from sparkrt_ros.nodes.guard_limits import ROUNDING

NAMES = ('pan', 'lift', 'base')
VELOCITY = np.array([False, False, True])
PERIOD_S = 0.02
INF = math.inf
LOW, HIGH = np.array([-1.0, 0.0, -0.5]), np.array([1.0, 2.0, 0.5])
MAX_RATE = np.array([2.0, 5.0, 1.0])


def limits(*, acceleration=(10.0, INF, INF), max_step=None) -> ActionLimits:
    return ActionLimits(
        low=LOW,
        high=HIGH,
        max_rate=MAX_RATE,
        max_rate_change=np.array(acceleration),
        max_step=None if max_step is None else np.array(max_step),
    )


def guard(*, started_at=(0.0, 0.5, 0.0), bounds=None, **options) -> Guard:
    made = Guard(
        names=NAMES,
        limits=limits() if bounds is None else bounds,
        velocity_columns=VELOCITY,
        **options,
    )
    made.start(np.array(started_at))
    return made


def send(made: Guard, *target: float, period_s: float = PERIOD_S) -> np.ndarray:
    out = np.full(3, np.nan)
    made.apply(np.array(target), period_s=period_s, out=out)
    return out


anything = st.floats(allow_nan=True, allow_infinity=True)
near = st.floats(-3.0, 3.0)
runs = st.tuples(st.floats(-4.0, 4.0), st.floats(-4.0, 4.0), st.integers(1, 25))
actions = st.lists(
    st.one_of(
        st.tuples(near, near, near), st.tuples(anything, anything, anything), st.just('hold')
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(
    pose=st.tuples(st.floats(-1, 1), st.floats(0, 2), st.just(0.0)),
    plan=actions,
    blend_in_s=st.sampled_from([0.0, 0.1, 0.5]),
    periods=st.lists(st.floats(0.001, 0.2), min_size=1, max_size=5),
    bounds=st.sampled_from(
        [
            limits(),
            limits(acceleration=(INF, INF, INF), max_step=(0.01, INF, 0.3)),
            limits(acceleration=(0.3, 40.0, INF), max_step=(0.5, 0.001, INF)),
        ]
    ),
)
def test_position_speed_and_step_hold_for_any_targets_and_periods(
    pose, plan, blend_in_s, periods, bounds
):
    made = guard(started_at=pose, bounds=bounds, blend_in_s=blend_in_s)
    most = np.full(3, INF) if bounds.max_step is None else bounds.max_step
    previous, out = np.array(pose), np.zeros(3)
    for what, period_s in zip(plan, itertools.cycle(periods), strict=False):
        before = dict(made.interventions)
        if what == 'hold':
            if not (made.passed or made.limited):
                continue
            made.hold(period_s=period_s, out=out)
        elif made.apply(np.array(what), period_s=period_s, out=out) is Verdict.REFUSED:
            assert made.interventions['refused'] == before['refused'] + 1
            assert not np.isfinite(what).all()
            continue
        assert np.isfinite(out).all()
        assert (out >= LOW).all()
        assert (out <= HIGH).all()
        step = np.abs(out - previous)
        assert (step <= MAX_RATE * period_s * (1 + 1e-12) + 1e-12).all()
        assert (step <= most * (1 + 1e-12) + 1e-12).all()
        previous = out.copy()


def spread(plan, pose, period_s):
    """Goals of single ticks: a goal as it is, a run of two speeds tick by tick."""
    goal = np.array(pose)
    for what in plan:
        if isinstance(what, str):
            yield what
        elif isinstance(what[2], int):
            for _ in range(what[2]):
                goal = goal + np.array([what[0], what[1], 0.0]) * period_s
                yield goal
        else:
            goal = np.array(what)
            yield goal


@settings(deadline=None, max_examples=300)
@given(
    pose=st.tuples(st.floats(-1, 1), st.floats(0, 2), st.just(0.0)),
    plan=st.lists(st.one_of(st.tuples(near, near, near), runs, st.just('hold')), max_size=12),
    acceleration=st.sampled_from([(10.0, 3.0, INF), (1.0, 200.0, INF)]),
    blend_in_s=st.sampled_from([0.0, 0.3]),
    period_s=st.sampled_from([0.002, 0.02, 0.1]),
    grown=st.sampled_from([1.0, 2.5]),
)
def test_acceleration_holds_too_while_the_period_does_not_shrink(
    pose, plan, acceleration, blend_in_s, period_s, grown
):
    made = guard(started_at=pose, bounds=limits(acceleration=acceleration), blend_in_s=blend_in_s)
    most = np.array(acceleration)
    previous, rate, out = np.array(pose), np.zeros(3), np.zeros(3)
    goals = list(spread(plan, pose, period_s))
    for index, what in enumerate(goals):
        now_s = period_s if index < len(goals) // 2 else period_s * grown
        if isinstance(what, str):
            if index == 0 or not (made.passed or made.limited):
                continue
            made.hold(period_s=now_s, out=out)
        else:
            made.apply(what, period_s=now_s, out=out)
        speed = (out - previous) / now_s
        rounding = 2 * ROUNDING / now_s
        assert (np.abs(speed - rate) <= most * now_s * (1 + 1e-9) + rounding).all()
        previous, rate = out.copy(), speed


def braked(distance: float, *, acceleration: float, period_s: float) -> float:
    """How far a joint travels in all when it goes this far and then brakes; in plain floats."""
    speed, travelled = distance / period_s, 0.0
    while speed > 0.0:
        travelled += speed * period_s
        speed -= acceleration * period_s
    return travelled


@settings(deadline=None, max_examples=100)
@given(way=st.floats(1e-6, 0.9), acceleration=st.floats(0.5, 500.0))
def test_a_target_is_reached_without_overshoot_and_braking_is_as_late_as_can_be(way, acceleration):
    made = guard(bounds=limits(acceleration=(acceleration, INF, INF)))
    made.start(np.array([0.0, 0.5, 0.0]))
    place, course = 0.0, [0.0]
    for _ in range(200):
        place = send(made, way, 0.5, 0.0)[0]
        course.append(place)
    assert max(course) <= way
    assert course[-1] == way
    steps = np.diff(course)
    for index in range(len(steps) - 1):
        left = way - course[index]
        if steps[index] < steps[max(index - 1, 0)] - 1e-9:  # it brakes here
            latest = braked(
                steps[index] + 1e-4 * way, acceleration=acceleration, period_s=PERIOD_S
            )
            assert latest > left - 1e-9, 'a step further would have overshot'


def test_a_course_that_runs_into_a_position_limit_is_braked_before_it():
    made = guard(bounds=limits(acceleration=(10.0, INF, INF)))
    sent = [0.0]
    for tick in range(120):
        sent.append(send(made, 1.5 * tick * PERIOD_S, 0.5, 0.0)[0])
    rates = np.diff(sent) / PERIOD_S
    assert rates.max() > 1.4
    assert np.abs(np.diff(rates)).max() <= 10.0 * PERIOD_S + 1e-6
    assert sent[-1] == 1.0


def test_each_kind_is_counted_once_per_command():
    made = guard(bounds=limits(acceleration=(10.0, INF, INF), max_step=(INF, 0.05, INF)))
    send(made, 0.0, 0.5, 0.0)
    assert made.interventions == dict.fromkeys(KINDS, 0)
    send(made, 0.0, 0.6, 0.0)
    assert made.interventions == {**dict.fromkeys(KINDS, 0), 'step': 1}
    made = guard(bounds=limits(acceleration=(INF, INF, INF)))
    send(made, 0.0, -0.01, 0.0)
    send(made, 0.0, 0.9, 0.0)
    counts = made.interventions
    assert (counts['position'], counts['velocity']) == (1, 2)
    assert made.limited == 2
    made = guard()
    send(made, 0.02, 0.5, 0.0)
    assert made.interventions == {**dict.fromkeys(KINDS, 0), 'acceleration': 1}


def test_a_column_that_is_a_velocity_counts_its_limits_as_what_they_are():
    made = guard()
    send(made, 0.0, 0.5, 9.0)
    counts = made.interventions
    assert (counts['position'], counts['velocity'], counts['acceleration']) == (0, 1, 1)


def test_refusals_are_counted_and_nothing_leaves():
    made = guard(start_max_error=0.1)
    out = np.full(3, 77.0)
    for bad in ([0.5, 0.5, 0.0], [0.0, math.nan, 0.0], [0.0, 0.5]):
        assert made.apply(np.array(bad), period_s=PERIOD_S, out=out) is Verdict.REFUSED
    assert out.tolist() == [77.0] * 3
    assert made.interventions == {**dict.fromkeys(KINDS, 0), 'start': 1, 'refused': 3}
    made.reset_counters()
    assert made.interventions == dict.fromkeys(KINDS, 0)


@pytest.mark.parametrize('target', [1e308, -1e308])
def test_a_value_beyond_arithmetic_does_not_leave_where_nothing_limits(target):
    nothing = np.full(3, INF)
    made = guard(
        bounds=ActionLimits(
            low=-nothing, high=nothing, max_rate=nothing, max_rate_change=np.full(3, 10.0)
        )
    )
    for value in (target, -target, target, 0.0):
        with np.errstate(all='ignore'):
            out = send(made, value, 0.5, 0.0)
        assert made.refused or np.isfinite(out).all()


def test_a_step_limit_holds_whatever_the_rate_of_commands():
    made = guard(bounds=limits(acceleration=(INF, INF, INF), max_step=(0.01, INF, INF)))
    assert send(made, 1.0, 0.5, 0.0)[0] == 0.01
    assert send(made, 1.0, 0.5, 0.0, period_s=0.5)[0] == 0.02
    assert send(made, 1.0, 0.5, 0.0, period_s=0.001)[0] == pytest.approx(0.022), 'speed counts'

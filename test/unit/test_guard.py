"""What may leave the streamer: limits, the first motion, and never a bad value."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkrt_ros.convert.contract import ActionLimits
from sparkrt_ros.nodes.guard import Guard, Verdict
from sparkrt_ros.runtime.errors import ActionError, ConfigError

NAMES = ('pan', 'lift', 'base')
PERIOD_S = 0.02
INF = float('inf')


def limits(*, rate_change: tuple[float, float, float] = (INF, INF, INF)) -> ActionLimits:
    return ActionLimits(
        low=np.array([-1.0, 0.0, -0.5]),
        high=np.array([1.0, 2.0, 0.5]),
        max_rate=np.array([2.0, 5.0, 1.0]),
        max_rate_change=np.array(rate_change),
    )


def guard(*, rate_change=(INF, INF, INF), started_at=(0.0, 0.5, 0.0), **options) -> Guard:
    made = Guard(
        names=NAMES,
        limits=limits(rate_change=rate_change),
        velocity_columns=np.array([False, False, True]),
        **options,
    )
    if started_at is not None:
        made.start(np.array(started_at))
    return made


def send(made: Guard, *target: float) -> list[float]:
    out = np.full(3, 77.0)
    made.apply(np.array(target), period_s=PERIOD_S, out=out)
    return out.tolist()


def test_an_allowed_command_passes_bit_for_bit():
    made = guard()
    target = (0.1 / 3, 0.5 + 0.07 / 3, 0.01 / 3)
    assert send(made, *target) == list(target)
    assert (made.passed, made.limited, made.refused) == (1, 0, 0)


def test_each_joint_moves_at_most_its_velocity_limit_per_period():
    made = guard()
    assert send(made, 1.0, 2.0, 0.5) == pytest.approx([0.04, 0.6, 0.02])
    assert send(made, 1.0, 0.0, -0.5) == pytest.approx([0.08, 0.5, 0.0])
    assert made.limited == 2


def test_positions_stay_inside_their_limits():
    made = guard(started_at=(0.99, 0.01, 0.0))
    assert send(made, 1.5, -3.0, 0.0)[:2] == [1.0, 0.0]


def test_the_first_command_is_one_step_from_the_measured_pose():
    made = guard(started_at=(-0.9, 1.9, 0.0))
    assert send(made, 0.9, 0.1, 0.0) == pytest.approx([-0.86, 1.8, 0.0])


def test_nothing_leaves_before_a_measured_pose():
    made = guard(started_at=None)
    assert send(made, 0.0, 0.5, 0.0) == [77.0] * 3
    assert (made.refused, made.reason) == (1, 'no measured pose to start from')
    made.start(np.zeros(3))
    send(made, 0.0, 0.0, 0.0)
    made.stop()
    assert send(made, 0.0, 0.0, 0.0) == [77.0] * 3


@pytest.mark.parametrize('pose', [[0.0, 0.0], [np.inf, 0.0, 0.0]])
def test_a_pose_that_is_no_pose_is_refused(pose):
    with pytest.raises(ActionError, match=r"3 values, .* for \['pan', 'lift', 'base'\]"):
        guard(started_at=None).start(np.array(pose))


def test_a_joint_that_nothing_measures_begins_at_its_first_target_inside_the_limits():
    made = guard(started_at=(np.nan, 0.5, 0.0), start_max_error=0.5)
    with pytest.raises(ActionError, match='hold before any command'):
        made.hold(period_s=PERIOD_S, out=np.zeros(3))
    assert send(made, 1.7, 0.9, 0.0) == pytest.approx([1.0, 0.6, 0.0])
    assert send(made, 0.0, 0.9, 0.0) == pytest.approx([0.96, 0.7, 0.0])


def test_a_measured_velocity_is_no_start_for_a_velocity_column():
    made = guard(started_at=(0.0, 0.5, 0.4))
    assert send(made, 0.0, 0.5, 0.5)[2] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ('target', 'reason'),
    [
        ([0.0, np.nan, 0.0], "nan for joint 'lift'"),
        ([-np.inf, 0.5, 0.0], "-inf for joint 'pan'"),
        ([0.0, 0.5, 0.0, 0.0], '4 values for 3 joints'),
        ([], '0 values for 3 joints'),
    ],
)
def test_non_finite_and_mis_sized_commands_never_leave(target, reason):
    made = guard()
    out = np.full(3, 77.0)
    assert made.apply(np.array(target), period_s=PERIOD_S, out=out) is Verdict.REFUSED
    assert out.tolist() == [77.0] * 3
    assert (made.refused, made.reason) == (1, reason)
    assert send(made, 0.01, 0.5, 0.0) == [0.01, 0.5, 0.0], 'the next good one leaves'


def test_a_robot_outside_its_limits_is_led_back_and_never_further_out():
    made = guard(started_at=(1.2, -0.3, 0.0))
    assert send(made, 5.0, -5.0, 0.0)[:2] == pytest.approx([1.16, -0.2])
    for _ in range(20):
        last = send(made, 5.0, -5.0, 0.0)
    assert last[:2] == [1.0, 0.0]


def test_a_hold_repeats_positions_and_brings_velocities_to_0():
    made = guard(started_at=(0.0, 0.5, 0.0))
    for _ in range(3):
        send(made, 1.0, 0.6, 0.5)
    out = np.zeros(3)
    velocities = []
    for _ in range(4):
        made.hold(period_s=PERIOD_S, out=out)
        velocities.append(float(out[2]))
        assert out[:2].tolist() == [0.12, 0.6]
    assert velocities == pytest.approx([0.04, 0.02, 0.0, 0.0], abs=1e-15)


def test_a_hold_before_any_command_is_an_error():
    with pytest.raises(ActionError, match='start, then apply'):
        guard(started_at=None).hold(period_s=PERIOD_S, out=np.zeros(3))


def test_a_start_far_from_the_first_target_can_be_refused():
    made = guard(start_max_error=0.2)
    assert send(made, 0.3, 0.5, 0.4) == [77.0] * 3
    assert made.reason == (
        "first target of joint 'pan' is 0.300 from its measured position, "
        'more than guard.start_max_error 0.2'
    )
    assert send(made, 0.15, 0.5, 0.0) == pytest.approx([0.04, 0.5, 0.0])
    assert send(made, 1.0, 0.5, 0.0) == pytest.approx([0.08, 0.5, 0.0]), 'only the first counts'


def test_the_velocity_scale_slows_joints_and_bounds_base_speeds():
    made = guard(velocity_scale=0.5)
    assert send(made, 1.0, 2.0, 0.0) == pytest.approx([0.02, 0.55, 0.0])
    for _ in range(40):
        last = send(made, 1.0, 2.0, 0.5)
    assert last[2] == 0.25
    made.set_options(velocity_scale=1.0, start_max_error=0.0)
    assert send(made, 1.0, 2.0, 0.5)[2] == pytest.approx(0.27)


@pytest.mark.parametrize(
    'options', [{'velocity_scale': 0.0}, {'velocity_scale': 1.5}, {'start_max_error': -1.0}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        guard(**options)


def test_acceleration_is_limited_without_overshoot_or_creep():
    made = guard(rate_change=(10.0, INF, INF))
    positions = [0.0]
    for _ in range(200):
        positions.append(send(made, 0.8, 0.5, 0.0)[0])
    rates = np.diff(positions) / PERIOD_S
    assert np.abs(np.diff(rates, prepend=0.0)).max() <= 10.0 * PERIOD_S + 1e-9
    assert rates.max() == pytest.approx(2.0)
    assert max(positions) <= 0.8 + 1e-12
    assert positions[-1] == 0.8
    # Distance over speed, plus half the time each to gain and to lose it.
    assert np.flatnonzero(np.array(positions) == 0.8)[0] <= (0.8 / 2.0 + 0.2) / PERIOD_S + 2


def test_a_moving_target_is_followed_without_lag_under_an_acceleration_limit():
    made = guard(rate_change=(10.0, INF, INF), started_at=(0.0, 0.5, 0.0))
    for tick in range(60):
        target = 0.3 * (1 - np.cos(tick * PERIOD_S * 2.0))
        sent = send(made, target, 0.5, 0.0)[0]
        assert sent == pytest.approx(target, abs=1e-3)
    assert made.limited <= 2


def test_a_hold_brakes_where_acceleration_is_limited():
    made = guard(rate_change=(10.0, INF, INF))
    for _ in range(20):
        last = send(made, 0.9, 0.5, 0.0)[0]
    out = np.zeros(3)
    held = [last]
    for _ in range(20):
        made.hold(period_s=PERIOD_S, out=out)
        held.append(float(out[0]))
    rates = np.diff(held) / PERIOD_S
    assert np.abs(np.diff(rates)).max() <= 10.0 * PERIOD_S + 1e-9
    assert rates[-1] == 0.0
    assert last < held[-1] <= 1.0


@settings(deadline=None, max_examples=200)
@given(
    pose=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    targets=st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=0, max_size=4),
        min_size=1,
        max_size=12,
    ),
    rate_change=st.sampled_from([(INF, INF, INF), (10.0, 0.5, INF)]),
)
def test_whatever_comes_what_leaves_is_finite_inside_limits_and_near_the_last(
    pose, targets, rate_change
):
    made = guard(rate_change=rate_change, started_at=pose)
    bounds = limits()
    previous = np.array([pose[0], pose[1], 0.0])
    out = np.zeros(3)
    for target in targets:
        if made.apply(np.array(target), period_s=PERIOD_S, out=out) is Verdict.REFUSED:
            continue
        assert np.isfinite(out).all()
        assert (np.abs(out - previous) <= bounds.max_rate * PERIOD_S + 1e-12).all()
        assert (out >= np.minimum(bounds.low, previous)).all()
        assert (out <= np.maximum(bounds.high, previous)).all()
        previous = out.copy()


@pytest.mark.parametrize('rate_change', [(INF, INF, INF), (10.0, 1.0, INF)])
def test_a_command_allocates_no_array(rate_change):
    size = 3000
    wide = ActionLimits(
        low=np.full(size, -1.0),
        high=np.full(size, 1.0),
        max_rate=np.full(size, 2.0),
        max_rate_change=np.full(size, rate_change[0]),
    )
    made = Guard(
        names=tuple(map(str, range(size))),
        limits=wide,
        velocity_columns=np.zeros(size, dtype=np.bool_),
    )
    made.start(np.zeros(size))
    target, out = np.full(size, 0.5), np.zeros(size)
    made.apply(target, period_s=PERIOD_S, out=out)
    tracemalloc.start()
    for _ in range(100):
        made.apply(target, period_s=PERIOD_S, out=out)
        made.hold(period_s=PERIOD_S, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000, 'one array of bools would be 3000 bytes'


def test_limits_exchanged_in_motion_hold_from_the_next_command_on():
    made = guard()
    assert send(made, 1.0, 0.5, 0.0)[0] == pytest.approx(0.04)
    slower = ActionLimits(
        low=np.array([-1.0, 0.0, -0.5]),
        high=np.array([0.05, 2.0, 0.5]),
        max_rate=np.array([0.25, 5.0, 1.0]),
        max_rate_change=np.array([INF, INF, INF]),
    )
    made.set_limits(slower)
    assert send(made, 1.0, 0.5, 0.0)[0] == pytest.approx(0.045), 'it goes on from where it is'
    for _ in range(5):
        last = send(made, 1.0, 0.5, 0.0)[0]
    assert last == 0.05, 'the new end'
    made.set_limits(limits())
    assert send(made, 1.0, 0.5, 0.0)[0] == pytest.approx(0.09)


def test_limits_exchanged_keep_the_scale_and_may_bring_a_limit_of_acceleration():
    made = guard(velocity_scale=0.5)
    made.set_limits(limits(rate_change=(10.0, INF, INF)))
    steps = np.diff([0.0, *(send(made, 1.0, 0.5, 0.0)[0] for _ in range(6))])
    assert steps[0] <= 10.0 * PERIOD_S**2 + 1e-12
    assert steps.max() <= 0.5 * 2.0 * PERIOD_S + 1e-12


@given(
    targets=st.lists(st.floats(-1.5, 1.5), min_size=12, max_size=12),
    high=st.floats(-0.5, 1.0),
    max_rate=st.floats(0.1, 3.0),
    change=st.sampled_from((INF, 5.0, 40.0)),
    at=st.integers(1, 10),
)
@settings(max_examples=100, deadline=None)
def test_no_limit_that_is_exchanged_makes_a_command_jump(targets, high, max_rate, change, at):
    """Inside the new speed from the next command on, and never further outside the new range."""
    made = guard(rate_change=(20.0, INF, INF))
    sent = [0.0]
    for index, target in enumerate(targets):
        if index == at:
            made.set_limits(
                ActionLimits(
                    low=np.array([-1.0, 0.0, -0.5]),
                    high=np.array([high, 2.0, 0.5]),
                    max_rate=np.array([max_rate, 5.0, 1.0]),
                    max_rate_change=np.array([change, INF, INF]),
                )
            )
        sent.append(send(made, target, 0.5, 0.0)[0])
        limit = max_rate if index >= at else 2.0
        assert abs(sent[-1] - sent[-2]) <= limit * PERIOD_S + 1e-12
        if index >= at:
            assert sent[-1] <= max(high, sent[-2]) + 1e-12

"""The first motion: from the measured pose to the course along a ramp, and again after a hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_guard_limits import INF, PERIOD_S, guard, limits, send

from sparkrt_ros.nodes.guard import Guard
from sparkrt_ros.nodes.guard_start import PEAK_ACCELERATION, PEAK_SPEED, SHARE
from sparkrt_ros.runtime.errors import ConfigError

FREE = limits(acceleration=(INF, INF, INF))


def ramped(x: float) -> float:
    """The documented ramp in its textbook form."""
    return 6 * x**5 - 15 * x**4 + 10 * x**3


def held(made: Guard, ticks: int) -> np.ndarray:
    out = np.zeros(3)
    for _ in range(ticks):
        made.hold(period_s=PERIOD_S, out=out)
    return out


def test_the_command_follows_the_documented_ramp_and_then_the_course():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for tick in range(1, 40):
        sent = send(made, 0.1, 0.6, 0.01)
        part = ramped(tick * PERIOD_S / 0.4) if tick * PERIOD_S < 0.4 else 1.0
        wanted = [0.1 * part, 0.5 + 0.1 * part, 0.01 * part]
        np.testing.assert_allclose(sent, wanted, rtol=0, atol=1e-12)
    assert made.interventions['start'] == 19
    assert made.passed == 20
    assert made.interventions['velocity'] == 0


def test_the_ramp_leads_to_a_moving_course():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for tick in range(1, 60):
        target = 0.2 * math.sin(tick * 0.05)
        sent = send(made, target, 0.5, 0.0)[0]
    assert sent == target


@settings(deadline=None, max_examples=100)
@given(way=st.floats(-0.95, 0.95, allow_subnormal=False), duration_s=st.floats(0.05, 2.0))
def test_speed_and_acceleration_of_the_ramp_are_bounded(way, duration_s):
    """By the limits where there are any; the acceleration by the shape of the ramp where not."""
    made = guard(bounds=FREE, blend_in_s=duration_s)
    length_s = max(duration_s, PEAK_SPEED * abs(way) / (SHARE * 2.0))
    sent = [0.0, 0.0]
    for _ in range(round(length_s / PERIOD_S) + 3):
        sent.append(send(made, way, 0.5, 0.0)[0])
    speed = np.diff(sent) / PERIOD_S
    acceleration = np.diff(speed) / PERIOD_S
    assert np.abs(speed).max() <= SHARE * 2.0 * (1 + 1e-9)
    assert np.abs(speed).max() <= PEAK_SPEED * abs(way) / length_s * (1 + 1e-9)
    most = PEAK_ACCELERATION * abs(way) / length_s**2
    assert np.abs(acceleration).max() <= most * (1 + 1e-6) + 1e-9
    assert sent[-1] == way


def test_a_long_way_takes_as_long_as_the_limits_of_acceleration_ask_for():
    made = guard(bounds=limits(acceleration=(0.5, INF, INF)), blend_in_s=0.1)
    sent = [0.0, 0.0]
    while sent[-1] != 0.9:
        sent.append(send(made, 0.9, 0.5, 0.0)[0])
        assert len(sent) < 1000
    acceleration = np.diff(sent, n=2) / PERIOD_S**2
    assert np.abs(acceleration).max() <= SHARE * 0.5 * (1 + 1e-6)
    assert made.interventions['acceleration'] == 0
    length_s = math.sqrt(PEAK_ACCELERATION * 0.9 / (SHARE * 0.5))
    assert (len(sent) - 2) * PERIOD_S == pytest.approx(length_s, abs=2 * PERIOD_S)


def test_without_a_duration_the_first_command_is_one_step_of_the_limits():
    made = guard(bounds=FREE)
    assert send(made, 1.0, 0.5, 0.0)[0] == pytest.approx(0.04)
    assert made.interventions['start'] == 0


def test_a_new_start_ramps_from_the_newly_measured_pose():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for _ in range(30):
        send(made, 0.1, 0.5, 0.0)
    made.stop()
    made.start(np.array([-0.3, 0.5, 0.0]))
    first = send(made, 0.1, 0.5, 0.0)[0]
    assert first == pytest.approx(-0.3 + ramped(PERIOD_S / 0.75) * 0.4, abs=1e-9)


def test_after_a_long_hold_the_ramp_is_whole_and_begins_at_the_held_command():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for _ in range(30):
        send(made, 0.1, 0.5, 0.0)
    assert held(made, 50)[0] == 0.1
    for tick in range(1, 20):
        sent = send(made, 0.2, 0.5, 0.0)[0]
        assert sent == pytest.approx(0.1 + 0.1 * ramped(tick * PERIOD_S / 0.4), abs=1e-12)


def test_a_short_hold_is_left_within_its_own_length():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for _ in range(30):
        send(made, 0.1, 0.5, 0.0)
    held(made, 3)
    sent = [send(made, 0.101, 0.5, 0.0)[0] for _ in range(3)]
    assert 0.1 < sent[0] < sent[1] < sent[2] == 0.101


def test_a_hold_within_a_ramp_does_not_shorten_what_is_left_of_it():
    made = guard(bounds=FREE, blend_in_s=0.4)
    for _ in range(5):
        last = send(made, 0.4, 0.5, 0.0)[0]
    assert held(made, 1)[0] == last
    steps = np.diff([last, *(send(made, 0.4, 0.5, 0.0)[0] for _ in range(60))])
    assert steps.max() <= PEAK_SPEED * (0.4 - last) / 0.3 * PERIOD_S * 1.001
    assert steps.sum() == pytest.approx(0.4 - last)


def test_a_joint_that_nothing_measures_has_no_way_to_go():
    made = guard(bounds=FREE, blend_in_s=0.4, started_at=(math.nan, 0.5, 0.0))
    assert send(made, 0.7, 0.5, 0.0)[0] == 0.7


def test_too_far_a_start_is_refused_before_any_ramp():
    made = guard(bounds=FREE, blend_in_s=0.4, start_max_error=0.2)
    assert np.isnan(send(made, 0.3, 0.5, 0.0)).all()
    assert send(made, 0.15, 0.5, 0.0)[0] == pytest.approx(0.15 * ramped(PERIOD_S / 0.4))


@pytest.mark.parametrize('duration_s', [-0.1, 31.0, math.nan])
def test_an_impossible_duration_is_refused_and_nothing_changes(duration_s):
    made = guard(bounds=FREE, blend_in_s=0.4)
    with pytest.raises(ConfigError, match='blend_in_s'):
        made.set_options(velocity_scale=0.5, start_max_error=0.0, blend_in_s=duration_s)
    for _ in range(20):
        send(made, 0.05, 0.5, 0.0)
    assert send(made, 1.0, 0.5, 0.0)[0] == pytest.approx(0.09), 'the old scale of 1'

"""When a flow asks for its velocity, and how it follows it."""

from __future__ import annotations

import math

import pytest
import torch

from sparkrt_ros.runtime.policies.flow_matching import (
    FlowPlan,
    integrate,
    make_plan,
    time_embedding,
)


@pytest.mark.parametrize('steps', [1, 3, 7, 10])
def test_uniform_times_are_lerobots_to_the_last_bit(steps: int) -> None:
    plan = make_plan(steps=steps)
    assert plan.times == tuple(1.0 + i * (-1.0 / steps) for i in range(steps))
    assert plan.deltas == (-1.0 / steps,) * steps


@pytest.mark.parametrize(('schedule', 'power'), [('power1.5', 1.5), ('power2.0', 2.0)])
def test_powers_take_their_small_steps_last(schedule: str, power: float) -> None:
    plan = make_plan(steps=5, schedule=schedule)
    assert plan.times == pytest.approx([((5 - i) / 5) ** power for i in range(5)])
    assert sum(plan.deltas) == pytest.approx(-1.0)
    assert list(plan.deltas) == sorted(plan.deltas)
    assert plan.deltas[-1] > -1 / 5


def test_midpoint_asks_twice_a_step() -> None:
    plan = make_plan(steps=2, solver='midpoint')
    assert plan.times == pytest.approx((1.0, 0.75, 0.5, 0.25))
    assert plan.deltas == (-0.5, -0.5)


def endpoint(plan: FlowPlan) -> float:
    """Follow dx/dt = x from x(1) = e; the exact end, x(0), is 1."""
    start = torch.full((1, 1, 1), math.e, dtype=torch.float64)
    return float(integrate(lambda x, number: x, start, plan))


def test_euler_is_of_first_order_and_midpoint_of_second() -> None:
    errors = {
        (solver, steps): abs(endpoint(make_plan(steps=steps, solver=solver)) - 1.0)
        for solver in ('euler', 'midpoint')
        for steps in (10, 20)
    }
    assert errors['euler', 10] / errors['euler', 20] == pytest.approx(2, rel=0.1)
    assert errors['midpoint', 10] / errors['midpoint', 20] == pytest.approx(4, rel=0.15)
    assert errors['midpoint', 10] < errors['euler', 20]


@pytest.mark.parametrize('solver', ['euler', 'midpoint'])
@pytest.mark.parametrize('schedule', ['uniform', 'power1.5', 'power2.0'])
def test_the_velocity_is_asked_with_the_number_of_its_time(solver: str, schedule: str) -> None:
    """dx/dt = 2 t: the number must lead to the right time, or the end is elsewhere."""
    plan = make_plan(steps=200, schedule=schedule, solver=solver)
    end = integrate(lambda x, n: torch.full_like(x, 2 * plan.times[n]), torch.zeros(1, 1, 1), plan)
    assert float(end) == pytest.approx(-1.0, abs=1e-2)


def test_embedded_times_are_sines_then_cosines_of_all_periods() -> None:
    embedded = time_embedding((1.0, 0.25), width=8, min_period=4e-3, max_period=4.0)
    assert embedded.shape == (2, 8)
    assert embedded.dtype == torch.float32
    for row, time in zip(embedded, (1.0, 0.25), strict=True):
        for place in range(4):
            phase = 2 * math.pi * time / (4e-3 * 1000 ** (place / 3))
            assert float(row[place]) == pytest.approx(math.sin(phase), abs=1e-6)
            assert float(row[place + 4]) == pytest.approx(math.cos(phase), abs=1e-6)

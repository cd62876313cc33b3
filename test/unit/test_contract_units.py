"""Policy units and SI: each unit by known values, every map there and back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkrt_ros.convert.contract import JointSpec, RobotContract, StateEntry
from sparkrt_ros.convert.units import RANGE_UNITS, UNITS, unit_factor_and_base

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
# so far apart that the map keeps its digits, as any real joint's ends are
SPAN = st.tuples(st.floats(-10, 10), st.floats(-10, 10)).filter(lambda s: abs(s[0] - s[1]) > 1e-2)


def joint(name: str = 'a', unit: str = 'rad', **changes: object) -> JointSpec:
    if unit in RANGE_UNITS:
        changes.setdefault('range', (-1.0, 1.0))
    return JointSpec(name=name, unit=unit, min=-9.0, max=9.0, **changes)


def contract(*joints: JointSpec, state: tuple[StateEntry, ...] | None = None) -> RobotContract:
    names = tuple(spec.name for spec in joints)
    entries = tuple(StateEntry(joint=name) for name in names) if state is None else state
    return RobotContract(
        name='test',
        policy_rate_hz=10.0,
        control_rate_hz=50.0,
        hold_s=1.0,
        max_skew_s=0.1,
        joints=joints,
        action=names,
        outputs=(),
        state=entries,
    )


class TestKnownValues:
    @pytest.mark.parametrize(
        ('spec', 'policy', 'si'),
        [
            (joint(unit='rad'), 1.25, 1.25),
            (joint(unit='deg'), 180.0, math.pi),
            (joint(unit='m'), 0.5, 0.5),
            (joint(unit='mm'), 250.0, 0.25),
            (joint(unit='m/s'), 0.5, 0.5),
            (joint(unit='rad/s'), 0.5, 0.5),
            (joint(unit='deg/s'), 90.0, math.pi / 2),
            (joint(unit='range_0_100', range=(-0.2, 1.8)), 0.0, -0.2),
            (joint(unit='range_0_100', range=(-0.2, 1.8)), 25.0, 0.3),
            (joint(unit='range_0_100', range=(1.8, -0.2)), 0.0, 1.8),
            (joint(unit='range_m100_100', range=(-0.2, 1.8)), -100.0, -0.2),
            (joint(unit='range_m100_100', range=(-0.2, 1.8)), 0.0, 0.8),
            (joint(unit='range_0_1', range=(0.044, 0.0579)), 1.0, 0.0579),
            (joint(unit='range_m1_1', range=(0.0, 0.08)), -1.0, 0.0),
            (joint(unit='deg', sign=-1, offset=0.5), 90.0, 0.5 - math.pi / 2),
            (joint(unit='range_0_1', range=(0.0, 0.8), sign=-1, offset=0.8), 0.25, 0.6),
        ],
    )
    def test_both_ways(self, spec: JointSpec, policy: float, si: float) -> None:
        robot = contract(spec)
        assert robot.action_to_si([policy])[0] == pytest.approx(si, abs=1e-12)
        assert robot.action_to_policy([si])[0] == pytest.approx(policy, abs=1e-5)
        assert robot.state_to_policy([si])[0] == pytest.approx(policy, abs=1e-5)

    def test_every_unit_is_covered_above_and_known(self) -> None:
        for unit in UNITS:
            factor, _ = unit_factor_and_base(unit, (0.0, 1.0) if unit in RANGE_UNITS else None)
            assert factor != 0.0
        with pytest.raises(KeyError):
            unit_factor_and_base('furlong', None)
        with pytest.raises(ValueError, match='range'):
            unit_factor_and_base('range_0_1', None)

    def test_narrower_limits_do_not_rescale(self) -> None:
        wide = joint(unit='range_0_100', range=(0.0, 1.0))
        narrow = replace(wide, min=0.2, max=0.4)
        values = np.array([0.0, 50.0, 100.0])
        for value in values:
            expected = contract(wide).action_to_si([value])
            np.testing.assert_array_equal(contract(narrow).action_to_si([value]), expected)


class TestFields:
    def test_offsets_and_bases_belong_to_positions_only(self) -> None:
        spec = joint(unit='deg', sign=-1, offset=0.5)
        ranged = joint('b', unit='range_0_100', range=(0.2, 1.2))
        fields = ('position', 'velocity', 'effort')
        entries = tuple(StateEntry(joint=n, field=f) for n in 'ab' for f in fields)
        state = contract(spec, ranged, state=entries).state_to_policy([0.5, 1.0, 3.0] * 2)
        expected = [0.0, -180 / math.pi, -3.0, 30.0, 100.0, 3.0]
        np.testing.assert_allclose(state, expected, rtol=1e-6, atol=1e-6)

    def test_state_and_action_keep_their_own_order(self) -> None:
        robot = contract(
            joint('a', unit='deg'),
            joint('b', unit='mm'),
            state=(StateEntry(joint='b'), StateEntry(joint='a')),
        )
        np.testing.assert_allclose(robot.state_to_policy([0.25, math.pi]), [250, 180], rtol=1e-6)
        np.testing.assert_allclose(robot.action_to_si([180, 250]), [math.pi, 0.25])


class TestShapesAndTypes:
    def test_chunks_are_converted_row_by_row(self) -> None:
        robot = contract(joint('a', unit='deg'), joint('b', unit='range_0_1', range=(0.0, 0.8)))
        chunk = np.random.default_rng(0).uniform(-1, 1, (7, 2))
        rows = np.stack([robot.action_to_si(row) for row in chunk])
        np.testing.assert_array_equal(robot.action_to_si(chunk), rows)
        assert robot.action_to_si(chunk.astype(np.float32)).dtype == np.float64
        assert robot.action_to_policy(chunk).dtype == np.float32
        assert robot.state_to_policy(chunk).dtype == np.float32

    def test_the_input_is_not_changed_and_the_result_is_new(self) -> None:
        robot = contract(joint('a'))
        values = np.array([1.0])
        result = robot.action_to_si(values)
        result[0] = 9.0
        assert values.tolist() == [1.0]


@given(unit=st.sampled_from(['rad', 'm', 'm/s', 'rad/s']), value=FINITE)
def test_units_equal_to_si_round_trip_to_the_last_bit(unit: str, value: float) -> None:
    maps = contract(joint(unit=unit)).action_map
    assert maps.to_si([value])[0] == value
    assert maps.to_policy(maps.to_si([value]))[0] == value


@given(
    unit=st.sampled_from(UNITS),
    span=SPAN,
    sign=st.sampled_from([1, -1]),
    offset=st.floats(-10, 10),
    value=st.floats(-1000, 1000),
)
def test_every_map_is_its_own_inverse(
    unit: str, span: tuple[float, float], sign: int, offset: float, value: float
) -> None:
    """Within rounding: the map's terms reach 1e7 at these sizes, doubles keep 16 digits."""
    ranged = {'range': span} if unit in RANGE_UNITS else {}
    maps = contract(joint(unit=unit, sign=sign, offset=offset, **ranged)).action_map
    scale = float(abs(maps.scale[0]))
    size = abs(value) * scale + abs(float(maps.bias[0]))
    assert maps.to_policy(maps.to_si([value]))[0] == pytest.approx(
        value, abs=8e-16 * (size / scale + abs(value)) + 1e-300
    )
    assert maps.to_si(maps.to_policy([value]))[0] == pytest.approx(
        value, abs=8e-16 * (abs(value) + 2 * abs(float(maps.bias[0]))) + 1e-300
    )


@given(span=SPAN, unit=st.sampled_from(sorted(RANGE_UNITS)))
def test_the_ends_of_a_range_are_met(span: tuple[float, float], unit: str) -> None:
    ends = contract(joint(unit=unit, range=span)).action_map
    low, high = RANGE_UNITS[unit]
    assert ends.to_si([low])[0] == pytest.approx(span[0], abs=1e-12)
    assert ends.to_si([high])[0] == pytest.approx(span[1], abs=1e-12)

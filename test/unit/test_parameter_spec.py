"""One parameter: which values pass, what they become, and what is said of the others."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkrt_ros.nodes.parameter_spec import ParameterSpec, check_unique, given_type
from sparkrt_ros.runtime.errors import ConfigError


def spec(default, **changes):
    values = {'name': 'a.b', 'description': 'Something [rad].', 'kind': 'live', **changes}
    return ParameterSpec(default=default, **values)


@pytest.mark.parametrize(
    ('default', 'value', 'expected'),
    [
        (1.0, 50, 50.0),
        (1.0, 2.5, 2.5),
        ((1.0,), (0, 0), (0.0, 0.0)),
        ((1.0,), [0.5, 1], (0.5, 1.0)),
        ((1.0,), (), ()),
        (1, 7, 7),
        (True, False, False),
        ('a', 'b', 'b'),
        (('a',), ['b', 'c'], ('b', 'c')),
    ],
)
def test_accepted_values_have_the_declared_type(default, value, expected):
    result = spec(default).check(value)
    assert result == expected
    assert type(result) is type(expected)
    if isinstance(result, tuple):
        assert [type(item) for item in result] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ('default', 'value', 'text'),
    [
        (1.0, '50', "parameter 'a.b': found string '50'; expected double"),
        (1.0, True, "parameter 'a.b': found bool True; expected double"),
        (1.0, math.nan, "parameter 'a.b': found double nan; expected a finite double"),
        (1.0, math.inf, "parameter 'a.b': found double inf; expected a finite double"),
        (1.0, None, "parameter 'a.b': found no value; expected double"),
        (1.0, (1.0,), "parameter 'a.b': found double_array (1.0,); expected double"),
        (1, 1.0, "parameter 'a.b': found double 1.0; expected integer"),
        (1, True, "parameter 'a.b': found bool True; expected integer"),
        (True, 1, "parameter 'a.b': found integer 1; expected bool"),
        ('a', 1, "parameter 'a.b': found integer 1; expected string"),
        ((1.0,), 1.0, "parameter 'a.b': found double 1.0; expected double_array"),
        ((1.0,), ('x',), "parameter 'a.b': found string_array ('x',); expected double_array"),
        ((1.0,), 'abc', "parameter 'a.b': found string 'abc'; expected double_array"),
        (
            (1.0,),
            (1.0, math.nan),
            "parameter 'a.b': found double_array (1.0, nan); expected a finite double_array",
        ),
    ],
)
def test_refusals_name_the_parameter_what_was_given_and_what_is_expected(default, value, text):
    with pytest.raises(ConfigError) as caught:
        spec(default).check(value)
    assert str(caught.value) == text


def test_bounds_are_inclusive_and_hold_for_every_element():
    bounded = spec((1.0,), bounds=(0.0, 2.0))
    assert bounded.check((0, 2)) == (0.0, 2.0)
    with pytest.raises(ConfigError, match='double_array between 0 and 2'):
        bounded.check((1.0, 2.0001))


def test_choices():
    chosen = spec('queue', choices=('queue', 'ensemble'))
    assert chosen.check('ensemble') == 'ensemble'
    with pytest.raises(ConfigError, match=r"expected one of \['queue', 'ensemble'\]"):
        chosen.check('both')


@pytest.mark.parametrize(
    'changes',
    [
        {'default': 5.0, 'bounds': (0.0, 1.0)},
        {'default': 'c', 'choices': ('a', 'b')},
        {'default': math.nan},
    ],
)
def test_a_default_that_is_not_allowed_cannot_be_declared(changes):
    with pytest.raises(ConfigError):
        spec(**changes)


@pytest.mark.parametrize('changes', [{'kind': 'sometimes'}, {'description': ''}, {'default': ()}])
def test_a_spec_must_be_complete(changes):
    with pytest.raises(ValueError, match=r'a\.b'):
        spec(**{'default': 1.0, **changes})


def test_names_are_unique():
    with pytest.raises(ValueError, match=r"twice: \['a\.b'\]"):
        check_unique([spec(1.0), spec(2.0)])


def test_given_types():
    assert given_type(()) == 'empty array'
    assert given_type((1, 2.0)) == 'double/integer_array'
    assert given_type(None) == 'not set'


@given(st.one_of(st.floats(), st.integers(-(10**6), 10**6), st.text(max_size=3), st.booleans()))
def test_a_bounded_double_is_always_finite_and_inside(value):
    try:
        result = spec(0.5, bounds=(0.0, 1.0)).check(value)
    except ConfigError:
        return
    assert type(result) is float
    assert 0.0 <= result <= 1.0

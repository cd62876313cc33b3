"""Parameters as data: what a node can be told, checked without ROS.

A node's parameters are a tuple of :class:`ParameterSpec`. The node declares from it, the
commented `config/policy.yaml` and the table of the README are written from it, so that the three
cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sparkrt_ros.runtime.errors import ConfigError

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = (
    Scalar | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
)
Kind = Literal['live', 'swap', 'fixed']

_SCALAR_NAMES: Mapping[type, str] = {bool: 'bool', int: 'integer', float: 'double', str: 'string'}
_KINDS: Mapping[str, str] = {
    'live': 'taken at the next tick',
    'swap': 'a new policy is built beside the one that serves, then takes over between two chunks',
    'fixed': 'may change only before configure',
}


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter of a node.

    name: dotted (``chunking.mode``). default: a bool, int, float, str, or a tuple of one of these.
    description: one or two sentences, the unit in brackets (``[Hz]``). kind: when it may change.
    bounds: inclusive lower and upper limit of a number, or of every element of an array.
    choices: the only values allowed. element: type of the elements, needed for an empty tuple.
    names_file: setting it reads that file again; so it counts as changed with the same value, too.
    """

    name: str
    default: Value
    description: str
    kind: Kind
    bounds: tuple[float, float] | None = None
    choices: tuple[Scalar, ...] | None = None
    element: type | None = None
    names_file: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f'{self.name}: kind is {self.kind!r}, expected one of {list(_KINDS)}')
        if not self.description:
            raise ValueError(f'{self.name}: a description is needed')
        if isinstance(self.default, tuple) and not self.default and self.element is None:
            raise ValueError(f'{self.name}: element is needed for an empty default')
        self.check(self.default)

    @property
    def is_array(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def scalar_type(self) -> type:
        if isinstance(self.default, tuple):
            return self.element if self.element is not None else type(self.default[0])
        return type(self.default)

    @property
    def type_name(self) -> str:
        """ROS's name of the type: ``double``, ``string_array``, ..."""
        name = _SCALAR_NAMES[self.scalar_type]
        return f'{name}_array' if self.is_array else name

    @property
    def kind_text(self) -> str:
        return _KINDS[self.kind]

    def check(self, value: object) -> Value:
        """The value in this parameter's own type; integers become doubles where one is declared.

        Raises ConfigError naming the parameter, the type or limit expected, and what was given.
        """
        if not self.is_array:
            return self._check_scalar(value)
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise self._error(value)
        return tuple(self._check_scalar(item, whole=value) for item in value)  # type: ignore[return-value]

    def _check_scalar(self, value: object, *, whole: object = None) -> Scalar:
        shown = value if whole is None else whole
        kind = self.scalar_type
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind:
            raise self._error(shown)
        assert isinstance(value, (bool, int, float, str))
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(shown, expected=f'a finite {self.type_name}')
        if self.choices is not None and value not in self.choices:
            raise self._error(shown, expected=f'one of {list(self.choices)}')
        if self.bounds is not None and not self.bounds[0] <= float(value) <= self.bounds[1]:
            low, high = self.bounds
            raise self._error(shown, expected=f'{self.type_name} between {low:g} and {high:g}')
        return value

    def _error(self, value: object, *, expected: str | None = None) -> ConfigError:
        return ConfigError(
            f"parameter '{self.name}'",
            found=f'{given_type(value)} {value!r}' if value is not None else 'no value',
            expected=expected if expected is not None else self.type_name,
        )


def given_type(value: object) -> str:
    """ROS's name of the type of a value that was given: ``integer``, ``string_array``, ..."""
    if value is None:
        return 'not set'
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        names = sorted({given_type(item) for item in value})
        return f'{"/".join(names)}_array' if names else 'empty array'
    return _SCALAR_NAMES.get(type(value), type(value).__name__)


def check_unique(specs: Sequence[ParameterSpec]) -> None:
    """Raise ValueError where two specs carry one name."""
    names = [spec.name for spec in specs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f'parameters declared twice: {twice}')


# Of both nodes, as is the next.
TRACE_PARAMETER = ParameterSpec(
    name='trace',
    default=False,
    description='Publish on ~/trace what enters the node and what it does, for replays of bags.',
    kind='live',
)

CPUS_PARAMETER = ParameterSpec(
    name='cpus',
    default='',
    description="Processors this node's threads may run on, such as '0' or '2-3' or '0, 2-3'. "
    'Empty: all. An inference on the CPU and the control thread disturb each other least on '
    'processors of their own.',
    kind='live',
)

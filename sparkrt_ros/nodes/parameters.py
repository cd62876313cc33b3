"""Declares the parameters of a node from their specs and keeps a checked snapshot of them.

rclpy's own type check names neither the parameter nor what was expected, and refuses an integer
where a double is declared (``rate: 50``), so every parameter is declared with dynamic typing and
checked here.
"""

from __future__ import annotations

import difflib
from array import array
from collections.abc import Callable, Mapping, Sequence
from traceback import format_exc
from types import MappingProxyType
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from sparkrt_ros.nodes.parameter_spec import (
    Kind,
    ParameterSpec,
    Scalar,
    Value,
    check_unique,
    given_type,
)
from sparkrt_ros.runtime.errors import ConfigError, SparkRTError

__all__ = ['Kind', 'ParameterSet', 'ParameterSpec', 'Scalar', 'Value', 'given_type']

Values = Mapping[str, Value]
Check = Callable[[Values], None]
Listener = Callable[[Values, frozenset[str]], None]
# Names that belong to rclpy itself and may stand beside a node's own in a parameter file.
_FOREIGN = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')


class ParameterSet:
    """All parameters of one node.

    Setting is all or nothing: every value is checked against its spec and against the node's
    phase, then the new whole against the cross checks; the first objection refuses the request,
    its reason goes into the result, and the old values stay.

    ``values`` is an immutable snapshot, replaced as a whole, so any thread may read it.
    ``check`` (optional) takes the whole new mapping and raises ConfigError if it is impossible.
    ``veto`` does so too, knowing the names that change; asked at run time only, it may raise any
    SparkRTError.
    Raises ConfigError listing every wrong value when the node is started with one.
    """

    def __init__(
        self, node: Node, specs: Sequence[ParameterSpec], *, check: Check | None = None
    ) -> None:
        check_unique(specs)
        self._node = node
        self._specs: dict[str, ParameterSpec] = {spec.name: spec for spec in specs}
        self._check = check
        self._listeners: list[Listener] = []
        self._configured = False
        self._trusted = False
        self.veto: Listener = lambda values, changed: None
        self._values: Values = MappingProxyType({})
        values = self._declare_all()
        if check is not None:
            check(values)
        self._values = MappingProxyType(values)
        self._warn_unknown()
        node.add_pre_set_parameters_callback(self._promote)
        node.add_on_set_parameters_callback(self._judge)
        node.add_post_set_parameters_callback(self._take)

    @property
    def values(self) -> Values:
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def set_phase(self, *, configured: bool) -> None:
        """Tell whether parameters that are fixed may still change."""
        self._configured = configured

    def put_back(self, values: Values) -> None:
        """Set values that were in effect before, without asking again whether they are right."""
        self._trusted = True
        try:
            self._node.set_parameters_atomically(
                [Parameter(name, value=_to_ros(value)) for name, value in values.items()]
            )
        finally:
            self._trusted = False

    def on_change(self, listener: Listener) -> None:
        """Call ``listener(values, changed_names)`` after each accepted change (ROS thread)."""
        self._listeners.append(listener)

    def _declare_all(self) -> dict[str, Value]:
        values: dict[str, Value] = {}
        errors: list[ConfigError] = []
        for spec in self._specs.values():
            try:
                values[spec.name] = self._declare(spec)
            except ConfigError as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ConfigError(
                f'{len(errors)} parameters of {self._node.get_name()}',
                found='; '.join(f'{error.where}: {error.found}' for error in errors),
                expected='; '.join(error.expected for error in errors),
            )
        return values

    def _declare(self, spec: ParameterSpec) -> Value:
        """Declare bare, check, and only then attach limits: rclpy's own errors are poorer."""
        name = spec.name
        bare = ParameterDescriptor(description=spec.description, dynamic_typing=True)
        given = _from_ros(self._node.declare_parameter(name, _to_ros(spec.default), bare).value)
        if given is None and spec.is_array:
            given = ()  # `home: []` in a parameter file arrives as a parameter without a value
        value = spec.check(given)
        self._node.set_parameters([Parameter(name, value=_to_ros(value))])
        self._node.set_descriptor(name, describe(spec))
        return value

    def _warn_unknown(self) -> None:
        # No public accessor tells which overrides nobody declared; a typo would go unnoticed.
        given = getattr(self._node, '_parameter_overrides', {})
        for name in given:
            if name in self._specs or name.startswith(_FOREIGN):
                continue
            close = difflib.get_close_matches(name, self._specs, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ''
            self._node.get_logger().warning(f"unknown parameter '{name}' ignored{hint}")

    def _promote(self, parameters: list[Parameter[Any]]) -> list[Parameter[Any]]:
        return [self._promoted(parameter) for parameter in parameters]

    def _promoted(self, parameter: Parameter[Any]) -> Parameter[Any]:
        spec = self._specs.get(parameter.name)
        if spec is None:
            return parameter
        try:
            value = spec.check(_from_ros(parameter.value))
        except ConfigError:
            return parameter  # the judgement that follows gives the reason
        return Parameter(parameter.name, value=_to_ros(value))

    def _judge(self, parameters: list[Parameter[Any]]) -> SetParametersResult:
        try:
            self._merged(parameters)
        except SparkRTError as error:
            return SetParametersResult(successful=False, reason=str(error))
        except Exception as error:  # a defect in a check must not end the node
            reason = f'{type(error).__name__}: {error}'
            self._node.get_logger().error(f'parameters refused:\n{format_exc()}')
            return SetParametersResult(successful=False, reason=reason)
        return SetParametersResult(successful=True)

    def _merged(self, parameters: Sequence[Parameter[Any]]) -> dict[str, Value]:
        merged = dict(self._values)
        for parameter in parameters:
            spec = self._specs.get(parameter.name)
            if spec is None:
                continue
            value = spec.check(_from_ros(parameter.value))
            if value != merged[spec.name]:
                self._check_phase(spec)
            merged[spec.name] = value
        changed = self._changed(merged, parameters)
        if changed and not self._trusted:
            whole = MappingProxyType(merged)
            if self._check is not None:
                self._check(whole)
            self.veto(whole, changed)
        return merged

    def _check_phase(self, spec: ParameterSpec) -> None:
        if spec.kind == 'fixed' and self._configured:
            raise ConfigError(
                f"parameter '{spec.name}'",
                found='a new value while the node is configured',
                expected=f'no change then ({spec.kind}: {spec.kind_text})',
                remedy='clean the node up, set it, then configure again',
            )

    def _take(self, parameters: list[Parameter[Any]]) -> None:
        merged = dict(self._values)
        for parameter in parameters:
            spec = self._specs.get(parameter.name)
            if spec is not None:
                merged[spec.name] = spec.check(_from_ros(parameter.value))
        changed = self._changed(merged, parameters)
        if not changed:
            return
        self._values = MappingProxyType(merged)
        for listener in self._listeners:
            listener(self._values, changed)

    def _changed(self, merged: Values, given: Sequence[Parameter[Any]]) -> frozenset[str]:
        files = {p.name for p in given if p.name in self._specs and self._specs[p.name].names_file}
        return frozenset(
            name for name, value in merged.items() if name in files or value != self._values[name]
        )


def describe(spec: ParameterSpec) -> ParameterDescriptor:
    """The descriptor `ros2 param describe` shows for a spec."""
    descriptor = ParameterDescriptor(
        description=spec.description,
        additional_constraints=f'{spec.kind}: {spec.kind_text}',
        dynamic_typing=True,
    )
    if spec.choices is not None:
        descriptor.additional_constraints += f'; one of {list(spec.choices)}'
    if spec.bounds is not None and spec.scalar_type is float:
        low, high = spec.bounds
        descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
    elif spec.bounds is not None:
        low, high = spec.bounds
        descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return descriptor


def _to_ros(value: Value) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _from_ros(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple, array)) else value

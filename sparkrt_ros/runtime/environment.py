"""Choices from environment variables, for programs that are started by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparkrt_ros.runtime.errors import ConfigError

PREFIX = 'SPARKRT_'

_READERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    'str': (str, 'a name'),
    'int | None': (int, 'an integer'),
    'float | None': (float, 'a number'),
}


def read_environment(
    environment: Mapping[str, str], *, types: Mapping[str, str]
) -> dict[str, Any]:
    """Return field -> value of every variable ``SPARKRT_<FIELD>``.

    types: the fields that may be set so, with their annotations. Raises ConfigError for a variable
    of that prefix that names no field, listing those that do, and for a value of another type.
    """
    known = {PREFIX + name.upper(): name for name, kind in types.items() if kind in _READERS}
    values = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        if variable not in known:
            raise ConfigError(
                'environment', found=variable, expected=f'variables among {", ".join(known)}'
            )
        name = known[variable]
        read, expected = _READERS[types[name]]
        try:
            values[name] = read(text)
        except ValueError as error:
            raise ConfigError(variable, found=repr(text), expected=expected) from error
    return values

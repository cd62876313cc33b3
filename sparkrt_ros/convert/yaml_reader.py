"""Strict reading of YAML: every refusal names file, key path, what is there and what should be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from sparkrt_ros.runtime.errors import ContractError


class _UniqueKeyLoader(yaml.SafeLoader):
    """A SafeLoader that refuses a key written twice (plain YAML keeps the last one silently)."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        try:
            seen = key in result
        except TypeError as error:
            raise yaml.MarkedYAMLError(
                problem='a key must be plain text', problem_mark=key_node.start_mark
            ) from error
        if seen:
            raise yaml.MarkedYAMLError(
                problem=f'key {key!r} written twice', problem_mark=key_node.start_mark
            )
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


class YamlValue:
    """A value together with where it stands in its file; each reader method checks the type."""

    def __init__(self, value: Any, *, file: str, path: str = '') -> None:
        self.value = value
        self.file = file
        self.path = path

    @property
    def where(self) -> str:
        return f'{self.file}: {self.path}' if self.path else self.file

    def fail(self, *, found: str, expected: str, remedy: str | None = None) -> ContractError:
        """Build the error for this place; the caller raises it."""
        return ContractError(self.where, found=found, expected=expected, remedy=remedy)

    def child(self, key: str, value: Any) -> YamlValue:
        path = f'{self.path}.{key}' if self.path else key
        return YamlValue(value, file=self.file, path=path)

    def mapping(
        self, *, required: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> dict[str, YamlValue]:
        """Read a mapping with exactly the ``required`` keys and some of the ``optional`` ones."""
        values = self._plain_mapping()
        known = (*required, *optional)
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                raise self.fail(
                    found=f'unknown key {key!r}',
                    expected=f'only {_listed(known)}',
                    remedy=f'did you mean {near[0]!r}?' if near else f'remove {key!r}',
                )
        missing = [key for key in required if key not in values]
        if missing:
            raise self.fail(
                found=f'no {_listed(missing)} (keys here: {_listed(values) or "none"})',
                expected=f'the keys {_listed(required)}',
                remedy=f'add {_listed(missing)}',
            )
        return {key: self.child(key, value) for key, value in values.items()}

    def names(self) -> dict[str, YamlValue]:
        """Read a mapping whose keys are free names."""
        values = self._plain_mapping()
        for key in values:
            self.child(str(key), key).text()
        return {key: self.child(key, value) for key, value in values.items()}

    def items(self, *, length: int | None = None) -> list[YamlValue]:
        """Read a list, of exactly ``length`` elements where that is given."""
        if not isinstance(self.value, list) or (length and len(self.value) != length):
            size = f'{length} elements' if length else 'any length'
            raise self.fail(found=self.described(), expected=f'a list of {size}')
        return list(self._indexed(self.value))

    def text(self) -> str:
        """Read a non-empty text."""
        if not isinstance(self.value, str) or not self.value.strip():
            unquoted = isinstance(self.value, (bool, int, float))
            raise self.fail(
                found=self.described(),
                expected='a non-empty text',
                remedy='put it in quotes' if unquoted else None,
            )
        return self.value

    def choice(self, options: Iterable[str]) -> str:
        """Read one of ``options``."""
        known = tuple(options)
        if self.value not in known:
            near = difflib.get_close_matches(str(self.value), known, n=1)
            raise self.fail(
                found=self.described(),
                expected=f'one of {_listed(known)}',
                remedy=f'did you mean {near[0]!r}?' if near else None,
            )
        return str(self.value)

    def number(self, *, above: float | None = None, at_least: float | None = None) -> float:
        """Read a finite number (an integer is promoted), within the given bound."""
        value = self.value
        bound = ''
        if above is not None:
            bound = f' above {above:g}'
        elif at_least is not None:
            bound = f' of at least {at_least:g}'
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(
                found=self.described(), expected=f'a number{bound}', remedy=_number_remedy(value)
            )
        if not math.isfinite(value):
            raise self.fail(found=self.described(), expected=f'a finite number{bound}')
        too_low = above is not None and value <= above
        if too_low or (at_least is not None and value < at_least):
            raise self.fail(found=self.described(), expected=f'a number{bound}')
        return float(value)

    def integer(self, *, at_least: int) -> int:
        """Read a whole number of at least ``at_least``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.fail(
                found=self.described(), expected=f'a whole number of at least {at_least}'
            )
        return value

    def described(self) -> str:
        """Say what stands here, with its type."""
        if self.value is None:
            return 'nothing'
        kind = {str: 'text', bool: 'bool', list: 'list', dict: 'mapping'}.get(type(self.value))
        if kind == 'list':
            return f'a list of {len(self.value)}: {self.value!r}'
        if kind == 'mapping':
            return f'a mapping with keys {_listed(self.value)}'
        return f'{self.value!r} ({kind})' if kind else repr(self.value)

    def _plain_mapping(self) -> dict[Any, Any]:
        if not isinstance(self.value, dict):
            raise self.fail(found=self.described(), expected='a mapping (key: value)')
        return self.value

    def _indexed(self, values: Sequence[Any]) -> Iterator[YamlValue]:
        for index, value in enumerate(values):
            yield YamlValue(value, file=self.file, path=f'{self.path}[{index}]')


def read_yaml(path: Path) -> YamlValue:
    """Read one YAML document; unreadable files and YAML errors become ContractError."""
    file = str(path)
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(file, found=str(error), expected='a readable YAML file') from error
    try:
        # the loader is a SafeLoader: it builds plain values only
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ContractError(file, found=' '.join(str(error).split()), expected='YAML') from error
    return YamlValue(value, file=file)


def _number_remedy(value: Any) -> str | None:
    """YAML reads 1e-3 as text: say how to write it."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return f'write {number!r} without quotes and with a decimal point' if number else None


def _listed(names: Iterable[Any]) -> str:
    return ', '.join(str(name) for name in names)

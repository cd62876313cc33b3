"""Named sets of choices, as data: the YAML files of this folder, or a user's own.

A preset names fields of ``RuntimeConfig`` and their values; what it does not name keeps its
default, or what the caller says. Imports no torch.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from sparkrt_ros.runtime.errors import ConfigError

_SUFFIXES = ('.yaml', '.yml')


def list_presets() -> tuple[str, ...]:
    """Return the names of the presets that come with the package, sorted."""
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name[: -len('.yaml')] for name in entries if name.endswith('.yaml')))


def read_preset(name_or_path: str | Path) -> dict[str, Any]:
    """Return the choices of a preset, unchecked: field -> value.

    A ``Path``, or a string that ends in ``.yaml`` or ``.yml`` or has a slash in it, is a file;
    every other string is a name. Raises ConfigError for an unknown name, listing the known ones,
    for a file that cannot be read, and for anything but a mapping.
    """
    where, text = _read(name_or_path)
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = str(error).replace('\n', ' ')
        raise ConfigError(where, found=problem, expected='YAML') from error
    values = {} if values is None else values
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(
            where, found=type(values).__name__, expected='a mapping of fields to values'
        )
    return values


def _read(name_or_path: str | Path) -> tuple[str, str]:
    """Where a preset is, for messages, and its text."""
    name = str(name_or_path)
    if isinstance(name_or_path, Path) or name.endswith(_SUFFIXES) or '/' in name:
        try:
            return f'preset {name}', Path(name).expanduser().read_text(encoding='utf-8')
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, 'strerror', None) or str(error)
            raise ConfigError(f'preset {name}', found=reason, expected='a YAML file') from error
    known = list_presets()
    if name not in known:
        raise ConfigError(
            'preset',
            found=repr(name),
            expected=f'one of {", ".join(known)}, or the path of a YAML file',
        )
    text = files(__name__).joinpath(f'{name}.yaml').read_text(encoding='utf-8')
    return f'preset {name}', text

#!/usr/bin/env python3
"""Writes config/policy.yaml and the parameter table of the README from the nodes' specs.

tools/generate_parameters.py           write both
tools/generate_parameters.py --check   write nothing; exit 1 where either is out of date
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sparkrt_ros.nodes.parameter_spec import ParameterSpec, Value  # noqa: E402
from sparkrt_ros.nodes.policy_parameters import POLICY_PARAMETERS  # noqa: E402
from sparkrt_ros.nodes.streamer_parameters import STREAMER_PARAMETERS  # noqa: E402

CONFIG = ROOT / 'config' / 'policy.yaml'
README = ROOT / 'README.md'
BEGIN, END = '<!-- parameters:begin -->', '<!-- parameters:end -->'
NODES = (
    ('sparkrt', 'policy_node', POLICY_PARAMETERS),
    ('action_streamer', 'action_streamer', STREAMER_PARAMETERS),
)
HEADER = """\
# Every parameter of both nodes with its default. Written by tools/generate_parameters.py.
# live: taken at the next tick. swap: a new policy is built beside the one that serves, then takes
# over between two chunks. fixed: before configure.
"""


def yaml_text() -> str:
    """The whole of config/policy.yaml."""
    parts = [HEADER]
    for node, _, specs in NODES:
        parts.append(f"\n'/**/{node}':\n  ros__parameters:\n")
        group = ''
        for spec in sorted(specs, key=_group_order(specs)):
            prefix, _, leaf = spec.name.rpartition('.')
            if prefix != group:
                group = prefix
                parts.append(f'\n    {prefix}:\n')
            parts.append(_yaml_entry(spec, leaf, indent=' ' * (6 if prefix else 4)))
    return '\n'.join(part.rstrip('\n') for part in parts) + '\n'


def table_text() -> str:
    """What stands between the markers of the README."""
    lines: list[str] = []
    for node, executable, specs in NODES:
        lines += ['', f'**`{executable}`** (node `{node}`)', '']
        lines += ['| Parameter | Type | Default | Allowed | Changes | Meaning |']
        lines += ['|---|---|---|---|---|---|']
        for spec in specs:
            cells = (
                f'`{spec.name}`',
                spec.type_name,
                f'`{_yaml_value(spec.default)}`',
                _allowed(spec),
                spec.kind,
                spec.description.replace('|', '\\|'),
            )
            lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join([*lines, ''])


def readme_text(current: str) -> str:
    """The README with its table renewed. Raises ValueError where the markers are missing."""
    before, begin, rest = current.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f'{README} has no lines {BEGIN} and {END}')
    return f'{before}{BEGIN}\n{table_text()}\n{END}{after}'


def _group_order(specs: Sequence[ParameterSpec]):
    """Parameters without a group first, then the groups, each in the order of the specs."""
    names = [spec.name.rpartition('.')[0] for spec in specs]
    return lambda spec: (bool(p := spec.name.rpartition('.')[0]), names.index(p))


def _yaml_entry(spec: ParameterSpec, leaf: str, *, indent: str) -> str:
    allowed = _allowed(spec)
    text = f'{spec.description} ({spec.kind}{"; " + allowed if allowed else ""})'
    width = 99 - len(indent) - 2
    comment = '\n'.join(f'{indent}# {line}' for line in textwrap.wrap(text, width))
    return f'{comment}\n{indent}{leaf}: {_yaml_value(spec.default)}\n'


def _allowed(spec: ParameterSpec) -> str:
    if spec.choices is not None:
        return ', '.join(str(choice) for choice in spec.choices)
    if spec.bounds is not None:
        return f'{spec.bounds[0]:g} to {spec.bounds[1]:g}'
    return ''


def _yaml_value(value: Value) -> str:
    if isinstance(value, tuple):
        return f'[{", ".join(_yaml_value(item) for item in value)}]'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return repr(value)


def main() -> int:
    """Write, or compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--check', action='store_true', help='only compare')
    check = parser.parse_args().check
    stale = []
    for path, text in ((CONFIG, yaml_text()), (README, readme_text(README.read_text()))):
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text)
    if stale and check:
        print(f'out of date: {", ".join(stale)}; run tools/generate_parameters.py')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())

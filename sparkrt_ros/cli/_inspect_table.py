"""Tables of ``sparkrt inspect``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_report(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print what ``checkpoint.report.report`` returns."""
    console = console or Console()
    console.print(_summary(report))
    console.print(_features('Inputs, in the order the policy reads them', report['inputs']))
    console.print(_features('Outputs', report['outputs']))
    for name in ('preprocessor', 'postprocessor'):
        pipeline = report[name]
        steps = ' -> '.join(_step(step) for step in pipeline['steps'])
        console.print(Text(f'{name} ({pipeline["file"]}): {steps}'))
    for warning in report['warnings']:
        console.print(Text(f'warning: {warning}', style='yellow'))


def _table(title: str, *, show_header: bool) -> Table:
    return Table(title=Text(title), title_justify='left', show_header=show_header)


def _summary(report: Mapping[str, Any]) -> Table:
    table = _table(f'{report["model_type"]} policy in {report["folder"]}', show_header=False)
    table.add_column(style='bold', no_wrap=True)
    table.add_column(overflow='fold')
    for name, value in _summary_rows(report):
        table.add_row(name, Text(value))
    return table


def _summary_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    weights = report['weights']
    coefficient = report['temporal_ensemble_coeff']
    types = ', '.join(f'{name} {count:,}' for name, count in weights['parameters_by_type'].items())
    shape = ', '.join(f'{name} {value}' for name, value in report['architecture'].items())
    return [
        ('cameras', ', '.join(report['cameras']) or 'none'),
        ('state size', str(report['state_size'] or 'none')),
        ('environment state size', str(report['environment_state_size'] or 'none')),
        ('action size', str(report['action_size'])),
        (
            'chunk',
            f'{report["chunk_size"]} rows, of which {report["n_action_steps"]} are executed',
        ),
        ('temporal ensembling', 'off' if coefficient is None else f'coefficient {coefficient}'),
        ('architecture', shape),
        ('weights', f'{weights["file"]}, {weights["size_bytes"] / 1e6:.1f} MB'),
        (
            'parameters',
            f'{weights["parameters"]:,} in {weights["tensors"]} tensors ({types}), '
            f'{weights["inference_parameters"]:,} used for inference',
        ),
        ('digest', report['digest']),
    ]


def _features(title: str, features: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(title, show_header=True)
    table.add_column('key', no_wrap=True)
    table.add_column('shape', no_wrap=True)
    table.add_column('scaled by', no_wrap=True)
    table.add_column('statistics, lowest to highest', overflow='fold')
    for entry in features:
        source = entry.get('source_key', entry['key'])
        key = entry['key'] if source == entry['key'] else f'{entry["key"]}\n  from {source}'
        shape = ' x '.join(map(str, entry['shape']))
        statistics = '\n'.join(
            f'{name} {min(values):.4g} to {max(values):.4g}'
            for name, values in entry['statistics'].items()
        )
        table.add_row(*(Text(cell) for cell in (key, shape, entry['mode'], statistics)))
    return table


def _step(step: Mapping[str, Any]) -> str:
    renames = step.get('rename_map')
    if renames:
        return f'{step["name"]} ({", ".join(f"{old} to {new}" for old, new in renames.items())})'
    return str(step['name'])

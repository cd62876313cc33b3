"""The result of ``sparkrt parity`` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkrt_ros.replay.result import Comparison, ParityResult
from sparkrt_ros.runtime.parity import Agreement, least

_STYLES = {'pass': 'bold green', 'warn': 'bold yellow', 'fail': 'bold red'}
_SPACES = {'model': 'model', 'robot': 'SI'}
_MOST_WARNINGS = 12
# Of a log, which has no width of its own.
_LOG_WIDTH = 100


def print_result(
    result: ParityResult, console: Console | None = None, *, brief: bool = False
) -> None:
    """Print the verdicts, what they judge, and unless ``brief`` the figures of every joint."""
    if console is None:
        console = Console()
        console.width = console.width if console.is_terminal else _LOG_WIDTH
    console.print(_verdicts(result))
    for comparison in result.comparisons:
        for reason in comparison.reasons:
            names = f'{comparison.candidate} against {comparison.reference}'
            console.print(Text(f'{names}: {reason}', style=_STYLES[comparison.band]))
    if not brief:
        for comparison in result.comparisons:
            console.print(_joints(result, comparison))
        for line in _notes(result):
            console.print(line)
    console.print(Text(result.band.upper(), style=_STYLES[result.band]))


def _verdicts(result: ParityResult) -> Table:
    table = _table(f'{result.bag}: {len(result.records)} chunks')
    for name in ('against', 'verdict'):
        table.add_column(name)
    for name in ('cosine', 'max diff', 'worst chunk'):
        table.add_column(name, justify='right', no_wrap=True)
    begun_ns = result.records[0].taken_ns if result.records else 0
    for comparison in result.comparisons:
        space = comparison.spaces[0]
        at_s = (result.records[comparison.worst_chunk].taken_ns - begun_ns) / 1e9
        reference = comparison.reference + (' commands' if comparison.of_commands else '')
        table.add_row(
            comparison.candidate,
            reference,
            Text(comparison.band, style=_STYLES[comparison.band]),
            *_figures(space.overall if comparison.of_commands else least(space.chunks))[:2],
            f'{comparison.worst_chunk} ({at_s:.1f} s)',
        )
    return table


def _joints(result: ParityResult, comparison: Comparison) -> Table:
    """Every joint in every space."""
    table = _table(f'{comparison.candidate} against {comparison.reference}', first='joint')
    for space in comparison.spaces:
        for name in ('cosine', 'max', 'p99'):
            table.add_column(f'{_SPACES[space.space]} {name}', justify='right', min_width=7)
    table.add_column('unit')
    for index, (name, unit) in enumerate(zip(result.joint_names, result.units, strict=True)):
        cells = [text for space in comparison.spaces for text in _figures(space.joints[index])]
        table.add_row(name, *cells, unit)
    return table


def _notes(result: ParityResult) -> Iterator[Text]:
    for text in result.warnings[:_MOST_WARNINGS]:
        yield Text(f'note: {text}', style='yellow')
    left_out = len(result.warnings) - _MOST_WARNINGS
    if left_out > 0:
        yield Text(f'… and {left_out} more notes; the receipt (--json) has all', style='yellow')
    caught = all(
        band == 'fail'
        for bands in result.provenance['self_check'].values()
        for band in bands.values()
    )
    yield Text(
        'self-check: candidates that replay old input '
        + ('were failed' if caught else 'could not be told apart in this bag')
    )
    measured = result.provenance['measured']
    yield Text(f'replayed {measured["times_real_time"]:.1f} times as fast as it was recorded')


def _figures(agreement: Agreement) -> tuple[str, str, str]:
    if agreement.max_abs != agreement.max_abs:
        return '-', '-', '-'
    return (
        f'{agreement.cosine:.7f}',
        f'{agreement.max_abs:.1e}',
        f'{agreement.p99_abs:.1e}',
    )


def _table(title: str, first: str = 'candidate') -> Table:
    table = Table(title=title, title_justify='left', box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    return table

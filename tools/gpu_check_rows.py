"""What each report of the steps of gpu_check.sh says, as rows of one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def figures(out: Path) -> list[tuple[str, str]]:
    """The rows of the table: what was measured, and the value."""
    rows: list[tuple[str, str]] = []
    readers: dict[str, Callable[[dict[str, Any]], list[tuple[str, str]]]] = {
        'replays.json': _bench_rows,
        'forms.json': _bench_rows,
        'versus.json': _versus_rows,
        'node.json': _node_rows,
        'pi05.json': _pi_rows,
        'pi05_short.json': _pi_rows,
        'pi0.json': _pi_rows,
        'pi05_load.json': _load_rows,
    }
    for name, read in readers.items():
        path = out / name
        if path.is_file():
            try:
                rows += read(json.loads(path.read_text()))
            except (KeyError, TypeError, ValueError) as error:
                rows.append((name, f'not understood: {error!r}'))
    return rows


def _bench_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for arm in data['arms']:
        for part in ('whole', 'model'):
            times = arm[part]
            ratio = times['p99_ms'] / times['p50_ms']
            rows.append(
                (
                    f'{arm["served"]}: {part}, {times["count"]} times',
                    f'p50 {times["p50_ms"]:.3f} p99 {times["p99_ms"]:.3f} ms, p99/p50 {ratio:.3f}',
                )
            )
        seconds = arm['load_s'] + arm['warm_up_s']
        rows.append((f'{arm["served"]}: load and warm up', f'{seconds:.2f} s'))
    return rows


def _versus_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for arm in data['arms']:
        for part in ('model', 'whole'):
            times = arm[part]
            ratios = ', '.join(
                f'{times[key]:.1f} x {key.removeprefix("times_")}'
                for key in ('times_eager', 'times_compiled')
                if times.get(key) is not None
            )
            rows.append(
                (f'versus {arm["arm"]}: {part}', f'p50 {times["p50_ms"]:.3f} ms, {ratios}')
            )
    return rows


def _node_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [('node serves', data['serves'])]
    for name in (
        'stamp_to_command',
        'received_to_command',
        'sent_to_command',
        'before_chunk',
        'after_chunk',
        'inference',
    ):
        times = data[name]
        rows.append((f'node: {name}', f'p50 {times["p50_ms"]:.3f} p99 {times["p99_ms"]:.3f} ms'))
    rates = ', '.join(f'{name} {rate:.1f}' for name, rate in data['frames_per_s'].items())
    rows.append(('node: received per second', rates))
    rows.append(('node: configure to active', f'{data["configure_to_active_s"]:.2f} s'))
    return rows


def _pi_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    name = 'Pi0' if data['options']['pi0'] == 'True' else 'Pi0.5'
    name += f', {data["options"]["views"]} views, {data["options"]["tokens"]} tokens'
    fused = next((arm for arm in data['arms'] if arm['arm'] == 'fused'), None)
    rows = []
    for arm in data['arms']:
        ratio = f', {arm["p50_ms"] / fused["p50_ms"]:.2f} x fused' if fused else ''
        text = f'p50 {arm["p50_ms"]:.2f} p99 {arm["p99_ms"]:.2f} ms{ratio}'
        rows.append((f'{name}: {arm["arm"]}', f'{text}, cosine {arm["cosine"]:.6f}'))
    if alone := data.get('alone'):
        ratio = alone['p99_ms'] / alone['p50_ms']
        text = f'p50 {alone["p50_ms"]:.2f} p99 {alone["p99_ms"]:.2f} ms, p99/p50 {ratio:.3f}'
        rows.append((f'{name}: fused alone, {alone["count"]} times', text))
    rows.append((f'{name}: stages', str(data.get('stages'))))
    rows.append((f'{name}: peak', f'{data["peak_gb"]:.1f} GB'))
    return rows + [(f'{name}: without {key}', why) for key, why in data['left_out'].items()]


def _load_rows(data: dict[str, Any]) -> list[tuple[str, str]]:
    marks = ', '.join(f'{name} {at:.1f}' for name, at in data['marks_s'])
    return [
        ('Pi0.5: folder to active', f'{data["active_s"]:.1f} s ({marks})'),
        ('Pi0.5: device memory', f'{data["device_gb"]:.1f} GB, peak {data["device_peak_gb"]:.1f}'),
    ]

"""Every benchmark that a CPU can run, one after the other, and one summary.

    make bench
    make bench BENCH_ARGS='--repeat 200 --json out/bench'

Takes under three minutes as it is. What cannot run here is named, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / 'checkpoints' / 'embedded_pick_place'
LIMIT_S = 150.0


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One program that writes JSON where ``--json`` says. lines: its part of the summary."""

    name: str
    command: tuple[str, ...]
    lines: Callable[[dict[str, Any]], list[str]]


def policy_lines(result: dict[str, Any]) -> list[str]:
    first = result['arms'][0]['whole']['p50_ms']
    lines = [f'{"host frames to host actions [ms]":<34} {"p50":>8} {"p99":>8} {"max":>8} {"x":>6}']
    for arm in result['arms']:
        whole = arm['whole']
        times = ' '.join(f'{whole[f"{name}_ms"]:8.2f}' for name in ('p50', 'p99', 'max'))
        served = arm['arm'] if arm['served'] == arm['arm'] else f'{arm["arm"]} ({arm["served"]})'
        lines.append(f'{served:<34} {times} {first / whole["p50_ms"]:6.2f}')
    return lines


def control_lines(result: dict[str, Any]) -> list[str]:
    lines = [f'{"period of the commands [ms]":<34} {"p50":>8} {"p99":>8} {"max":>8} {"missed":>6}']
    for run in result['results']:
        name = f'{run["rate_hz"]:g} Hz, {run["scheduling"]}'
        times = ' '.join(f'{run[f"{name}_ms"]:8.2f}' for name in ('p50', 'p99', 'max'))
        lines.append(f'{name:<34} {times} {run["missed"]:6d}')
    return lines


def benchmarks(options: argparse.Namespace) -> list[Benchmark]:
    """Those whose program is there."""
    policy = (sys.executable, '-m', 'sparkrt_ros.cli.main', 'bench', str(options.folder))
    policy += ('--device', 'cpu', '--threads', str(options.threads))
    policy += ('--repeat', str(options.repeat))
    policy += ('--backend', 'eager', 'fused', '--precision', 'fp32', 'bf16')
    found = [Benchmark(name='policy', command=policy, lines=policy_lines)]
    jitter = ROOT / 'bench' / 'control_jitter.py'
    if jitter.is_file() and options.duration > 0:
        command = (sys.executable, str(jitter), '--duration', str(options.duration))
        command += ('--rates', '50', '200', '--priorities', '0')
        found.append(Benchmark(name='control', command=command, lines=control_lines))
    return found


def run(benchmark: Benchmark, target: Path) -> list[str]:
    """Run it with its output on ours; return its part of the summary."""
    print(f'== {benchmark.name}: {" ".join(benchmark.command)}', flush=True)
    environment = dict(os.environ)
    paths = [str(ROOT), environment.get('PYTHONPATH', '')]
    environment['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
    start = time.monotonic()
    try:
        command = [*benchmark.command, '--json', str(target)]
        code = subprocess.run(command, check=False, timeout=LIMIT_S, env=environment).returncode
    except subprocess.TimeoutExpired:
        return [f'failed: not done after {LIMIT_S:g} s']
    if code != 0:
        return [f'failed: exit code {code}']
    seconds = time.monotonic() - start
    return [*benchmark.lines(json.loads(target.read_text())), f'({seconds:.0f} s)']


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', type=Path, default=CHECKPOINT, help='the policy to measure')
    parser.add_argument('--repeat', type=int, default=50, help='predictions per form')
    parser.add_argument('--threads', type=int, default=0, help='of torch; 0: the fastest')
    parser.add_argument(
        '--duration', type=float, default=10.0, help='seconds of each control run; 0: none'
    )
    parser.add_argument('--json', type=Path, metavar='FOLDER', help='keep every result here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix='sparkrt_run_all_') as scratch:
        folder = options.json or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {b.name: run(b, folder / f'{b.name}.json') for b in benchmarks(options)}
    print('\n== summary')
    for name, lines in parts.items():
        print('\n'.join([f'\n{name}', *(f'  {line}' for line in lines)]))
    failed = any(lines[0].startswith('failed') for lines in parts.values())
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

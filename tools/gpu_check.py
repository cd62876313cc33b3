"""Runs the steps of gpu_check.sh: each with a limit of its own, and none stops the others."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / 'build' / 'gpu_check'
LOG = 'gpu_check.log'
SPARKRT = 'import sys; from sparkrt_ros.cli.main import main; sys.exit(main())'
TAIL_LINES = 40
TAIL_LINES_OF_SUCCESS = 15


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command with a time limit; ``report``: the JSON file it writes below the output folder."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    report: str = ''


@dataclass(frozen=True, kw_only=True)
class Outcome:
    step: Step
    result: str
    seconds: float


def benchmarks(out: Path, *, small: bool) -> list[Step]:
    """``small``: what a CPU can do in the same time, to try this file without a GPU."""
    name, fast = ('act-small', 'fused') if small else ('act-480x640x2', 'cudagraph')
    repeat, rounds, few = ('20', '5', '5') if small else ('10000', '100', '100')
    tiers = ['fp32'] if small else ['fp32', 'tf32', 'fp16', 'bf16']
    best = 'fp32' if small else 'fp16'
    bench = (sys.executable, '-c', SPARKRT, 'bench', '--random', name)
    versus = [sys.executable, 'bench/vs_lerobot.py', '--backend', fast]
    versus += [] if find_spec('lerobot') else ['--no-lerobot']
    versus += ['--precision', *tiers, '--rounds', rounds, *(['--small'] if small else [])]
    latency = [sys.executable, 'bench/node_latency.py', '--precision', best]
    latency += ['--small', '--duration', '5'] if small else ['--device', 'cuda']
    forms = ('eager', 'fused') if small else ('eager', 'fused', 'cudagraph')
    return [
        Step(
            name='replays',
            command=(*bench, '--backend', fast, '--precision', best, '--repeat', repeat),
            limit_s=75,
            report='replays.json',
        ),
        Step(name='node', command=tuple(latency), limit_s=75, report='node.json'),
        Step(name='versus', command=tuple(versus), limit_s=300, report='versus.json'),
        Step(
            name='forms',
            command=(*bench, '--backend', *forms, '--precision', 'fp32', '--repeat', few),
            limit_s=60,
            report='forms.json',
        ),
        *pi_benchmarks(small=small),
    ]


def pi_benchmarks(*, small: bool) -> list[Step]:
    """Pi0.5 and Pi0; the first beside LeRobot where it is installed, compiled only on request."""
    bench = (sys.executable, 'bench/pi05.py')
    extra = ('--tiny', '--device', 'cpu', '--rounds', '2', '--repeat', '2') if small else ()
    lerobot = () if find_spec('lerobot') else ('--no-lerobot',)
    alone = ('--no-lerobot', '--rounds', '6')
    load = (sys.executable, 'bench/pi05_load.py')
    load += ('--tiny', '--device', 'cpu', '--precision', 'fp32') if small else ()
    runs = {
        'pi05': ('--no-compile', '--guided', *lerobot, '--repeat', '2000'),
        'pi05_short': ('--views', '2', '--tokens', '50', *alone),
        'pi0': ('--pi0', *alone),
    }
    steps = [
        Step(name=name, command=(*bench, *given, *extra), limit_s=150, report=f'{name}.json')
        for name, given in runs.items()
    ]
    return [*steps, Step(name='pi05_load', command=load, limit_s=150, report='pi05_load.json')]


def plan(options: argparse.Namespace, out: Path) -> list[Step]:
    me = (sys.executable, str(Path(__file__).resolve()), '--wheels', str(options.wheels))
    tests = [sys.executable, '-m', 'pytest', '-v', '-p', 'no:cacheprovider', '--maxfail=25']
    tests += ['--continue-on-collection-errors', *map(str, gpu_test_files()), '--durations=12']
    steps = [
        Step(name='wheels', command=(*me, '--do', 'wheels'), limit_s=120),
        Step(name='build', command=(*me, '--do', 'build'), limit_s=120),
        Step(name='tests', command=(*tests, '-m', 'gpu and not slow'), limit_s=210),
        # At full size, beside LeRobot where it is installed.
        Step(name='tests_full', command=(*tests, '-m', 'gpu and slow'), limit_s=400),
    ]
    for step in benchmarks(out, small=options.small):
        command = (*step.command, '--json', str(out / step.report))
        steps.append(Step(**{**vars(step), 'command': command}))
    if not options.wheels.is_dir():
        steps = steps[1:]
    return [step for step in steps if not options.only or step.name in options.only]


def gpu_test_files() -> list[Path]:
    """The others need not be collected, which may need modules that are not here."""
    paths = sorted((ROOT / 'test').rglob('test_*.py'))
    return [path for path in paths if 'mark.gpu' in path.read_text(encoding='utf-8')]


# The two steps that are not commands already


def install_wheels(folder: Path) -> None:
    """Into this Python, with the CMake files then naming it; a .tar.xz of wheels is unpacked."""
    from bootstrap import fix_wheel_paths

    with tempfile.TemporaryDirectory() as scratch:
        wheels = list(folder.glob('*.whl'))
        for archive in folder.glob('*.tar.xz'):
            with tarfile.open(archive) as content:
                content.extractall(scratch)
        wheels += list(Path(scratch).glob('*.whl'))
        command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-index', '--no-deps']
        command += ['--no-compile', '--disable-pip-version-check', '--root-user-action=ignore']
        subprocess.run([*command, *map(str, sorted(wheels))], check=True)
    fix_wheel_paths(sys.prefix)


def build() -> None:
    """The ROS package, as bootstrap.py builds it."""
    from bootstrap import stage_sources

    staged = stage_sources()
    python = sys.executable
    command = [python, '-m', 'colcon', '--log-base', str(BUILD / 'log'), 'build']
    command += ['--base-paths', str(staged), '--build-base', str(BUILD / 'build')]
    command += ['--install-base', str(BUILD / 'install'), '--symlink-install', '--cmake-args']
    command += ['-DBUILD_TESTING=OFF', f'-DPython3_EXECUTABLE={python}']
    if not shutil.which('make'):
        command += ['-G', 'Ninja']
    subprocess.run(command, check=True, cwd=ROOT)


# Running


def environment(out: Path) -> dict[str, str]:
    """Of every step: this Python first, its ROS, the package once it is built, no network."""
    values = {**os.environ, 'OUT': str(out), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    values['PATH'] = f'{Path(sys.executable).parent}:{values.get("PATH", "")}'
    values['PYTHONPATH'] = f'{ROOT}:{values.get("PYTHONPATH", "")}'.rstrip(':')
    values['FASTDDS_DEFAULT_PROFILES_FILE'] = str(ROOT / 'config' / 'fastdds.xml')
    if not values.get('AMENT_PREFIX_PATH'):
        values['AMENT_PREFIX_PATH'] = values['CMAKE_PREFIX_PATH'] = sys.prefix
    setup = BUILD / 'install' / 'local_setup.sh'
    if not setup.is_file():
        return values
    script = f'. "{setup}" && env -0'
    folder = str(setup.parent)
    text = subprocess.run(
        ['sh', '-c', script], env=values, cwd=folder, check=True, capture_output=True
    ).stdout.decode()
    values = dict(line.split('=', 1) for line in text.split('\0') if '=' in line)
    # The sources before what was installed of them.
    return {**values, 'PYTHONPATH': f'{ROOT}:{values["PYTHONPATH"]}'}


def run(step: Step, out: Path, *, limit_s: float) -> Outcome:
    """Run one step to its end or its limit; print the end of what it said, keep all of it."""
    print(f'=== {step.name} (limit {limit_s:.0f} s)', flush=True)
    begin_s = time.monotonic()
    with tempfile.TemporaryFile() as stream:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment(out),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
            result = 'ok' if code == 0 else f'failed with code {code}'
        except subprocess.TimeoutExpired:
            result = f'cut off after {limit_s:.0f} s'
        # Whatever it started and left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        stream.seek(0)
        text = stream.read().decode(errors='replace')
    with (out / LOG).open('a') as log:
        log.write(f'=== {step.name}: {result}\n{text}\n')
    tail = TAIL_LINES_OF_SUCCESS if result == 'ok' else TAIL_LINES
    print('\n'.join(text.splitlines()[-tail:]), flush=True)
    return Outcome(step=step, result=result, seconds=time.monotonic() - begin_s)


# Reporting


def machine() -> list[tuple[str, str]]:
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no CUDA device'
    date = time.strftime('%Y-%m-%d', time.gmtime())
    return [
        ('device', device),
        ('versions', f'torch {torch.__version__}, Python {sys.version.split()[0]}'),
        ('date', date),
    ]


def summary(outcomes: Sequence[Outcome], out: Path) -> str:
    steps = [(f'step {o.step.name}', f'{o.result} ({o.seconds:.0f} s)') for o in outcomes]
    sys.path.append(str(ROOT / 'tools'))
    from gpu_check_rows import figures

    rows = [*machine(), *steps, *figures(out)]
    width = max(len(name) for name, _ in rows)
    return '\n'.join(f'{name:<{width}}  {value}' for name, value in rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--wheels', type=Path, default=ROOT / '.whl', help='folder of wheels')
    parser.add_argument('--limit', type=float, default=480.0, help='seconds for everything')
    parser.add_argument('--only', nargs='+', help='these steps alone')
    parser.add_argument('--small', action='store_true', help='small networks, for a CPU')
    parser.add_argument('--do', choices=['wheels', 'build'], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.wheels = options.wheels.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every step went well, 1 otherwise."""
    options = parse(arguments)
    if options.do:
        sys.path.insert(0, str(ROOT / 'tools'))
        {'wheels': lambda: install_wheels(options.wheels), 'build': build}[options.do]()
        return 0
    out = Path(os.environ.get('OUT') or ROOT / 'out').resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / LOG).unlink(missing_ok=True)
    end_s = time.monotonic() + options.limit
    outcomes = []
    for step in plan(options, out):
        left_s = end_s - time.monotonic()
        if left_s < 5.0:
            outcomes.append(Outcome(step=step, result='no time left', seconds=0.0))
            continue
        outcomes.append(run(step, out, limit_s=min(step.limit_s, left_s)))
    text = summary(outcomes, out)
    (out / 'gpu_check.txt').write_text(text + '\n')
    print(f'=== summary\n{text}', flush=True)
    return int(any(outcome.result != 'ok' for outcome in outcomes))


if __name__ == '__main__':
    sys.exit(main())

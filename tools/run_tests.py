#!/usr/bin/env python3
"""Run all tests in two processes side by side, and end as the worse of them ends.

    tools/run_in_workspace.sh python tools/run_tests.py [ARGUMENTS OF PYTEST]

Tests with real ROS processes spend their time waiting, and many at once would disturb each other.
One process runs most of them one after another and tells how it goes. The other first runs the
tests without ROS, and stands back: who waits for a robot's processes should not wait for
arithmetic. Then it runs those with ROS that break something.

What fails among tests with ROS runs again, once and with nothing beside it: dozens of processes on
a machine that others use as well may miss each other once. What passes then is named at the end,
for somebody to look into; what does not has failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

WITHOUT_ROS = 'not ros'
WITH_ROS, FAULTS = 'ros and not faults', 'ros and faults'
STAND_BACK = ('nice', '-n', '15')
FAILED, INTERRUPTED, NOTHING_COLLECTED = 1, 2, 5
# More than that is no coincidence.
SECOND_TRIES = 5


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, '-m', 'pytest', *arguments]


def verdict(codes: Sequence[int]) -> int:
    """The worst exit code; that nothing was collected counts where it is true of both."""
    bad = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    return max(bad) if bad else min(codes)


def failures(report: Path) -> list[str]:
    """Names of the tests that failed, as pytest takes them; of a JUnit file."""
    found = []
    for case in ElementTree.parse(report).iter('testcase'):
        if case.find('failure') is None and case.find('error') is None:
            continue
        path = Path(*case.attrib.get('classname', '').split('.')).with_suffix('.py')
        names = [str(path), case.attrib['name']]
        while not path.is_file() and path.parent != path:  # a class within the file
            names.insert(1, path.stem)
            path = path.parent.with_suffix('.py')
            names[0] = str(path)
        found.append('::'.join(names))
    return found


def run_with_ros(
    kind: str, arguments: Sequence[str], output: IO[str] | None = None
) -> tuple[int, list[str]]:
    """Exit code before any second try, and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, 'report.xml')
        command = pytest('-m', kind, f'--junit-xml={report}', *arguments)
        code = subprocess.run(command, check=False, stdout=output, stderr=output).returncode
        return code, failures(report) if code == FAILED and report.is_file() else []


def run_second(arguments: Sequence[str], output: IO[str]) -> tuple[int, int, list[str]]:
    """Exit codes of the tests without ROS and of those that break something; what failed of these.

    They write to ``output``.
    """
    command = [*STAND_BACK, *pytest('-m', WITHOUT_ROS, *arguments)]
    code = subprocess.run(command, check=False, stdout=output, stderr=output).returncode
    if code == INTERRUPTED:
        return code, code, []
    return code, *run_with_ros(FAULTS, arguments, output)


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryFile('w+') as output, ThreadPoolExecutor(1) as beside:
        second = beside.submit(run_second, arguments, output)
        with_ros, failed = run_with_ros(WITH_ROS, arguments)
        without_ros, faults, more = second.result()
        output.seek(0)
        sys.stdout.write(output.read())
    again = [*failed, *more]
    known = all(names for code, names in ((with_ros, failed), (faults, more)) if code == FAILED)
    if known and 0 < len(again) <= SECOND_TRIES:
        code = subprocess.run(pytest('-v', *again), check=False).returncode
        # Whatever else happened to a process than that tests failed stays.
        with_ros, faults = (code if was == FAILED else was for was in (with_ros, faults))
        if code == 0:
            sys.stdout.write('passed only when they ran again, alone:\n')
            sys.stdout.writelines(f'  {name}\n' for name in again)
    return verdict((with_ros, faults, without_ros))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

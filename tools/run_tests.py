#!/usr/bin/env python3
"""Run all tests in two processes side by side, and end as the worse of them ends.

    tools/run_in_workspace.sh python tools/run_tests.py [ARGUMENTS OF PYTEST]

Tests with real ROS processes spend their time waiting, and would disturb each other: one process
runs them one after another and tells how it goes, the other runs the rest meanwhile and stands
back, since who waits for a robot's processes should not wait for arithmetic.

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
from pathlib import Path

WITH_ROS, WITHOUT_ROS = ('-m', 'ros'), ('-m', 'not ros')
STAND_BACK = ('nice', '-n', '15')
FAILED, NOTHING_COLLECTED = 1, 5
# More than that is no coincidence.
SECOND_TRIES = 5


def command(kind: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return [sys.executable, '-m', 'pytest', *kind, *arguments]


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


def run_with_ros(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Exit code before any second try, and what may have one."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, 'report.xml')
        kind = (*WITH_ROS, f'--junit-xml={report}')
        code = subprocess.run(command(kind, arguments), check=False).returncode
        if code != FAILED or not report.is_file():
            return code, []
        failed = failures(report)
        return code, failed if len(failed) <= SECOND_TRIES else []


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryFile('w+') as output:
        rest = subprocess.Popen(
            [*STAND_BACK, *command(WITHOUT_ROS, arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            with_ros, again = run_with_ros(arguments)
            without_ros = rest.wait()
        finally:
            rest.kill()
            rest.wait()
        output.seek(0)
        sys.stdout.write(output.read())
    if again:
        with_ros = subprocess.run(command(('-v',), again), check=False).returncode
        if with_ros == 0:
            sys.stdout.write('passed only when they ran again, alone:\n')
            sys.stdout.writelines(f'  {name}\n' for name in again)
    return verdict((with_ros, without_ros))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

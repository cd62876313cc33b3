#!/usr/bin/env python3
"""Run all tests in two processes side by side, and end as the worse of them ends.

    tools/run_in_workspace.sh python tools/run_tests.py [ARGUMENTS OF PYTEST]

Tests with real ROS processes spend their time waiting, and would disturb each other: one process
runs them one after another and tells how it goes, the other runs the rest meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence

WITH_ROS, WITHOUT_ROS = ('-m', 'ros'), ('-m', 'not ros')
NOTHING_COLLECTED = 5


def command(kind: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return [sys.executable, '-m', 'pytest', *kind, *arguments]


def verdict(codes: Sequence[int]) -> int:
    """The worst exit code; that nothing was collected counts where it is true of both."""
    bad = [code for code in codes if code not in (0, NOTHING_COLLECTED)]
    return max(bad) if bad else min(codes)


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryFile('w+') as output:
        rest = subprocess.Popen(
            command(WITHOUT_ROS, arguments), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            with_ros = subprocess.run(command(WITH_ROS, arguments), check=False).returncode
            without_ros = rest.wait()
        finally:
            rest.kill()
            rest.wait()
        output.seek(0)
        sys.stdout.write(output.read())
    return verdict((with_ros, without_ros))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

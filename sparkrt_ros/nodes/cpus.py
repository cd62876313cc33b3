"""Which processors the threads of a node may run on."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from sparkrt_ros.runtime.errors import ConfigError

_TASKS = Path('/proc/self/task')
_PART = re.compile(r'\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*')


def parse_cpus(text: str) -> frozenset[int]:
    """``'0'``, ``'2-3'`` or ``'0, 2-3'`` -> the numbers. Raises ConfigError for anything else."""
    numbers: set[int] = set()
    for part in text.split(',') if text.strip() else ():
        found = _PART.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise ConfigError(
                "parameter 'cpus'",
                found=repr(text),
                expected="numbers and ranges such as '0' or '2-3' or '0, 2-3'; empty: all",
            )
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


class Cpus:
    """The processors this process had when it started, and the choice among them."""

    def __init__(self) -> None:
        can = hasattr(os, 'sched_getaffinity')
        self._all = frozenset(os.sched_getaffinity(0)) if can else frozenset()

    def check(self, text: str) -> frozenset[int]:
        """What ``text`` chooses; all, if it is empty. Raises ConfigError."""
        chosen = parse_cpus(text)
        if not chosen <= self._all:
            raise ConfigError(
                "parameter 'cpus'",
                found=f'{text!r}, of which this process may not use {_listed(chosen - self._all)}',
                expected=f'some of {_listed(self._all)}' if self._all else 'empty',
                remedy='choose others; a container or taskset may have taken some away',
            )
        return chosen or self._all

    def use(self, text: str) -> None:
        """Keep every thread of this process, and those they start, to the chosen ones."""
        chosen = self.check(text)
        if not chosen:
            return
        for task in _TASKS.iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
                os.sched_setaffinity(int(task.name), chosen)


def _listed(numbers: frozenset[int]) -> str:
    return ', '.join(str(number) for number in sorted(numbers))

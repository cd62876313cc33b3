"""Child processes: started with their logs, always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from sparkrt_ros.runtime.errors import SparkRTError

INTERRUPT_GRACE_S = 5.0


class ProcessDied(SparkRTError):
    """A process ended although nobody asked it to."""


class ProcessGroup:
    """Runs nodes as separate processes; leaving the context ends every one of them.

    logs: folder that receives one text file per process. environ: what the processes see.
    """

    def __init__(self, *, logs: Path, environ: Mapping[str, str]) -> None:
        self._logs = logs
        self._environ = dict(environ)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start ``python -m module arguments`` under ``name``."""
        with self.log(name).open('wb') as stream:
            self._children[name] = subprocess.Popen(
                [sys.executable, '-m', module, *arguments],
                env=self._environ,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pid(self, name: str) -> int:
        return self._children[name].pid

    def log(self, name: str) -> Path:
        return self._logs / f'{name}.txt'

    def check(self) -> None:
        """Raise ProcessDied, with the end of its log, if a process has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                tail = self.log(name).read_text(errors='replace').splitlines()[-15:]
                raise ProcessDied(
                    f'process {name}',
                    found=f'exit code {child.returncode} after:\n' + '\n'.join(tail),
                    expected='it to run until the end',
                    remedy=f'read {self.log(name)}',
                )

    def stop(self) -> None:
        """End every process: interrupt, wait, then kill what is left."""
        for child in self._children.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGINT)
        for child in self._children.values():
            try:
                child.wait(INTERRUPT_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        self._children.clear()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

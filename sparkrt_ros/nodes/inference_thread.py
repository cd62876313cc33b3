"""The one thread that loads, warms, runs and frees a policy.

A CUDA context, a captured graph and torch's autograd state belong to the thread that made them,
so everything that touches the policy is sent here, and nothing here waits for ROS.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sparkrt_ros.runtime.errors import SparkRTError

T = TypeVar('T')

# Returns the seconds until it wants to run again; inf: when woken.
Step = Callable[[], float]
FailureHandler = Callable[[BaseException], None]


class ThreadEnded(SparkRTError):
    """The inference thread has ended, so nothing can run in it."""


class InferenceThread:
    """Runs commands in the order they were sent, and between them a repeated step.

    on_failure: called in the thread with whatever a step raised; the step goes on afterwards
    unless the handler stops it. An exception of a command goes to its future only.
    """

    def __init__(self, *, on_failure: FailureHandler, name: str = 'inference') -> None:
        self._on_failure = on_failure
        self._condition = threading.Condition()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._step: Step | None = None
        self._woken = False
        self._ending = False
        # A daemon, so that a step that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, command: Callable[[], T]) -> Future[T]:
        """Run ``command`` before the next step. Raises ThreadEnded after :meth:`end`."""
        future: Future[T] = Future()
        with self._condition:
            if self._ending:
                raise ThreadEnded(
                    'inference thread', found='a command after its end', expected='none'
                )
            self._commands.append((command, future))
            self._condition.notify()
        return future

    def repeat(self, step: Step | None) -> None:
        """Run ``step`` again and again from now on; None: no step any more."""
        with self._condition:
            self._step = step
            self._woken = True
            self._condition.notify()

    def wake(self) -> None:
        """Let the step run now instead of when it wanted to."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def end(self, *, last: Callable[[], object] | None = None) -> None:
        """Run nothing more but ``last``, then end; commands still waiting are cancelled."""
        with self._condition:
            if self._ending:
                return
            self._ending = True
            self._step = None
            for _, future in self._commands:
                future.cancel()
            self._commands.clear()
            if last is not None:
                self._commands.append((last, Future()))
            self._condition.notify()

    def join(self, *, timeout_s: float) -> bool:
        """Wait for the end; False if it is still running after ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait_s = 0.0
        while True:
            command, step = self._next(wait_s)
            if command is not None:
                _answer(*command)
                wait_s = 0.0
            elif step is not None:
                wait_s = self._run_step(step)
            else:
                return

    def _next(
        self, wait_s: float
    ) -> tuple[tuple[Callable[[], Any], Future[Any]] | None, Step | None]:
        """The next command, or the step when it is due; (None, None) at the end."""
        until_s = time.monotonic() + wait_s
        with self._condition:
            while True:
                if self._commands:
                    return self._commands.popleft(), None
                if self._ending:
                    return None, None
                left_s = until_s - time.monotonic()
                if self._step is not None and (self._woken or left_s <= 0.0):
                    self._woken = False
                    return None, self._step
                # Condition.wait overflows on very long times.
                forever = self._step is None or left_s > threading.TIMEOUT_MAX
                self._condition.wait(None if forever else left_s)

    def _run_step(self, step: Step) -> float:
        try:
            return step()
        except BaseException as error:  # the thread outlives whatever a step does
            self._on_failure(error)
            return 0.0


def _answer(command: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = command()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_DEVICE_FAULTS = ('CUDA error', 'CUDA driver error', 'cuDNN error', 'Triton Error [CUDA]')


def is_sticky(error: BaseException) -> bool:
    """Whether the process can never use its device again after this error.

    CUDA reports an illegal access, a lost device and the like at every later call; only running
    out of memory leaves the context usable. torch raises AcceleratorError since 2.8, before that
    RuntimeError with such a text, as cuDNN and Triton do.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if 'OutOfMemoryError' in kinds:
        return False
    if 'AcceleratorError' in kinds:
        return True
    return isinstance(error, RuntimeError) and any(fault in str(error) for fault in _DEVICE_FAULTS)

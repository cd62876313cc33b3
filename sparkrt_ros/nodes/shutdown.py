"""Starting and ending a node process: signals, exit codes, and nothing left behind.

rclpy's own handler shuts the context down at once, so that no last message can be sent, and
Python's raises KeyboardInterrupt in the middle of any callback. Here a signal only asks: the
callback in progress ends, the node is taken down in order, and a second signal changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import rclpy
import rclpy.task
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from sparkrt_ros.runtime.errors import SparkRTError

if TYPE_CHECKING:
    from sparkrt_ros.nodes.transitions import ManagedNode

T = TypeVar('T')

# From the signal to the end of the process; what still runs then is cut off.
EXIT_LIMIT_S = 2.5
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
START_FAILED = 1


class StopToken:
    """Asks a process to end; set once, from any thread, with the exit code it should end with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self.exit_code = 0

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self, *, exit_code: int = 0) -> None:
        """Ask; the first non-zero ``exit_code`` counts."""
        with self._lock:
            self.exit_code = self.exit_code or exit_code
            if self._event.is_set():
                return
            self._event.set()
            callbacks = tuple(self._callbacks)
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the token is set, or now if it is already."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def remove_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def wait_for(self, future: Future[T]) -> T:
        """The result of ``future``. Raises Stopped if the token is set first."""
        ready = threading.Event()
        wake = ready.set
        self.add_callback(wake)
        future.add_done_callback(lambda _: wake())
        ready.wait()
        self.remove_callback(wake)
        if not future.done():
            raise Stopped('waiting', found='a request to end', expected='none')
        return future.result()


class Stopped(SparkRTError):
    """The process was asked to end while it waited for something."""


class _Signals:
    """Turns SIGINT and SIGTERM into ``token.set()``, also while the main thread sits in C code.

    Python runs its handlers only between two bytecodes of the main thread, which may sleep in the
    middleware; the wake-up descriptor is written by the C handler at once.
    """

    def __init__(self, token: StopToken) -> None:
        self._token = token
        # Never closed: a signal during the last moments still writes to it.
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        for number in _ENDING_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name='signals', daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._read_fd, 1):
            self._token.set()


def run_node(
    make_node: Callable[[StopToken], ManagedNode], *, args: Sequence[str] | None = None
) -> int:
    """Run one node until SIGINT, SIGTERM or its own request; the process's exit code.

    A parameter that is wrong, a file that cannot be read and the like end it with one line on
    stderr and code 1 before anything is published.
    """
    token = StopToken()
    watchdog = _Watchdog(token, limit_s=EXIT_LIMIT_S)
    _Signals(token)
    try:
        rclpy.init(
            args=list(args) if args is not None else None,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        node = make_node(token)
    except Exception as error:
        return _start_failed(error)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    asked: rclpy.task.Future[None] = rclpy.task.Future()
    token.add_callback(lambda: asked.set_result(None))
    try:
        node.autostart()
        executor.spin_until_future_complete(asked)
    except BaseException:
        token.set(exit_code=START_FAILED)
        raise
    finally:
        ended = node.take_down(timeout_s=EXIT_LIMIT_S - 0.5)
        executor.shutdown(timeout_sec=0.0)
        node.destroy_node()
        rclpy.try_shutdown()
        watchdog.cancel()
        _ignore_signals()
    if not ended:
        # A thread inside a library would crash the interpreter that is taken down around it.
        watchdog.cut_off()
    return token.exit_code


def _ignore_signals() -> None:
    """Let no second signal cut off an interpreter that is already ending.

    While it ends, Python would put the default action back, which kills the process.
    """
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _start_failed(error: Exception) -> int:
    text = str(error) if isinstance(error, SparkRTError) else f'{type(error).__name__}: {error}'
    print(f'cannot start: {text}', file=sys.stderr)  # noqa: T201
    rclpy.try_shutdown()
    return START_FAILED


class _Watchdog:
    """Cuts the process off if it has not ended ``limit_s`` after the token was set."""

    def __init__(self, token: StopToken, *, limit_s: float) -> None:
        self._token = token
        self._timer = threading.Timer(limit_s, self.cut_off)
        self._timer.daemon = True
        token.add_callback(self._timer.start)

    def cancel(self) -> None:
        self._timer.cancel()

    def cut_off(self) -> None:
        """End the process now, with its exit code, whatever else still runs."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._token.exit_code)

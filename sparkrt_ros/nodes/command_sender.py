"""Publishes serialized messages at an exact moment, from threads that need no interpreter.

The threads are those of ``src/command_sender.cpp``. With them, neither the interpreter's lock nor
the time that Python takes to run stand between a deadline and its command.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.nodes import native
from sparkrt_ros.nodes.native import Signature
from sparkrt_ros.nodes.streamer_values import Sent
from sparkrt_ros.runtime.errors import SparkRTError

THREADS = 2
MAX_LOADS = 8


class SendError(SparkRTError):
    """The middleware did not take a command."""


class Load:
    """Messages that are sent together, each on its publisher.

    messages: publishers with serialized messages, any bytes. They may change until they are
    loaded; their size may not, nor where they are.
    """

    def __init__(self, messages: Iterable[tuple[Any, bytes | npt.NDArray[np.uint8]]]) -> None:
        self._kept = [(to, np.frombuffer(content, dtype=np.uint8)) for to, content in messages]
        count = len(self._kept)
        addresses, sizes = ctypes.c_void_p * count, ctypes.c_size_t * count
        # Of sparkrt_sender_load, from `count` on.
        self.arguments = (
            count,
            addresses(*(publisher.handle.pointer for publisher, _ in self._kept)),
            addresses(*(content.ctypes.data for _, content in self._kept)),
            sizes(*(content.size for _, content in self._kept)),
        )


class CommandSender:
    """Holds loads of messages, at most MAX_LOADS; each is sent once or not at all, in their order.

    To be called by one thread at a time but for :meth:`cancel`. thread_ids: of the kernel; any of
    these threads sends.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._sender = self._library.sparkrt_sender_create(_publish_function())
        if not self._sender:
            raise SendError(
                'command sender', found=self._error(), expected='a thread that could be started'
            )
        number = self._library.sparkrt_sender_thread_id
        self.thread_ids = tuple(int(number(self._sender, index)) for index in range(THREADS))
        times_ns = ctypes.c_int64 * MAX_LOADS
        self._records = (times_ns(), times_ns(), MAX_LOADS)

    def load(self, load: Load, *, due_ns: int) -> None:
        """Send what ``load`` holds now at ``due_ns`` of the monotonic clock.

        What was loaded before is sent before. Raises SendError where MAX_LOADS wait.
        """
        if self._library.sparkrt_sender_load(self._sender, due_ns, *load.arguments):
            raise SendError('command', found=self._error(), expected='room for its messages')

    def cancel(self) -> int:
        """When this returns, all loads have been sent or never will be; how many those are."""
        return int(self._library.sparkrt_sender_cancel(self._sender))

    def settle(self) -> list[Sent]:
        """When this returns, every load that is due has been sent; what :meth:`take` returns then.

        Raises SendError if something could not be sent since the last time.
        """
        count = self._library.sparkrt_sender_settle(self._sender, *self._records)
        if count < 0:
            raise SendError('command', found=self._error(), expected='a middleware that takes it')
        return self._sent(count)

    def take(self) -> list[Sent]:
        """The loads that were sent and not yet taken, oldest first; at most MAX_LOADS."""
        return self._sent(self._library.sparkrt_sender_take(self._sender, *self._records))

    def _sent(self, count: int) -> list[Sent]:
        due_ns, at_ns, _ = self._records
        return [Sent(due_ns[index], at_ns[index]) for index in range(count)]

    def close(self) -> None:
        """Cancel, and end the threads."""
        sender, self._sender = self._sender, None
        if sender:
            self._library.sparkrt_sender_destroy(sender)

    def _error(self) -> str:
        return bytes(self._library.sparkrt_sender_error()).decode(errors='replace')


@cache
def _library() -> Any:
    sender, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: tuple[Signature, ...] = (
        ('sender_create', sender, (sender,)),
        ('sender_destroy', None, (sender,)),
        ('sender_thread_id', ctypes.c_int, (sender, size)),
        ('sender_load', ctypes.c_int, (sender, ctypes.c_int64, size, sender, sender, sender)),
        ('sender_cancel', size, (sender,)),
        ('sender_settle', ctypes.c_int, (sender, sender, sender, size)),
        ('sender_take', ctypes.c_int, (sender, sender, sender, size)),
        ('sender_error', ctypes.c_char_p, ()),
    )
    return native.load(signatures)


@cache
def _publish_function() -> Any:
    """The address of the function with which rcl publishes what is serialized."""
    return ctypes.cast(native.rcl().rcl_publish_serialized_message, ctypes.c_void_p)

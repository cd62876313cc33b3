"""Publishes serialized messages at an exact moment, from threads that need no interpreter.

The threads are those of ``src/command_sender.cpp``. With them, neither the interpreter's lock nor
the time that Python takes to run stand between a deadline and its command.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_prefix

from sparkrt_ros.nodes.streamer_values import Sent
from sparkrt_ros.runtime.errors import SparkRTError

THREADS = 2
MAX_LOADS = 8
_PACKAGE, _LIBRARY = 'sparkrt', 'libsparkrt_command_sender.so'


class SendError(SparkRTError):
    """The middleware did not take a command."""


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
        self._due_ns = (ctypes.c_int64 * MAX_LOADS)()
        self._at_ns = (ctypes.c_int64 * MAX_LOADS)()
        self._make_room(1)

    def load(self, messages: Sequence[tuple[Any, bytes]], *, due_ns: int) -> None:
        """Send ``messages``, each on its publisher, at ``due_ns`` of the monotonic clock.

        Those that were loaded before are sent before. Raises SendError where MAX_LOADS wait.
        """
        count = len(messages)
        if count > len(self._sizes):
            self._make_room(count)
        publishers, contents, sizes = self._publishers, self._contents, self._sizes
        for index, (publisher, content) in enumerate(messages):
            publishers[index] = publisher.handle.pointer
            contents[index] = content
            sizes[index] = len(content)
        load = self._library.sparkrt_sender_load
        if load(self._sender, due_ns, count, publishers, contents, sizes):
            raise SendError('command', found=self._error(), expected='room for its messages')

    def _make_room(self, count: int) -> None:
        self._publishers = (ctypes.c_void_p * count)()
        self._contents = (ctypes.c_char_p * count)()
        self._sizes = (ctypes.c_size_t * count)()

    def cancel(self) -> int:
        """When this returns, all loads have been sent or never will be; how many those are."""
        return int(self._library.sparkrt_sender_cancel(self._sender))

    def flush(self) -> None:
        """When this returns, every load that is due has been sent.

        Raises SendError if something could not be sent since the last time.
        """
        if self._library.sparkrt_sender_flush(self._sender):
            raise SendError('command', found=self._error(), expected='a middleware that takes it')

    def take(self) -> list[Sent]:
        """The loads that were sent and not yet taken, oldest first; at most MAX_LOADS."""
        due_ns, at_ns = self._due_ns, self._at_ns
        count = self._library.sparkrt_sender_take(self._sender, due_ns, at_ns, MAX_LOADS)
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
    library = ctypes.CDLL(str(Path(get_package_prefix(_PACKAGE), 'lib', _LIBRARY)))
    sender, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ('create', sender, (sender,)),
        ('destroy', None, (sender,)),
        ('thread_id', ctypes.c_int, (sender, size)),
        ('load', ctypes.c_int, (sender, ctypes.c_int64, size, sender, sender, sender)),
        ('cancel', size, (sender,)),
        ('flush', ctypes.c_int, (sender,)),
        ('take', size, (sender, sender, sender, size)),
        ('error', ctypes.c_char_p, ()),
    ):
        function = getattr(library, f'sparkrt_sender_{name}')
        function.restype, function.argtypes = result, arguments
    return library


@cache
def _publish_function() -> Any:
    """The address of ``rcl_publish_serialized_message`` in the library that rclpy has loaded."""
    library = ctypes.CDLL(str(Path(get_package_prefix('rcl'), 'lib', 'librcl.so')))
    return ctypes.cast(library.rcl_publish_serialized_message, ctypes.c_void_p)

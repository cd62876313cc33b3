"""Raised by the middleware when a message has come; ``src/message_signal.cpp`` from Python."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.subscription import Subscription

from sparkrt_ros.nodes import native
from sparkrt_ros.nodes.native import Signature
from sparkrt_ros.runtime.errors import SparkRTError

_RCL_OK = 0


class SignalError(SparkRTError):
    """The middleware does not tell of messages."""


class MessageSignal:
    """Says whether messages of ``subscription`` have come; for one thread but for :meth:`close`.

    A message that waits already has come, too. Raises SignalError.
    """

    def __init__(self, subscription: Subscription[Any]) -> None:
        self._wait, self._lower = _library().sparkrt_signal_wait, _quick().sparkrt_signal_lower
        self._subscription = subscription
        self._signal = _library().sparkrt_signal_create()
        raised = ctypes.cast(_library().sparkrt_signal_raise, ctypes.c_void_p)
        code = self._call(raised)
        if code != _RCL_OK:
            _library().sparkrt_signal_destroy(self._signal)
            raise SignalError(
                subscription.topic_name,
                found=f'code {code} of the middleware',
                expected='a middleware that tells when messages come',
            )

    def wait(self, deadline_ns: int) -> bool:
        """Sleep until one has come since :meth:`lower`: True; or until then (monotonic): False."""
        signal = self._signal
        return bool(signal and self._wait(signal, deadline_ns))

    def lower(self) -> bool:
        """Whether any has come since the last time."""
        signal = self._signal
        return bool(signal and self._lower(signal))

    def close(self) -> None:
        """Hear of no more: none has come then, and nobody sleeps. Nobody may wait meanwhile."""
        signal, self._signal = self._signal, None
        if not signal:
            return
        with contextlib.suppress(rclpy_implementation.InvalidHandle):  # it is gone itself
            if self._call(None) != _RCL_OK:
                return  # it may be raised yet
        _library().sparkrt_signal_destroy(signal)

    def _call(self, callback: ctypes.c_void_p | None) -> int:
        """Let rcl call back from now on. When this returns, nothing set before is under way."""
        handle = self._subscription.handle
        with handle:
            set_callback = native.rcl().rcl_subscription_set_on_new_message_callback
            pointer = ctypes.c_void_p
            set_callback.restype, set_callback.argtypes = ctypes.c_int, (pointer,) * 3
            code = int(set_callback(handle.pointer, callback, self._signal))
        if code != _RCL_OK:
            native.rcl().rcutils_reset_error()
        return code


@cache
def _library() -> Any:
    signal = ctypes.c_void_p
    signatures: tuple[Signature, ...] = (
        ('signal_create', signal, ()),
        ('signal_destroy', None, (signal,)),
        ('signal_raise', None, (signal, ctypes.c_size_t)),
        ('signal_wait', ctypes.c_bool, (signal, ctypes.c_int64)),
    )
    return native.load(signatures)


@cache
def _quick() -> Any:
    return native.load((('signal_lower', ctypes.c_bool, (ctypes.c_void_p,)),), at_once=True)

"""A recorded message that is decoded no further than somebody looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkrt_ros.convert.time import NS_PER_S
from sparkrt_ros.replay.bag import BagMessage


@dataclass(frozen=True, kw_only=True)
class _Stamp:
    sec: int
    nanosec: int


@dataclass(frozen=True, kw_only=True)
class _Header:
    stamp: _Stamp


class LazyMessage:
    """Has the fields of the message. Most pictures are only dated, which decodes nothing.

    Any field may raise BagMessageError, which is a MessageError, as a damaged message does.
    """

    def __init__(self, recorded: BagMessage) -> None:
        self._recorded = recorded

    @property
    def header(self) -> Any:
        """The stamp of the header alone."""
        stamp_ns = self._recorded.stamp_ns
        if stamp_ns is None:
            return self._recorded.message.header
        seconds, nanoseconds = divmod(stamp_ns, NS_PER_S)
        return _Header(stamp=_Stamp(sec=seconds, nanosec=nanoseconds))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorded.message, name)

"""Who may watch a StreamerCore, so that what it did can be repeated. No ROS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sparkrt_ros.runtime.types import ActionChunk

if TYPE_CHECKING:
    from sparkrt_ros.nodes.streamer_core import Options


class Witness(Protocol):
    """Told everything that decides what is sent, in order; by any thread, never blocking."""

    def request(self, name: str, *, now_ns: int) -> None:
        """Activate, deactivate, pause, resume or reset."""

    def options(self, options: Options) -> None:
        """These hold from now on."""

    def taken(self, chunk: ActionChunk, *, session_id: int, now_ns: int) -> None:
        """The tick under way took a chunk, to play or to refuse it."""

    def ticked(self, now_ns: int, *, state: str, pose: int, sent: int, stops: int) -> None:
        """A tick ended. pose: number of the pose it saw, 0: none; sent, stops: so far."""

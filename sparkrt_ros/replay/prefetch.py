"""Iterate on another thread, so that reading and decoding overlap with what is done meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar('T')

_POLL_S = 0.1


class _End:
    """The iteration is over; error: what it raised, if anything."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetch(Generic[T]):
    """Yields what ``source`` yields, made on a thread of its own, up to ``ahead`` items early.

    What the source raises is raised here, in its place. A context manager: leaving it ends the
    thread, also in the middle, before the source is asked for another item.
    """

    def __init__(self, source: Iterable[T], *, ahead: int, name: str = 'prefetch') -> None:
        self._source = source
        self._queue: Queue[T | _End] = Queue(maxsize=ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Prefetch[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._queue.get()
            if not isinstance(item, _End):
                yield item
                continue
            if item.error is not None:
                raise item.error
            return

    def waiting(self, most: int) -> list[T]:
        """Up to ``most`` items that are ready now; none where the next has to be waited for."""
        items: list[T] = []
        while len(items) < most:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(item, _End):
                self._queue.put(item)
                break
            items.append(item)
        return items

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    return
        except BaseException as problem:
            error = problem
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        """Whether it was taken before the end."""
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

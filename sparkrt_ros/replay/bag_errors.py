"""What can be wrong with a bag: as errors where nothing can be read, else as warnings."""

from __future__ import annotations

import threading

from sparkrt_ros.runtime.errors import MessageError, SparkRTError


class BagError(SparkRTError):
    """A bag is missing, is none, or cannot be read at all."""


class BagMessageError(BagError, MessageError):
    """One recorded message cannot be decoded."""


def missing_library(name: str) -> BagError:
    """What to raise where a library that bags need is not installed."""
    return BagError(
        f'the Python package {name}',
        found='nothing',
        expected='it, to read bags without ROS',
        remedy='pip install "sparkrt-ros[bags]"',
    )


class Notes:
    """Warnings about one bag, each told once; grows while the bag is read. Thread-safe.

    ``complete`` turns False with the first note that says that messages were lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[str, dict[str, None]] = {}
        self.complete = True

    def add(self, where: str, text: str, *, place: str = '', lost: bool = False) -> None:
        """Note ``text`` about ``where``. lost: whether messages of the bag are missing.

        place: of what can be wrong at many places; the first is told, the others are counted.
        """
        with self._lock:
            self._places.setdefault(f'{where}: {text}', {}).setdefault(place)
            self.complete = self.complete and not lost

    def texts(self) -> tuple[str, ...]:
        """In order of appearance."""
        with self._lock:
            return tuple(text + _told(list(places)) for text, places in self._places.items())


def _told(places: list[str]) -> str:
    more = f' and {len(places) - 1} more places' if len(places) > 1 else ''
    return f' ({places[0]}{more})' if places[0] else ''

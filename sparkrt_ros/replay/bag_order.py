"""All messages of a bag's files in one order of time, with few files open and little in memory."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparkrt_ros.replay.bag_errors import BagMessageError
from sparkrt_ros.replay.bag_storage import Entry, StorageFile, StorageReader, merge_by_time
from sparkrt_ros.replay.bag_types import Decoder

_MOST_IDLE_FILES = 64

# topic, log time [ns], data, decoder
Found = tuple[str, int, bytes, Decoder]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A file and the channels wanted from it: topic and decoder by channel id."""

    file: StorageFile
    decoders: Mapping[int, tuple[str, Decoder]]


def by_log(places: Sequence[Place]) -> Iterator[Found]:
    """By log time; equal times in the order of ``places`` and of each file."""
    readers = _Readers(places)
    try:
        for number, (log_ns, channel, locator) in readers.merged():
            raw = readers[number].raw(locator)
            if raw is not None:
                topic, decoder = places[number].decoders[channel]
                yield topic, log_ns, raw, decoder
    finally:
        readers.close()


def by_header(places: Sequence[Place]) -> Iterator[Found]:
    """By header stamp, by log time where it is zero or missing; equal keys in log order.

    The stamps are read first; 32 bytes per message are kept for the second reading.
    """
    readers = _Readers(places)
    keys, logs, locators = array('q'), array('q'), array('q')
    numbers, channels = array('I'), array('I')
    try:
        for number, (log_ns, channel, locator) in readers.merged():
            raw = readers[number].raw(locator)
            if raw is None:
                continue
            _, decoder = places[number].decoders[channel]
            keys.append(_stamp_ns(decoder, raw) or log_ns)
            logs.append(log_ns)
            locators.append(locator)
            numbers.append(number)
            channels.append(channel)
        for index in np.argsort(np.asarray(keys), kind='stable'):
            number = numbers[index]
            raw = readers[number].raw(locators[index])
            if raw is not None:
                topic, decoder = places[number].decoders[channels[index]]
                yield topic, logs[index], raw, decoder
    finally:
        readers.close()


def _stamp_ns(decoder: Decoder, raw: bytes) -> int | None:
    try:
        return decoder.stamp_ns(raw, where='')
    except BagMessageError:  # whoever decodes the message will hear of it
        return None


class _Readers:
    """Readers of the files, opened when needed; finished ones are kept while there is room."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._open: OrderedDict[int, StorageReader] = OrderedDict()
        self._running: set[int] = set()

    def __getitem__(self, number: int) -> StorageReader:
        """The reader of file ``number``."""
        reader = self._open.get(number)
        if reader is None:
            self._make_room()
            reader = self._places[number].file.reader()
            self._open[number] = reader
        else:
            self._open.move_to_end(number)
        return reader

    def merged(self) -> Iterator[tuple[int, Entry]]:
        """(number of the file, entry) by log time."""
        numbers = [
            n for n, place in enumerate(self._places) if place.decoders and place.file.count
        ]
        sources = [
            (self._places[number].file.start_ns, partial(self._entries, number))
            for number in numbers
        ]
        return ((numbers[index], entry) for index, entry in merge_by_time(sources))

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _entries(self, number: int) -> Iterator[Entry]:
        self._running.add(number)
        yield from self[number].entries(self._places[number].decoders.keys())
        self._running.discard(number)

    def _make_room(self) -> None:
        """Close what was unused for longest, except where an iteration still stands."""
        idle = [number for number in self._open if number not in self._running]
        for number in idle[: max(len(self._open) - _MOST_IDLE_FILES, 0)]:
            self._open.pop(number).close()

"""Read ROS 2 bags without ROS: SQLite and MCAP, whole, split, compressed, cut short, out of order.

``docs/bags.md`` says what is read, in which order, and what is done about damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from sparkrt_ros.replay.bag_compression import COPY_BYTES
from sparkrt_ros.replay.bag_errors import BagError, Notes
from sparkrt_ros.replay.bag_files import content_files, find_files, readable_copy
from sparkrt_ros.replay.bag_mcap import McapFile
from sparkrt_ros.replay.bag_order import Place, by_header, by_log
from sparkrt_ros.replay.bag_sqlite import SqliteFile
from sparkrt_ros.replay.bag_storage import Channel, StorageFile
from sparkrt_ros.replay.bag_types import Decoder, TypeLibrary, ros2_name

ORDERS = ('log', 'header')


@dataclass(frozen=True, kw_only=True)
class TopicInfo:
    """type: like ``sensor_msgs/msg/Image``, empty where the bag does not say."""

    name: str
    type: str
    count: int


@dataclass(frozen=True, kw_only=True, eq=False)
class BagMessage:
    """One recorded message, decoded when it is looked at.

    log_ns: when it was recorded. raw: its data in CDR. May be handed to other threads; arrays in
    ``message`` are read-only.
    """

    topic: str
    log_ns: int
    raw: bytes
    decoder: Decoder

    @property
    def message(self) -> Any:
        """The message, with the fields of its ROS type. Raises BagMessageError."""
        decoded = self.__dict__.get('_decoded')
        if decoded is None:
            decoded = self.decoder.decode(self.raw, where=self._where)
            self.__dict__['_decoded'] = decoded
        return decoded

    @property
    def stamp_ns(self) -> int | None:
        """The header stamp, 0 where it was never set; None for a type without header.

        Does not decode the rest. Raises BagMessageError.
        """
        return self.decoder.stamp_ns(self.raw, where=self._where)

    @property
    def _where(self) -> str:
        return f'{self.topic} at {self.log_ns} ns'


def open_bag(path: Path | str) -> Bag:
    """Open a bag: a folder, an .mcap or a .db3 file, compressed or not. Nothing is written to it.

    Raises BagError where there is no bag or nothing of it can be read.
    """
    path = Path(path)
    notes = Notes()
    scratch = _Scratch()
    try:
        layout = find_files(path, notes)
        opened = [_open_file(file, scratch, notes) for file in layout.files]
        files = [file for file in opened if file is not None]
        if not files:
            raise BagError(
                str(path), found='; '.join(notes.texts()), expected='a file that can be read'
            )
        return Bag(path, layout.files, files, layout.types, scratch, notes)
    except OSError as error:
        scratch.close()
        raise BagError(
            str(error.filename or path),
            found=f'something that cannot be read ({error.strerror or error})',
            expected='a readable bag',
        ) from error
    except BaseException:
        scratch.close()
        raise


class Bag:
    """An open bag; a context manager. Times are nanoseconds, as recorded; 0 without messages."""

    def __init__(
        self,
        path: Path,
        sources: tuple[Path, ...],
        files: list[StorageFile],
        types: Mapping[str, str],
        scratch: _Scratch,
        notes: Notes,
    ) -> None:
        self.path = path
        self.storage = 'mcap' if isinstance(files[0], McapFile) else 'sqlite3'
        self._sources = sources
        self._files = files
        self._types = types
        self._scratch = scratch
        self._notes = notes
        self._library = TypeLibrary()
        filled = [file for file in files if file.count]
        self.start_ns = min((file.start_ns for file in filled), default=0)
        self.end_ns = max((file.end_ns for file in filled), default=0)
        self.topics: Mapping[str, TopicInfo] = self._topics()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the bag, as far as it has been read."""
        return self._notes.texts()

    @property
    def complete(self) -> bool:
        """False when messages are known to be missing."""
        return self._notes.complete

    def messages(
        self, topics: Collection[str] | None = None, *, order: str = 'log'
    ) -> Iterator[BagMessage]:
        """Messages of ``topics`` (full names; None: all), in order of time, from the start.

        order: ``log``, by the time of recording; or ``header``, by header stamp where it is set
        and by the time of recording elsewhere, which reads the bag twice. Equal times come in
        the order of the files. Topics whose type is unknown are skipped with one warning.
        Any number of iterations may run at once.
        """
        if order not in ORDERS:
            raise BagError(str(self.path), found=f'order {order!r}', expected=' or '.join(ORDERS))
        wanted = {topics} if isinstance(topics, str) else topics
        places = [Place(file=file, decoders=self._decoders(file, wanted)) for file in self._files]
        read = by_log if order == 'log' else by_header
        return (
            BagMessage(topic=topic, log_ns=log_ns, raw=raw, decoder=decoder)
            for topic, log_ns, raw, decoder in read(places)
        )

    def digest(self) -> str:
        """SHA-256 over the data files as they lie on disk, one after the other."""
        digest = hashlib.sha256()
        for source in self._sources:
            for file in content_files(source):
                with file.open('rb') as opened:
                    for piece in iter(partial(opened.read, COPY_BYTES), b''):
                        digest.update(piece)
        return digest.hexdigest()

    def close(self) -> None:
        """Remove what was unpacked. Iterations that still run end with an error."""
        self._scratch.close()

    def __enter__(self) -> Bag:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _topics(self) -> dict[str, TopicInfo]:
        found: dict[str, TopicInfo] = {}
        for channel in (c for file in self._files for c in file.channels.values()):
            kind = self._type(channel)
            known = found.get(channel.topic)
            if known is not None and kind and known.type not in ('', kind):
                text = f'has messages of type {known.type} and {kind}'
                self._notes.add(channel.topic, text)
            found[channel.topic] = TopicInfo(
                name=channel.topic,
                type=(known.type if known else '') or kind,
                count=channel.count + (known.count if known else 0),
            )
        return dict(sorted(found.items()))

    def _type(self, channel: Channel) -> str:
        return ros2_name(channel.type or self._types.get(channel.topic, ''))

    def _decoders(
        self, file: StorageFile, topics: Collection[str] | None
    ) -> dict[int, tuple[str, Decoder]]:
        """By channel of ``file``: topic and decoder."""
        decoders = {}
        for key, channel in file.channels.items():
            if topics is not None and channel.topic not in topics:
                continue
            decoder = self._decoder(channel)
            if isinstance(decoder, str):
                self._notes.add(channel.topic, f'skipped: {decoder}')
            else:
                decoders[key] = (channel.topic, decoder)
        return decoders

    def _decoder(self, channel: Channel) -> Decoder | str:
        if channel.encoding != 'cdr':
            return f'its messages are in {channel.encoding or "no named"} encoding, not CDR'
        return self._library.decoder(
            self._type(channel),
            schema_encoding=channel.schema_encoding,
            definition=channel.definition,
        )


class _Scratch:
    """A folder for unpacked copies, made when it is first needed."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None

    def __call__(self) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix='sparkrt_bag_')
        return Path(self._folder.name)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _open_file(path: Path, scratch: _Scratch, notes: Notes) -> StorageFile | None:
    """One data file; None, with a note, where nothing of it is left."""
    file, storage = readable_copy(path, scratch, notes)
    if storage == 'mcap':
        return McapFile(file, notes)
    if storage == 'sqlite3':
        try:
            return SqliteFile(file, notes, in_place=file == path)
        except BagError as error:
            notes.add(path.name, error.found, lost=True)
    else:
        notes.add(path.name, 'an empty file', lost=True)
    return None

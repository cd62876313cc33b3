"""SQLite files of rosbag2, opened so that nothing is ever written beside them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sparkrt_ros.replay.bag_compression import DamagedData, unpack_message
from sparkrt_ros.replay.bag_errors import BagError, Notes
from sparkrt_ros.replay.bag_sqlite_recovery import Rows, cut_short, recover_rows
from sparkrt_ros.replay.bag_storage import Channel, Entry

_DATA = 'SELECT data FROM messages WHERE id = ?'
# Rows of one time come in the order they were written in.
_ORDERED = 'SELECT timestamp, topic_id, id FROM messages ORDER BY timestamp, id'


class SqliteFile:
    """One SQLite file. See :class:`~sparkrt_ros.replay.bag_storage.StorageFile`.

    Where the database is cut short or damaged, its rows are collected at opening.
    ``in_place`` False: the file is a private copy, whose journal may be rolled back.
    """

    def __init__(self, path: Path, notes: Notes, *, in_place: bool = True) -> None:
        self.path = path
        self._notes = notes
        self._in_place = in_place
        self._recovered: Rows | None = None
        try:
            with closing(self._connect()) as database:
                topics = database.execute(
                    'SELECT id, name, type, serialization_format FROM topics ORDER BY id'
                ).fetchall()
                database.execute('SELECT id, topic_id, timestamp, data FROM messages LIMIT 0')
                definitions = _definitions(database)
                counts = self._count(database)
        except sqlite3.Error as error:
            raise BagError(
                str(path),
                found=f'a SQLite file that is no bag, or too damaged ({error})',
                expected='a database with the tables "topics" and "messages"',
            ) from error
        self.channels = {
            key: Channel(
                id=key,
                topic=topic,
                type=kind,
                encoding=encoding,
                schema_encoding=definitions.get(kind, ('', ''))[0],
                definition=definitions.get(kind, ('', ''))[1],
                count=counts[key],
            )
            for key, topic, kind, encoding in topics
        }
        self.count = sum(channel.count for channel in self.channels.values())
        for key in sorted(counts.keys() - self.channels.keys()):
            text = f'has {counts[key]} messages of topic {key}, which it does not describe'
            notes.add(path.name, text, lost=True)

    def reader(self) -> SqliteReader:
        return SqliteReader(self._connect(), self.path, self._recovered, self._notes)

    def _connect(self) -> sqlite3.Connection:
        # Immutable: no lock, no journal, no shared memory beside the file, and a read-only
        # folder serves. A pass may go on in another thread than it began in.
        mode = 'mode=ro&immutable=1' if self._in_place else 'mode=rw'
        uri = f'file:{quote(str(self.path.absolute()))}?{mode}'
        database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        # Names that are not UTF-8 are damage, but not a reason to read nothing.
        database.text_factory = lambda data: data.decode(errors='replace')
        if cut_short(self.path):
            # Or SQLite refuses every statement on a file with fewer pages than its head says.
            database.execute('PRAGMA writable_schema = ON')
        return database

    def _count(self, database: sqlite3.Connection) -> Counter[int]:
        """Messages by topic; sets the first and last time."""
        try:
            if cut_short(self.path):
                raise sqlite3.DatabaseError('the file is cut short')
            times = database.execute('SELECT MIN(timestamp), MAX(timestamp) FROM messages')
            self.start_ns, self.end_ns = (int(time or 0) for time in times.fetchone())
            counts = database.execute('SELECT topic_id, COUNT(*) FROM messages GROUP BY topic_id')
            return Counter(dict(counts.fetchall()))
        except sqlite3.DatabaseError as error:
            rows = recover_rows(self.path, database)
            _note_damage(self.path, error, rows, self._notes)
            self._recovered = rows
            self.start_ns = rows.times_ns[0] if rows.times_ns else 0
            self.end_ns = rows.times_ns[-1] if rows.times_ns else 0
            return Counter(rows.topics)


class SqliteReader:
    """One pass over the messages; a locator is the row's id."""

    def __init__(
        self, database: sqlite3.Connection, path: Path, recovered: Rows | None, notes: Notes
    ) -> None:
        self._database = database
        self._path = path
        self._recovered = recovered
        self._notes = notes

    def entries(self, channels: Collection[int]) -> Iterator[Entry]:
        wanted = frozenset(channels)
        last = (-1, -1)
        try:
            if self._recovered is None:
                for log_ns, topic, row in self._database.execute(_ORDERED):
                    last = (log_ns, row)
                    if topic in wanted:
                        yield log_ns, topic, row
                return
            rows = self._recovered
        except sqlite3.DatabaseError as error:
            rows = recover_rows(self._path, self._database)
            _note_damage(self._path, error, rows, self._notes)
        for log_ns, topic, row in rows.after(*last):
            if topic in wanted:
                yield log_ns, topic, row

    def raw(self, locator: int) -> bytes | None:
        try:
            found = self._database.execute(_DATA, (locator,)).fetchone()
            if found is None or not isinstance(found[0], bytes):
                raise DamagedData('no data')
            return unpack_message(found[0])
        except (sqlite3.DatabaseError, DamagedData) as error:
            place = f'row {locator}'
            self._notes.add(self._path.name, f'messages lost: {error}', place=place, lost=True)
            return None

    def close(self) -> None:
        self._database.close()


def _note_damage(path: Path, error: Exception, rows: Rows, notes: Notes) -> None:
    outcome = 'every message is still there' if rows.whole else 'messages are lost'
    notes.add(path.name, f'is damaged ({error}); {outcome}', lost=not rows.whole)


def _definitions(database: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """By type: how it is described and the description; empty in older files."""
    try:
        rows: Iterable[tuple[str, str, str]] = database.execute(
            'SELECT topic_type, encoding, encoded_message_definition FROM message_definitions'
        ).fetchall()
    except sqlite3.DatabaseError:
        return {}
    return {kind: (encoding, text) for kind, encoding, text in rows}

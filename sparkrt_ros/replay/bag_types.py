"""From recorded bytes to messages, by the definitions in the bag or the built-in ones."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sparkrt_ros.convert.time import NS_PER_S
from sparkrt_ros.replay.bag_errors import BagMessageError, missing_library

_SEPARATOR = re.compile(r'^={80}\n', re.MULTILINE)
_HEADER = 'std_msgs/msg/Header'
_STAMP = {0: struct.Struct('>iI'), 1: struct.Struct('<iI')}
_CDR_HEAD = 4


class Decoder:
    """Decodes one message type; immutable, so that any number of threads may use it."""

    def __init__(self, kind: str, store: Any) -> None:
        self.type = kind
        self._store = store
        # Builds the functions now, not under two threads at once.
        self._definition = definition = store.get_msgdef(kind)
        self._readers = (definition.deserialize_cdr_be, definition.deserialize_cdr_le)
        headers = [i for i, (name, _) in enumerate(definition.fields) if name == 'header']
        described = [definition.fields[i][1][1] for i in headers]
        self._stamped = described == [_HEADER]
        self._leads = headers == [0]

    def decode(self, raw: bytes, *, where: str) -> Any:
        """The message; numeric arrays are read-only views of ``raw``. Raises BagMessageError."""
        from rosbags.serde import SerdeError

        try:
            if len(raw) < _CDR_HEAD or raw[0] != 0 or raw[1] not in _STAMP:
                raise ValueError(f'they begin with {raw[:_CDR_HEAD].hex(" ") or "nothing"}')
            # As in ROS, bytes behind the last field mean nothing: rclpy's serialize_message
            # leaves room for the alignment of sequences even where they are empty.
            read = self._readers[raw[1]]
            body = memoryview(raw)[_CDR_HEAD:]
            return read(body, 0, self._definition.cls, self._store)[0]
        except (SerdeError, struct.error, ValueError, IndexError) as error:
            raise BagMessageError(
                where, found=f'data that do not decode ({error})', expected=f'a {self.type} in CDR'
            ) from error

    def stamp_ns(self, raw: bytes, *, where: str) -> int | None:
        """The header stamp; None for a type without header. Raises BagMessageError."""
        if not self._stamped:
            return None
        if self._leads and len(raw) >= _CDR_HEAD + 8 and raw[0] == 0 and raw[1] in _STAMP:
            seconds, nanoseconds = _STAMP[raw[1]].unpack_from(raw, _CDR_HEAD)
        else:
            stamp = self.decode(raw, where=where).header.stamp
            seconds, nanoseconds = stamp.sec, stamp.nanosec
        return int(seconds) * NS_PER_S + int(nanoseconds)


class TypeLibrary:
    """The decoders of one bag. A definition in the bag precedes the built-in one.

    Recordings of other ROS releases may hold older forms of standard types; where the bag's
    definition is missing or in a form that cannot be read, the built-in one serves.
    """

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str, str], Decoder | str] = {}

    def decoder(self, kind: str, *, schema_encoding: str, definition: str) -> Decoder | str:
        """The decoder, or why there is none."""
        key = (kind, schema_encoding, definition)
        if key not in self._decoders:
            self._decoders[key] = _make(ros2_name(kind), schema_encoding, definition)
        return self._decoders[key]


def ros2_name(kind: str) -> str:
    """``sensor_msgs/msg/Image`` for any of the ways in which files write it."""
    parts = [part for part in re.split(r'/|::', kind) if part]
    return '/'.join([parts[0], 'msg', parts[1]] if len(parts) == 2 else parts)


def _make(kind: str, schema_encoding: str, definition: str) -> Decoder | str:
    base = _builtin_types()
    recorded = _recorded(kind, schema_encoding, definition)
    if kind not in recorded and kind not in base:
        described = (
            f'a {schema_encoding} schema that cannot be read' if definition else 'no schema'
        )
        return f'type {kind or "unknown"} is not built in and has {described}'
    try:
        return Decoder(kind, _store(recorded))
    except Exception as error:  # foreign text, turned into code
        if kind in base:
            return Decoder(kind, _store({}))
        return f'the definition of {kind} cannot be used: {type(error).__name__}: {error}'


def _recorded(kind: str, schema_encoding: str, definition: str) -> dict[str, Any]:
    """The types that a definition describes; empty where it cannot be read."""
    from rosbags.typesys import get_types_from_idl, get_types_from_msg

    types: dict[str, Any] = {}
    if not definition.strip():  # a recorder that did not find it, not a type without fields
        return types
    try:
        if schema_encoding == 'ros2msg':
            types.update(get_types_from_msg(definition, kind))
        elif schema_encoding in ('ros2idl', 'omgidl'):
            for part in _SEPARATOR.split(definition):
                title, _, text = part.partition('\n')
                if title.startswith('MSG: '):
                    types.update(get_types_from_msg(text, ros2_name(title[5:].strip())))
                elif part.strip():
                    types.update(get_types_from_idl(text if title.startswith('IDL: ') else part))
    except Exception:  # whatever a parser makes of foreign text
        return {}
    return types if kind in types else {}


def _store(recorded: Mapping[str, Any]) -> Any:
    """A type store in which ``recorded`` take the place of the built-in types."""
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.LATEST)
    for name in recorded:
        store.fielddefs.pop(name, None)
        store.types.pop(name, None)
    if recorded:
        store.register(dict(recorded))
    return store


@lru_cache(maxsize=1)
def _builtin_types() -> frozenset[str]:
    try:
        from rosbags.typesys import Stores, get_typestore
    except ImportError as error:
        raise missing_library('rosbags') from error
    return frozenset(get_typestore(Stores.LATEST).fielddefs)

"""Whether a JPEG or PNG file is whole, judged by its own structure.

Decoders are no witness: for a JPEG cut in the middle some return a full-size picture whose lower
part is black or grey. Damage *inside* a JPEG scan cannot be seen here either: the format has no
checksum. A PNG has one per chunk, and it is checked.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

JPEG_START = b'\xff\xd8\xff'
PNG_START = b'\x89PNG\r\n\x1a\n'

# in entropy-coded data FF is followed by 00 (a literal FF), D0..D7 (restart) or FF (fill)
_MARKER_IN_SCAN = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA
# start-of-frame markers; C4, C8 and CC are tables and an extension
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What the file says about its picture."""

    width: int
    height: int
    channels: int


class DamagedFile(ValueError):
    """The file is not whole; the text says what is missing."""


def check_jpeg(data: bytes | memoryview) -> FileFacts:
    """Walk the markers from SOI to EOI (ITU-T T.81, annex B).

    Whatever follows EOI is ignored: cameras pad their frames. A thumbnail's own EOI lies inside
    its segment and is stepped over. Raises DamagedFile.
    """
    facts = None
    position = 2
    try:
        while True:
            marker, position = _next_marker(data, position)
            if marker == _END_OF_IMAGE:
                break
            if marker in _WITHOUT_LENGTH:
                continue
            (length,) = struct.unpack_from('>H', data, position)
            if marker in _START_OF_FRAME:
                height, width, channels = struct.unpack_from('>HHB', data, position + 3)
                facts = FileFacts(width=width, height=height, channels=channels)
            position += length
            if marker == _START_OF_SCAN:
                position = _end_of_scan(data, position)
    except (struct.error, IndexError) as error:
        raise DamagedFile('it ends before its end-of-image marker') from error
    if facts is None or not facts.width or not facts.height:
        raise DamagedFile('it has no frame header with a size')
    return facts


def check_png(data: bytes | memoryview) -> FileFacts:
    """Walk the chunks from IHDR to IEND and check every CRC. Raises DamagedFile."""
    view = memoryview(data)
    position = len(PNG_START)
    facts = None
    try:
        while True:
            length, kind = struct.unpack_from('>I4s', view, position)
            (crc,) = struct.unpack_from('>I', view, position + 8 + length)
            if zlib.crc32(view[position + 4 : position + 8 + length]) != crc:
                raise DamagedFile(f'the checksum of its {kind.decode("latin-1")} chunk is wrong')
            if kind == b'IHDR':
                facts = _png_header(view, position + 8)
            if kind == b'IEND':
                break
            position += 12 + length
    except struct.error as error:
        raise DamagedFile('it ends before its IEND chunk') from error
    if facts is None:
        raise DamagedFile('it has no IHDR chunk')
    return facts


def _next_marker(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the marker at ``position`` and the position behind it."""
    if data[position] != 0xFF:
        raise DamagedFile(f'byte {position} should begin a marker')
    while data[position] == 0xFF:
        position += 1
    return int(data[position]), position + 1


def _end_of_scan(data: bytes | memoryview, position: int) -> int:
    """Return the position of the first marker that ends the entropy-coded data."""
    found = _MARKER_IN_SCAN.search(data, position)
    if found is None:
        raise DamagedFile('its picture data ends before its end-of-image marker')
    return found.start()


def _png_header(view: memoryview, position: int) -> FileFacts:
    width, height, _depth, colour_type = struct.unpack_from('>IIBB', view, position)
    # colour types of the PNG specification; 3 is a palette of RGB
    channels = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(colour_type)
    if channels is None:
        raise DamagedFile(f'its colour type {colour_type} does not exist')
    return FileFacts(width=width, height=height, channels=channels)

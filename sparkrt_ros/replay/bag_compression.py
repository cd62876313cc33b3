"""The compressions that bags use: Zstandard and LZ4."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sparkrt_ros.replay.bag_errors import Notes, missing_library

ZSTD_MAGIC = b'\x28\xb5\x2f\xfd'
COPY_BYTES = 1 << 20


class DamagedData(Exception):
    """Compressed data that do not decompress; the text says how."""


def decompress(data: bytes, compression: str, size: int) -> bytes:
    """The ``size`` bytes of an MCAP chunk. compression: as in MCAP, '' for none.

    Raises DamagedData, also for a compression that nothing here knows.
    """
    if compression == '':
        content = data
    elif compression == 'zstd':
        content = _whole_zstd(data, size)
    elif compression == 'lz4':
        content = _whole_lz4(data, size)
    else:
        raise DamagedData(f'compression {compression!r}, and not zstd, lz4 or none')
    if len(content) != size:
        raise DamagedData(f'{len(content)} bytes where {size} belong')
    return content


def unpack_message(data: bytes) -> bytes:
    """A message's data, unpacked if they were compressed by themselves. Raises DamagedData.

    No CDR begins like Zstandard, so that nothing else has to say which it is.
    """
    if not data.startswith(ZSTD_MAGIC):
        return data
    decompressor = _zstd().ZstdDecompressor()
    try:
        content: bytes = decompressor.decompress(data)
    except _zstd().ZstdError as error:
        raise DamagedData(str(error)) from error
    if not decompressor.eof:
        raise DamagedData('compressed data that end early')
    return content


def decompress_file(source: Path, target: Path, notes: Notes) -> None:
    """Write the content of a Zstandard file to ``target``, as far as it goes, piece by piece."""
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    with source.open('rb') as compressed, target.open('wb') as out:
        try:
            while piece := compressed.read(COPY_BYTES):
                # A file may hold several frames, one after the other.
                while piece or not (decompressor.eof or decompressor.needs_input):
                    if decompressor.eof:
                        decompressor = zstd.ZstdDecompressor()
                    out.write(decompressor.decompress(piece, COPY_BYTES))
                    piece = decompressor.unused_data if decompressor.eof else b''
        except zstd.ZstdError as error:
            notes.add(source.name, f'the compressed file is damaged: {error}', lost=True)
            return
    if not decompressor.eof:
        notes.add(source.name, 'the compressed file is cut short', lost=True)


def _pack_zstd(data: bytes, level: int) -> bytes:
    packed: bytes = _zstd().compress(data, level)
    return packed


def _pack_lz4(data: bytes, _: int) -> bytes:
    packed: bytes = _lz4().compress(data)
    return packed


def _pack_nothing(data: bytes, _: int) -> bytes:
    return data


def _whole_zstd(data: bytes, size: int) -> bytes:
    # One byte more than belongs there is enough to see that there is too much.
    try:
        content: bytes = _zstd().ZstdDecompressor().decompress(data, size + 1)
    except _zstd().ZstdError as error:
        raise DamagedData(str(error)) from error
    return content


def _whole_lz4(data: bytes, size: int) -> bytes:
    try:
        content: bytes = _lz4().LZ4FrameDecompressor().decompress(data, size + 1)
    except (RuntimeError, EOFError) as error:
        raise DamagedData(str(error)) from error
    return content


def _zstd() -> Any:
    """The module of the standard library, or its backport for Python before 3.14."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise missing_library('backports.zstd') from error
    return zstd


def _lz4() -> Any:
    try:
        from lz4 import frame
    except ImportError as error:
        raise missing_library('lz4') from error
    return frame


# MCAP's names -> (data, level of zstd) -> packed data.
COMPRESSORS = {'': _pack_nothing, 'zstd': _pack_zstd, 'lz4': _pack_lz4}

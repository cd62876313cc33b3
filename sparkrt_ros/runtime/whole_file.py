"""Results that are written whole or not at all, whatever the disk does."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from sparkrt_ros.runtime.errors import SparkRTError


class FileNotWritten(SparkRTError):
    """A result could not be written; what was there before is still there."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file at ``path``; text is UTF-8. A pipe or a device is written to as it is.

    Raises FileNotWritten, with the system's reason, where the folder is missing or the disk full.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        _write(path.resolve(), data)
    except OSError as error:
        raise FileNotWritten(
            str(path),
            found=error.strerror or str(error),
            expected=f'room for {len(data) / 1e6:.1f} MB in {path.resolve().parent}',
            remedy='make room there, or name another place',
        ) from error


def _write(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    partial = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.part')
    try:
        with partial.open('xb') as stream:
            stream.write(data)
            stream.flush()
            # Some file systems find out only now that they are full.
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

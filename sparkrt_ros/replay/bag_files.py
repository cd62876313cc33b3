"""Which files a bag consists of, told by their content; names and metadata.yaml only help."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import yaml

from sparkrt_ros.replay.bag_compression import ZSTD_MAGIC, decompress_file
from sparkrt_ros.replay.bag_errors import BagError, Notes

MCAP_MAGIC = b'\x89MCAP0\r\n'
SQLITE_MAGIC = b'SQLite format 3\0'
_LFS_START = b'version https://git-lfs'
_ROS1_START = b'#ROSBAG V'
_DATA_NAME = re.compile(r'\.(mcap|db3)(\.zstd|\.zst)?$')
_EXPECTED = 'an MCAP or SQLite bag, as ros2 bag record writes'
# A journal or write-ahead log holds what the recorder had not yet moved into the database.
_SQLITE_LEFTOVERS = ('-wal', '-journal')


@dataclass(frozen=True, kw_only=True)
class BagLayout:
    """Data files in order of recording; ``types`` are those that metadata.yaml gives by topic."""

    files: tuple[Path, ...]
    types: Mapping[str, str] = field(default_factory=dict)


def find_files(path: Path, notes: Notes) -> BagLayout:
    """The data files of the bag ``path``, a folder or one data file. Raises BagError."""
    if not path.exists():
        raise BagError(
            str(path), found='nothing', expected='a bag: a folder, an .mcap or a .db3 file'
        )
    if not path.is_dir():
        return BagLayout(files=(path,))
    metadata = _read_metadata(path / 'metadata.yaml', notes)
    listed = _listed(path, metadata, notes)
    files = listed or _of_one_storage(path, _found(path))
    if not files:
        raise BagError(str(path), found='a folder without bag files', expected=_EXPECTED)
    return BagLayout(files=tuple(files), types=_types(metadata))


def storage_of(path: Path) -> str:
    """'mcap', 'sqlite3', 'zstd' (one of them, compressed) or 'empty'. Raises BagError."""
    try:
        with path.open('rb') as file:
            start = file.read(64)
    except OSError as error:
        raise BagError(
            str(path), found=f'no readable file ({error.strerror})', expected=_EXPECTED
        ) from error
    for magic, name in ((MCAP_MAGIC, 'mcap'), (SQLITE_MAGIC, 'sqlite3'), (ZSTD_MAGIC, 'zstd')):
        if start.startswith(magic):
            return name
    if not start:
        return 'empty'
    if start.startswith(_LFS_START):
        raise BagError(
            str(path),
            found='a Git LFS pointer instead of the bag',
            expected=_EXPECTED,
            remedy='fetch the file with git lfs pull',
        )
    if start.startswith(_ROS1_START):
        raise BagError(
            str(path),
            found='a bag of ROS 1',
            expected=_EXPECTED,
            remedy='convert it with rosbags-convert',
        )
    raise BagError(
        str(path),
        found=f'a file that is no bag (it begins with {start[:8]!r})',
        expected=_EXPECTED,
    )


def readable_copy(path: Path, scratch: Callable[[], Path], notes: Notes) -> tuple[Path, str]:
    """A file that can be read in place, and its storage ('empty' where nothing is left).

    That is ``path`` itself, or a copy in the folder ``scratch()`` where it is compressed as a
    whole or where a killed recorder left part of the data beside the database. Raises BagError.
    """
    storage = storage_of(path)
    try:
        if storage == 'zstd':
            copy = scratch() / re.sub(r'\.zstd?$', '', path.name)
            decompress_file(path, copy, notes)
            return copy, storage_of(copy)
        if storage == 'sqlite3' and (leftovers := _leftovers(path)):
            copy = scratch() / path.name
            for file in (path, *leftovers):
                shutil.copyfile(file, copy.with_name(file.name))
            return copy, storage
    except OSError as error:
        raise BagError(
            str(path),
            found=f'no way to unpack it ({error.strerror})',
            expected='space for the unpacked bag',
            remedy='set TMPDIR to a folder on a larger disk',
        ) from error
    return path, storage


def content_files(path: Path) -> tuple[Path, ...]:
    """The data file and what belongs to its content beside it."""
    return (path, *_leftovers(path))


def _leftovers(path: Path) -> list[Path]:
    beside = (path.with_name(path.name + ending) for ending in _SQLITE_LEFTOVERS)
    return [file for file in beside if file.is_file() and file.stat().st_size]


def _read_metadata(path: Path, notes: Notes) -> Mapping[str, Any]:
    """The information of metadata.yaml whatever its version; empty where there is none."""
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        text = ' '.join(str(error).split())
        notes.add(path.name, f'not used, since it cannot be read: {text}')
        return {}
    information = content.get('rosbag2_bagfile_information') if isinstance(content, dict) else None
    if not isinstance(information, dict):
        notes.add(path.name, 'not used, since it holds no rosbag2_bagfile_information')
        return {}
    return information


def _listed(folder: Path, metadata: Mapping[str, Any], notes: Notes) -> list[Path]:
    names = metadata.get('relative_file_paths')
    files = []
    for name in names if isinstance(names, list) else ():
        # Old recorders wrote the path from where they were started.
        file = _present(folder / PurePath(str(name)).name)
        if file is None:
            notes.add('metadata.yaml', f'lists {name}, which is not there', lost=True)
        else:
            files.append(file)
    unlisted = [file.name for file in _found(folder) if file not in files] if files else []
    if unlisted:
        notes.add('metadata.yaml', f'does not list {", ".join(unlisted)}; not read')
    return files


def _present(file: Path) -> Path | None:
    """``file``, or the same compressed or uncompressed by hand."""
    plain = file.with_name(re.sub(r'\.zstd?$', '', file.name))
    candidates = (file, plain, *(plain.with_name(plain.name + end) for end in ('.zstd', '.zst')))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _found(folder: Path) -> list[Path]:
    """Data files of a folder by name or content, in natural order: x_2 before x_10."""
    files = [file for file in folder.iterdir() if file.is_file() and _looks_like_data(file)]
    names = {file.name for file in files}
    # While it compresses, a recorder has both; the uncompressed one is whole.
    files = [f for f in files if re.sub(r'\.zstd?$', '', f.name) not in names - {f.name}]
    return sorted(files, key=_natural)


def _of_one_storage(folder: Path, files: list[Path]) -> list[Path]:
    """``files``, unless they may be the same messages twice."""
    kinds = {match[1] for file in files if (match := _DATA_NAME.search(file.name))}
    if len(kinds) > 1:
        raise BagError(
            str(folder),
            found='MCAP and SQLite files side by side, and no metadata.yaml that says which',
            expected='one storage',
            remedy='name the file to read',
        )
    return files


def _looks_like_data(file: Path) -> bool:
    if _DATA_NAME.search(file.name):
        return True
    with file.open('rb') as opened:
        return opened.read(16).startswith((MCAP_MAGIC, SQLITE_MAGIC))


def _natural(file: Path) -> list[tuple[int, int | str]]:
    parts: Iterable[str] = re.split(r'(\d+)', file.name)
    return [(1, int(part)) if part.isdigit() else (0, part) for part in parts]


def _types(metadata: Mapping[str, Any]) -> dict[str, str]:
    topics = metadata.get('topics_with_message_count')
    types = {}
    for topic in topics if isinstance(topics, list) else ():
        about = topic.get('topic_metadata') if isinstance(topic, dict) else None
        if isinstance(about, dict) and {'name', 'type'} <= about.keys():
            types[str(about['name'])] = str(about['type'])
    return types

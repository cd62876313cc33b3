"""Removes the shared memory that killed processes left behind.

A process that is killed cannot remove its segment of Fast DDS (70 MB with our profile), and tests
kill many: unswept, they would fill the memory of the machine.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path('/dev/shm')
PATTERNS = ('fastdds_*', 'fastrtps_*', 'sem.fastdds_*', 'sem.fastrtps_*')


def mapped_files() -> set[str]:
    """Every file below /dev/shm that a process of this user has mapped."""
    found = set()
    for maps in Path('/proc').glob('[0-9]*/maps'):
        try:
            lines = maps.read_text().splitlines()
        except (OSError, PermissionError):
            continue
        found.update(line.split()[-1] for line in lines if str(FOLDER) in line)
    return found


def owner(path: Path) -> str:
    """The file that is mapped as long as ``path`` is in use.

    A lock file belongs to the segment or port of the same name, and so does the semaphore of a
    port, which is mapped under another name: without it, living processes lose messages.
    """
    name = path.name.removeprefix('sem.').removesuffix('_mutex').removesuffix('_el')
    return str(FOLDER / name)


def sweep() -> int:
    """Remove the middleware's segments that nobody maps any more; return how many."""
    names = [path for pattern in PATTERNS for path in FOLDER.glob(pattern)]
    used = mapped_files()
    removed = 0
    for path in names:
        if str(path) in used or owner(path) in used:
            continue
        path.unlink(missing_ok=True)
        removed += 1
    return removed

"""Removes the shared memory that killed processes left behind.

A process that is killed cannot remove its segment of Fast DDS (70 MB with our profile), and tests
kill many: unswept, they would fill the memory of the machine.
"""

from __future__ import annotations

import time
from pathlib import Path

FOLDER = Path('/dev/shm')
SETTLED_S = 3.0
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
    left = [path for pattern in PATTERNS for path in FOLDER.glob(pattern) if is_settled(path)]
    # Twice, since a starting process may take over what a dead one left.
    for _ in range(2):
        used = mapped_files()
        left = [path for path in left if str(path) not in used and owner(path) not in used]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def is_settled(path: Path) -> bool:
    """Whether a file is older than the moment between making and mapping it."""
    try:
        return time.time() - path.stat().st_ctime > SETTLED_S
    except FileNotFoundError:
        return False

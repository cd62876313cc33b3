"""Where the files that come with the package are: policies and middleware profiles."""

from __future__ import annotations

import os
from pathlib import Path

from sparkrt_ros.runtime.errors import ConfigError


def shared_file(relative: str) -> Path:
    """Return a shipped file or folder, from the source tree or the installed share folder.

    Raises ConfigError listing the places it was looked for.
    """
    prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    candidates = [Path(prefix) / 'share' / 'sparkrt' / relative for prefix in prefixes]
    candidates.append(Path(__file__).resolve().parents[2] / relative)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ConfigError(
        relative,
        found='none of ' + ', '.join(map(str, candidates)),
        expected='the file, in one of them',
        remedy='source install/setup.bash of the workspace that holds sparkrt',
    )

"""Where the files that come with this package are: contracts, policies, middleware profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sparkrt_ros.runtime.errors import ConfigError


def find_shared(relative: str) -> Path | None:
    """Return a shipped file or folder; None where it is not installed.

    The one that belongs to this very code comes first: the source tree, then the install prefix
    above this file; then the prefixes of the ament index (read from the environment, so that no
    ROS package is imported), then that of Python itself.
    """
    return next((path for path in _candidates(relative) if path.exists()), None)


def shared_path(relative: str) -> Path:
    """As ``find_shared``; raises ConfigError listing the places it was looked for."""
    found = find_shared(relative)
    if found is None:
        raise ConfigError(
            relative,
            found='none of ' + ', '.join(map(str, _candidates(relative))),
            expected='it, in one of them',
            remedy='source install/setup.bash of the workspace that holds sparkrt',
        )
    return found


def _candidates(relative: str) -> list[Path]:
    parents = Path(__file__).resolve().parents
    ament = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    prefixes = [*parents, *(Path(prefix) for prefix in ament if prefix), Path(sys.prefix)]
    return [parents[2] / relative, *(prefix / 'share/sparkrt' / relative for prefix in prefixes)]

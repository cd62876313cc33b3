"""Robot contracts: load one by name or path, and check it against a policy.

The rest of the package imports everything about contracts from here.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from sparkrt_ros.convert.contract_match import PolicyBinding, check_contract
from sparkrt_ros.convert.contract_reader import read_contract
from sparkrt_ros.convert.contract_types import (
    CAMERA_TYPES,
    OUTPUT_TYPES,
    STATE_TYPES,
    ActionLimits,
    CameraSpec,
    JointSpec,
    OutputGroup,
    RobotContract,
    StateEntry,
    StateStream,
    StreamTiming,
)
from sparkrt_ros.runtime.errors import ContractError
from sparkrt_ros.runtime.share import find_shared

__all__ = [
    'CAMERA_TYPES',
    'OUTPUT_TYPES',
    'STATE_TYPES',
    'ActionLimits',
    'CameraSpec',
    'JointSpec',
    'OutputGroup',
    'PolicyBinding',
    'RobotContract',
    'StateEntry',
    'StateStream',
    'StreamTiming',
    'check_contract',
    'load_contract',
    'robots_folder',
    'shipped_contracts',
]

_SUFFIXES = ('.yaml', '.yml')


def load_contract(name_or_path: str | Path) -> RobotContract:
    """Load a shipped contract by name (``so101``) or any contract by path (``my/robot.yaml``).

    A text with a slash or a YAML suffix is a path; everything else is a shipped name.
    Raises ContractError where the file is missing or not fully understood.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or '/' in text or text.endswith(_SUFFIXES):
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise ContractError(
                text,
                found='a folder' if path.is_dir() else 'no such file',
                expected='the YAML file of a robot contract',
                remedy=f'give its path, or the name of a shipped robot: {_shipped_text()}',
            )
        return read_contract(path)
    shipped = shipped_contracts()
    if text not in shipped:
        near = difflib.get_close_matches(text, shipped, n=1)
        raise ContractError(
            f'robot contract {text!r}',
            found='no shipped robot of that name',
            expected=f'one of {_shipped_text()}, or the path of a YAML file',
            remedy=f'did you mean {near[0]!r}?' if near else None,
        )
    return read_contract(shipped[text])


def shipped_contracts() -> dict[str, Path]:
    """Return name -> file of the contracts that come with this package, sorted by name."""
    folder = robots_folder()
    return {} if folder is None else {p.stem: p for p in sorted(folder.glob('*.yaml'))}


def robots_folder() -> Path | None:
    """Find the folder of the shipped contracts; None where they are not installed."""
    return find_shared('config/robots')


def _shipped_text() -> str:
    return ', '.join(shipped_contracts()) or '(none is installed)'

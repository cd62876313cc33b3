"""One step of a processor file as it stands there, and what every parser of steps checks.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkrt_ros.runtime.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One step as the file has it, with what its parser may need.

    artifacts: name -> folder or file inside the policy folder.
    """

    where: str
    folder: Path
    config: Mapping[str, Any]
    state_file: Path | None
    dataset: str | None
    artifacts: Mapping[str, Path]

    def check(self, *options: str, state: bool = False, artifacts: tuple[str, ...] = ()) -> None:
        """Raise ``CheckpointError`` for an option, a state file or an artifact not known here.

        options: the names this step may have. state: whether it may have a state file.
        """
        unknown = sorted(set(self.config) - set(options))
        if unknown:
            raise CheckpointError(
                f'{self.where}: config',
                found=f'unknown option {", ".join(unknown)}',
                expected=', '.join(options) or 'no options',
                remedy='an option this runtime does not know may change what the step computes',
            )
        if self.state_file is not None and not state:
            raise CheckpointError(
                f'{self.where}: state_file',
                found=self.state_file.name,
                expected='none: this step has no state',
            )
        strange = sorted(set(self.artifacts) - set(artifacts))
        if strange:
            expected = ', '.join(artifacts) or 'none for this step'
            raise CheckpointError(
                f'{self.where}: artifacts', found=', '.join(strange), expected=expected
            )

    def refuse(self, option: str, *, found: object, expected: str, remedy: str = '') -> None:
        """Raise ``CheckpointError`` about one option."""
        raise CheckpointError(
            f'{self.where}: {option}',
            found=repr(found),
            expected=expected,
            remedy=remedy or None,
        )

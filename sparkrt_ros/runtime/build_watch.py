"""Following a policy while it is made ready, and ending that early. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

STAGES = ('building', 'warming', 'gating')


def _say_nothing(_: str) -> None:
    pass


def _accept_all(_backend: str, _precision: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class BuildWatch:
    """What is told while a policy is loaded.

    stage: called with one of STAGES when it begins; several forms may be tried, so stages can come
        again. Whatever it raises ends the loading.
    accepts: whether a form, its backend and its precision, would do; others are not tried.
    """

    stage: Callable[[str], None] = _say_nothing
    accepts: Callable[[str, str], bool] = _accept_all


UNWATCHED = BuildWatch()

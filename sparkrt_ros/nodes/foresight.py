"""What is wrong with parameters of a policy, as far as a set of them can wait for the answer."""

from __future__ import annotations

from pathlib import Path

from sparkrt_ros.convert.contract import RobotContract, check_contract
from sparkrt_ros.nodes.load_config import load_config
from sparkrt_ros.nodes.loaded_policy import LoadedPolicy, policy_folder
from sparkrt_ros.nodes.policy_parameters import PolicySettings
from sparkrt_ros.runtime.types import Capabilities

KEPT_FOLDERS = 8

_Signature = tuple[tuple[str, int, int], ...]


class Foresight:
    """Checks a policy without its weights, in milliseconds; remembers folders that were right.

    Needs torch, so it is for a node whose libraries are loaded.
    """

    def __init__(self) -> None:
        self._known: dict[PolicySettings, tuple[_Signature, Capabilities]] = {}

    def check(
        self, settings: PolicySettings, contract: RobotContract, *, serving: LoadedPolicy | None
    ) -> None:
        """Raise what loading it would, as far as that is known beforehand.

        serving: the policy in use. Raises ConfigError, CheckpointError or ContractError.
        """
        folder = policy_folder(settings)
        if serving is not None and _differ_in_form(settings, serving.settings):
            from sparkrt_ros.runtime.outlook import check_same_folder

            check_same_folder(serving.capabilities, config=settings.config)
            return
        signature = _signature(folder)
        known = self._known.get(settings)
        if known is None or known[0] != signature:
            known = (signature, self._look(folder, settings, contract))
            self._remember(settings, known)
        check_contract(contract, known[1])

    def _look(
        self, folder: Path, settings: PolicySettings, contract: RobotContract
    ) -> Capabilities:
        from sparkrt_ros.runtime.outlook import expected_capabilities

        # How chunks are used is judged as well, but is no part of what a policy is loaded with.
        config = load_config(folder, settings, contract)
        return expected_capabilities(folder, config=settings.config.with_changes(vla=config.vla))

    def _remember(self, settings: PolicySettings, known: tuple[_Signature, Capabilities]) -> None:
        self._known[settings] = known
        while len(self._known) > KEPT_FOLDERS:
            del self._known[next(iter(self._known))]


def _differ_in_form(wanted: PolicySettings, serving: PolicySettings) -> bool:
    """Whether two settings are of one policy, executed in different ways."""
    return (wanted.checkpoint, wanted.image_sizes, wanted.config.vla) == (
        serving.checkpoint,
        serving.image_sizes,
        serving.config.vla,
    )


def _signature(folder: Path) -> _Signature:
    """Name, size and time of every file; nothing for a folder that cannot be listed."""
    try:
        stats = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)

"""The files of a run that go to LeRobot, or came from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.nodes.loaded_policy import LoadedPolicy
from sparkrt_ros.nodes.policy_worker import chunk_actions
from sparkrt_ros.replay.exchange import (
    ForeignActions,
    ObservationDigest,
    ObservationWriter,
    check_same_observations,
    check_same_policy,
    file_sha256,
    read_actions,
)
from sparkrt_ros.replay.result import Arm
from sparkrt_ros.runtime.errors import ConfigError
from sparkrt_ros.runtime.types import FloatArray, Observation


class LeRobotFiles:
    """Both files of one run, where they are wanted; a context manager.

    actions: to compare with; export: to write the observations to.
    Raises ConfigError at once for actions that are unreadable or of another policy.
    """

    def __init__(self, loaded: LoadedPolicy, *, actions: Path | None, export: Path | None) -> None:
        self._loaded, self._path = loaded, actions
        self._weights_sha256 = ''
        self.foreign: ForeignActions | None = None
        self._writer = None if export is None else ObservationWriter(export)
        self._digest = None if actions is None else ObservationDigest()
        if actions is None and export is None:
            return
        from sparkrt_ros.runtime.checkpoint.load import describe_checkpoint

        weights = describe_checkpoint(Path(loaded.receipt['folder'])).weights_file
        self._weights_sha256 = file_sha256(weights)
        if actions is not None:
            self.foreign = read_actions(actions)
            check_same_policy(
                self.foreign,
                path=actions,
                checkpoint_digest=loaded.receipt['digest'],
                weights_sha256=self._weights_sha256,
            )
            self._check_shape(self.foreign, actions)

    def add(self, observation: Observation, *, noise: FloatArray | None) -> None:
        """Note the next observation."""
        if self._writer is not None:
            self._writer.add(observation, noise=noise)
        if self._digest is not None:
            self._digest.add(observation)

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Write the export. meta: what the run knows of itself."""
        if self._writer is None:
            return
        needs = self._loaded.capabilities
        self._writer.finish(
            {
                **meta,
                'checkpoint_digest': self._loaded.receipt['digest'],
                'weights_sha256': self._weights_sha256,
                'policy': needs.model_type,
                'chunk_size': needs.chunk_size,
                'action_size': needs.action_size,
            }
        )

    def arm(self, stamps_ns: npt.NDArray[np.int64]) -> Arm | None:
        """What came from LeRobot, as an arm. Raises ConfigError for other observations."""
        if self.foreign is None or self._path is None or self._digest is None:
            return None
        check_same_observations(
            self.foreign, path=self._path, stamps_ns=stamps_ns, digest=self._digest.hexdigest()
        )
        contract = self._loaded.contract
        actions = [chunk_actions(rows, contract) for rows in self.foreign.actions]
        return Arm(
            label=self.foreign.label,
            normalized=self.foreign.normalized,
            actions=np.stack(actions).astype(np.float64),
            inference_s=np.empty(0),
            receipt=dict(self.foreign.meta),
        )

    def __enter__(self) -> LeRobotFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)

    def _check_shape(self, foreign: ForeignActions, path: Path) -> None:
        needs = self._loaded.capabilities
        wanted = (needs.chunk_size, needs.action_size)
        if foreign.actions.shape[1:] != wanted:
            raise ConfigError(
                str(path),
                found=f'chunks of shape {foreign.actions.shape[1:]}',
                expected=f'{wanted}',
            )

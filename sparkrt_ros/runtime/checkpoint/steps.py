"""What the processor files of a policy say, as frozen values. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sparkrt_ros.runtime.checkpoint.config import FeatureSpec
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling


@dataclass(frozen=True, kw_only=True)
class RenameStep:
    """Renames observation keys: incoming key -> policy key; other keys stay."""

    registry_name: ClassVar[str] = 'rename_observations_processor'
    rename_map: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ToBatchStep:
    """Adds the batch dimension to a single observation."""

    registry_name: ClassVar[str] = 'to_batch_processor'


@dataclass(frozen=True, kw_only=True)
class DeviceStep:
    """Moves tensors to the runtime's device; ``saved_device`` is where training ran, unused."""

    registry_name: ClassVar[str] = 'device_processor'
    saved_device: str


@dataclass(frozen=True, kw_only=True)
class NormalizeStep:
    """Scales observations as the policy was trained; one scaling per feature of the step."""

    registry_name: ClassVar[str] = 'normalizer_processor'
    eps: float
    features: Mapping[str, FeatureSpec]
    scalings: tuple[FeatureScaling, ...]


@dataclass(frozen=True, kw_only=True)
class UnnormalizeStep:
    """Scales the policy's actions back to the units of the dataset."""

    registry_name: ClassVar[str] = 'unnormalizer_processor'
    eps: float
    features: Mapping[str, FeatureSpec]
    scalings: tuple[FeatureScaling, ...]


Step = RenameStep | ToBatchStep | DeviceStep | NormalizeStep | UnnormalizeStep


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """The steps of one processor file in the order in which they run.

    file: where they were read; state_files: the files of statistics among them.
    """

    name: str
    file: Path
    steps: tuple[Step, ...]
    state_files: tuple[Path, ...] = ()

    @property
    def step_names(self) -> tuple[str, ...]:
        return tuple(step.registry_name for step in self.steps)

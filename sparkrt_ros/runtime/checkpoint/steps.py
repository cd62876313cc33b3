"""What the processor files of a policy say, as frozen values. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sparkrt_ros.runtime.checkpoint.features import FeatureSpec
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


@dataclass(frozen=True, kw_only=True)
class NewLineStep:
    """Ends the instruction with a new line."""

    registry_name: ClassVar[str] = 'pi0_new_line_processor'


@dataclass(frozen=True, kw_only=True)
class StatePromptStep:
    """Writes the state, as it is at this place in the file, into the prompt.

    max_state_dim: the size up to which older versions of LeRobot padded it.
    """

    registry_name: ClassVar[str] = 'pi05_prepare_state_tokenizer_processor_step'
    max_state_dim: int


@dataclass(frozen=True, kw_only=True)
class TokenizerStep:
    """Turns the prompt into tokens, padded on the right to ``max_length``.

    tokenizer_name: as LeRobot looks it up, to tell a user what is missing.
    folder: the tokenizer that came with the policy, or None.
    """

    registry_name: ClassVar[str] = 'tokenizer_processor'
    max_length: int
    tokenizer_name: str | None
    folder: Path | None


@dataclass(frozen=True, kw_only=True)
class RelativeActionsStep:
    """Remembers the state that relative actions start from.

    exclude_joints: parts of names of actions that stay absolute. action_names: None where the
        file gives none, and every action is relative then.
    """

    registry_name: ClassVar[str] = 'relative_actions_processor'
    enabled: bool
    exclude_joints: tuple[str, ...]
    action_names: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class AbsoluteActionsStep:
    """Adds the remembered state to relative actions."""

    registry_name: ClassVar[str] = 'absolute_actions_processor'
    enabled: bool


TextStep = NewLineStep | StatePromptStep | TokenizerStep
Step = (
    RenameStep
    | ToBatchStep
    | DeviceStep
    | NormalizeStep
    | UnnormalizeStep
    | TextStep
    | RelativeActionsStep
    | AbsoluteActionsStep
)


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

"""What a policy reads and writes, by key: the part of ``config.json`` that all policies share.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Protocol

from sparkrt_ros.runtime.errors import CheckpointError

OBSERVATION_PREFIX = 'observation.'
STATE_KEY = 'observation.state'
ENVIRONMENT_STATE_KEY = 'observation.environment_state'
IMAGES_PREFIX = 'observation.images.'
ACTION_KEY = 'action'


class FeatureType(str, Enum):
    """What a feature holds; the names are those of ``config.json``."""

    STATE = 'STATE'
    VISUAL = 'VISUAL'
    ENV = 'ENV'
    ACTION = 'ACTION'
    REWARD = 'REWARD'
    LANGUAGE = 'LANGUAGE'


class NormalizationMode(str, Enum):
    """How a feature is normalised; the names are those of ``config.json``."""

    IDENTITY = 'IDENTITY'
    MEAN_STD = 'MEAN_STD'
    MIN_MAX = 'MIN_MAX'
    QUANTILES = 'QUANTILES'
    QUANTILE10 = 'QUANTILE10'


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One input or output of a policy.

    key: the policy key, such as ``observation.images.front``.
    shape: without batch and time; (C, H, W) for an image, (N,) for a vector.
    """

    key: str
    type: FeatureType
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """The features of a policy. ``input_features`` keeps the order of the file.

    The order of its VISUAL keys is the order in which the policy consumes cameras.
    """

    model_type: ClassVar[str]
    reads_instruction: ClassVar[bool] = False

    input_features: Mapping[str, FeatureSpec]
    output_features: Mapping[str, FeatureSpec]

    @property
    def image_features(self) -> dict[str, FeatureSpec]:
        """Cameras by policy key, in the order the policy consumes them."""
        return {
            key: spec
            for key, spec in self.input_features.items()
            if spec.type is FeatureType.VISUAL
        }

    @property
    def robot_state_feature(self) -> FeatureSpec | None:
        """The proprioceptive state: type STATE and key ``observation.state``, as in LeRobot."""
        spec = self.input_features.get(STATE_KEY)
        return spec if spec is not None and spec.type is FeatureType.STATE else None

    @property
    def env_state_feature(self) -> FeatureSpec | None:
        """The first feature of type ENV."""
        found = (spec for spec in self.input_features.values() if spec.type is FeatureType.ENV)
        return next(found, None)

    @property
    def consumed_features(self) -> dict[str, FeatureSpec]:
        """The inputs that the policy reads, in the order of the file."""
        vectors = (self.robot_state_feature, self.env_state_feature)
        read = {*self.image_features, *(spec.key for spec in vectors if spec is not None)}
        return {key: spec for key, spec in self.input_features.items() if key in read}

    @property
    def action_feature(self) -> FeatureSpec:
        """The action; its presence is checked on construction."""
        return self.output_features[ACTION_KEY]

    def to_json_dict(self) -> dict[str, Any]:
        """Return the content of a ``config.json`` that LeRobot reads back as the same config."""
        result: dict[str, Any] = {'type': self.model_type}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ('input_features', 'output_features'):
                value = features_to_json(value)
            elif item.name == 'normalization_mapping':
                value = {FeatureType(key).value: mode.value for key, mode in value.items()}
            elif isinstance(value, tuple):
                value = list(value)
            result[item.name] = value
        return result


class PolicyConfig(Protocol):
    """What every typed configuration has, whatever the kind of policy."""

    model_type: ClassVar[str]
    reads_instruction: ClassVar[bool]

    @property
    def input_features(self) -> Mapping[str, FeatureSpec]: ...
    @property
    def output_features(self) -> Mapping[str, FeatureSpec]: ...
    @property
    def normalization_mapping(self) -> Mapping[FeatureType, NormalizationMode]: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def n_action_steps(self) -> int: ...
    @property
    def temporal_ensemble_coeff(self) -> float | None: ...
    @property
    def image_features(self) -> dict[str, FeatureSpec]: ...
    @property
    def robot_state_feature(self) -> FeatureSpec | None: ...
    @property
    def env_state_feature(self) -> FeatureSpec | None: ...
    @property
    def consumed_features(self) -> dict[str, FeatureSpec]: ...
    @property
    def action_feature(self) -> FeatureSpec: ...
    @property
    def architecture(self) -> dict[str, Any]:
        """What sizes the network, as plain values for people."""


def features_to_json(features: Mapping[str, FeatureSpec]) -> dict[str, dict[str, Any]]:
    """Return features as ``config.json`` and processor files write them."""
    return {
        key: {'type': spec.type.value, 'shape': list(spec.shape)} for key, spec in features.items()
    }


def refuse(name: str, *, found: object, expected: str, remedy: str | None = None) -> None:
    """Raise ``CheckpointError`` about the field ``name`` of ``config.json``."""
    raise CheckpointError(name, found=str(found), expected=expected, remedy=remedy)


def check_feature_shapes(config: FeatureSet) -> None:
    """Raise ``CheckpointError`` for sizes below 1, images that are not (3, H, W), no action."""
    for spec in (*config.input_features.values(), *config.output_features.values()):
        _check_shape(spec)
    action = config.output_features.get(ACTION_KEY)
    if action is None or action.type is not FeatureType.ACTION:
        refuse(
            'output_features',
            found=', '.join(config.output_features) or 'none',
            expected=f'a feature {ACTION_KEY} of type ACTION',
        )
    for vector in (config.robot_state_feature, config.env_state_feature, action):
        if vector is not None and len(vector.shape) != 1:
            refuse(
                f'feature {vector.key}', found=f'shape {vector.shape}', expected='one dimension'
            )


def _check_shape(spec: FeatureSpec) -> None:
    if not spec.shape or any(size < 1 for size in spec.shape):
        refuse(f'feature {spec.key}', found=f'shape {spec.shape}', expected='positive sizes')
    if spec.type is FeatureType.VISUAL and (len(spec.shape) != 3 or spec.shape[0] != 3):
        refuse(
            f'feature {spec.key}',
            found=f'shape {spec.shape}',
            expected='(3, height, width), channels first',
        )

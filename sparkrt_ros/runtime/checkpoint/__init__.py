"""Policy folders: reading, checking and describing them.

Importing this package imports no torch; ``load_checkpoint`` does when it reads weights.
"""

from sparkrt_ros.runtime.checkpoint.config import (
    ActConfig,
    FeatureSpec,
    FeatureType,
    NormalizationMode,
)
from sparkrt_ros.runtime.checkpoint.load import (
    Checkpoint,
    CheckpointDescription,
    describe_checkpoint,
    load_checkpoint,
)
from sparkrt_ros.runtime.checkpoint.pi_config import Pi0Config, Pi05Config

__all__ = [
    'ActConfig',
    'Checkpoint',
    'CheckpointDescription',
    'FeatureSpec',
    'FeatureType',
    'NormalizationMode',
    'Pi05Config',
    'Pi0Config',
    'describe_checkpoint',
    'load_checkpoint',
]

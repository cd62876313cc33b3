"""Inputs and statistics of normalization.npz, as data; needs no torch and no LeRobot."""

from __future__ import annotations

from typing import Any

import numpy as np
from seeded_weights import seeded_statistics, seeded_uniform, seeded_vector

NORMALIZATION_MODES = ('IDENTITY', 'MEAN_STD', 'MIN_MAX', 'QUANTILES', 'QUANTILE10')

NORMALIZATION_FEATURES: dict[str, dict[str, Any]] = {
    'observation.state': {'type': 'STATE', 'shape': [9]},
    'observation.environment_state': {'type': 'ENV', 'shape': [4]},
    'observation.images.front': {'type': 'VISUAL', 'shape': [3, 6, 8]},
    'action': {'type': 'ACTION', 'shape': [9]},
}

CONSTANT_DIMS = (2, 5)
"""Dims of state and action whose statistics say that the value never changed."""

_BATCH = {'action': (2, 5)}


def normalization_statistics() -> dict[str, dict[str, np.ndarray]]:
    """Statistics by feature; images (3, 1, 1), the rest flat; float32."""
    statistics = seeded_statistics(NORMALIZATION_FEATURES)
    for key in ('observation.state', 'action'):
        values = statistics[key]
        for dim in CONSTANT_DIMS:
            for stat in ('min', 'max', 'q01', 'q10', 'q50', 'q90', 'q99'):
                values[stat][dim] = values['mean'][dim]
            values['std'][dim] = 0.0
    return statistics


def normalization_input(key: str, direction: str) -> np.ndarray:
    """What is given to the step: float32, batch (2,), for actions batch and time (2, 5).

    In the first row the constant dims hold exactly their constant; elsewhere they do not.
    """
    feature = NORMALIZATION_FEATURES[key]
    shape = (*_BATCH.get(key, (2,)), *feature['shape'])
    name = f'normalization/{direction}/{key}'
    if feature['type'] == 'VISUAL':
        return seeded_uniform(name, shape)
    values = seeded_vector(name, shape)
    if direction == 'forward' and feature['type'] in ('STATE', 'ACTION'):
        constants = normalization_statistics()[key]['mean'][list(CONSTANT_DIMS)]
        values[0, ..., list(CONSTANT_DIMS)] = constants.reshape(
            (len(CONSTANT_DIMS),) + (1,) * (values[0].ndim - 1)
        )
    return values

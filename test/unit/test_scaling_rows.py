"""Pictures in the memory order of a camera are normalised to the same bits as others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparkrt_ros.runtime.checkpoint.config import FeatureType, NormalizationMode
from sparkrt_ros.runtime.checkpoint.stats import FeatureScaling
from sparkrt_ros.runtime.processors.scaling import FeatureScaler

STATISTICS = {
    NormalizationMode.MEAN_STD: ('mean', 'std'),
    NormalizationMode.MIN_MAX: ('min', 'max'),
}


@pytest.mark.parametrize('mode', STATISTICS)
@pytest.mark.parametrize('size', [(1, 3, 12, 20), (2, 3, 5, 7), (1, 1, 4, 4), (1, 3, 1, 1)])
def test_memory_order_changes_no_bit(mode: NormalizationMode, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    low, high = (rng.uniform(a, a + 0.4, (size[1], 1, 1)).astype(np.float32) for a in (0.1, 0.5))
    names = STATISTICS[mode]
    scaling = FeatureScaling(
        key='observation.images.front',
        type=FeatureType.VISUAL,
        mode=mode,
        statistics=dict(zip(names, (low, high), strict=True)),
    )
    scaler = FeatureScaler(scaling, eps=1e-8, device=torch.device('cpu'))
    for _ in range(2):
        plain = torch.rand(size)
        camera = plain.contiguous(memory_format=torch.channels_last)
        found = scaler.normalize(camera)
        assert torch.equal(found, scaler.normalize(plain))
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(camera, plain)

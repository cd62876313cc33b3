"""The published figure: seams of the embedded robot, and what latency costs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import load_policy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'bench'))
import seams

pytestmark = pytest.mark.slow

SEED = 2000


@pytest.fixture(scope='module')
def policy():
    config = RuntimeConfig(mode='queue', device='cpu', num_threads=1)
    with load_policy(seams.CHECKPOINT, config=config) as loaded:
        yield loaded


def measure(policy, **changes):
    values = {
        'mode': 'ensemble',
        'latency_s': 0.2,
        'blend_s': 0.2,
        'interpolation': 'linear',
        'blend_in_s': 0.5,
        'inference_rate_hz': 10.0,
    }
    setting = seams.Setting(**{**values, **changes})
    return seams.measure(policy, load_contract('embedded'), setting, [SEED])


@pytest.mark.parametrize('mode', ['ensemble', 'weighted_average', 'average', 'conservative'])
def test_steps_at_seams_are_within_one_and_a_half_of_those_inside_chunks(policy, mode):
    result = measure(policy, mode=mode)
    assert result['success'] == 1
    assert result['seams'] > 5
    assert result['ratio_max'] <= 1.5
    assert result['told_ratio_max'] <= 1.1 * (1 + 1e-9)


def test_without_a_blend_they_are_not(policy):
    result = measure(policy, mode='queue', blend_s=0.0)
    assert result['success'] == 1
    assert result['told_ratio_max'] > 3.0

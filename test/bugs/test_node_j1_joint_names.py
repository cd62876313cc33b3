"""J1: joints are bound by name, and a name that is missing is said, not guessed."""

import numpy as np
import pytest
from ros_fixtures import JOINTS

pytestmark = pytest.mark.ros

POSITIONS = dict(zip(JOINTS, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True))
MISSING = 'joints shoulder_pan: found no value'


def rows_of(chunk):
    return np.array(chunk.data).reshape(chunk.rows, len(chunk.joint_names))


def test_joints_are_bound_by_name_alone(start_policy, feed):
    policy = start_policy()
    feed.positions = {f'{name}/position': 0.1 for name in JOINTS[:1]} | dict.fromkeys(
        JOINTS[1:], 0.1
    )
    feed.start(joints_hz=100.0)
    status = policy.status.wait_for(lambda m: MISSING in m.reason)
    assert 'shoulder_pan/position' in status.reason
    lines = policy.process.count(MISSING)
    policy.wait_status('waiting', count=20)
    assert 1 <= policy.process.count(MISSING) - lines <= 3
    assert len(policy.chunks) == 0

    feed.positions = POSITIONS
    expected = rows_of(policy.chunks.wait_for(count=3))
    feed.positions = {'extra': 99.0} | {name: POSITIONS[name] for name in reversed(JOINTS)}
    again = rows_of(policy.chunks.wait_for(count=3))
    np.testing.assert_allclose(again, expected, atol=1e-6)
    feed.positions = dict(zip(JOINTS, reversed(POSITIONS.values()), strict=True))
    other = rows_of(policy.chunks.wait_for(count=3))
    assert np.abs(other - expected).max() > 1e-4

"""Motion options of the real streamer: ramps, blends, live switches, and limits from a URDF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streamer_rig import StreamerRig, make_rig, open_rig, pan_lift, still

pytestmark = pytest.mark.ros

URDF = """
<robot name="test">
  <joint name="pan" type="revolute"><limit lower="-2" upper="0.05" velocity="9"/></joint>
  <joint name="LIFT" type="continuous"><limit velocity="9"/></joint>
</robot>
"""


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def pans(rig: StreamerRig) -> np.ndarray:
    return np.array([pan_lift(message)[0] for message in rig.arm.messages])


def guard_counts(status) -> dict[str, int]:
    return dict(zip(status.guard_kinds, status.guard_counts, strict=True))


def test_a_motion_begins_with_a_ramp_that_the_status_counts(rig: StreamerRig):
    rig.start(guard__blend_in_s=0.4)
    rig.publish(still(500, pan=0.2))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] == 0.2)
    sent = pans(rig)
    assert sent[0] < 0.001
    assert (np.diff(sent) >= 0.0).all()
    assert np.diff(sent).max() < 0.2 * 1.875 / 40 * 1.01
    status = rig.now_status()
    assert guard_counts(status)['start'] > 20
    assert guard_counts(status)['refused'] == 0


@pytest.mark.parametrize(
    'change',
    [
        {'chunking__mode': 'average'},
        {'chunking__mode': 'ensemble'},
        {'chunking__interpolation': 'cubic'},
    ],
)
def test_the_way_of_playing_switches_while_it_streams_without_a_step(rig: StreamerRig, change):
    rig.start(chunking__mode='queue')
    rig.publish(still(1500, pan=0.0))
    rig.wait_status('streaming')
    rig.publish(still(1500, pan=0.3))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] == 0.3)
    rig.arm.clear()
    assert rig.set(**change).successful
    if 'chunking__mode' in change:
        rig.status.wait_for(lambda m: m.mode == change['chunking__mode'])
        rig.arm.wait_for(lambda m: abs(pan_lift(m)[0] - 0.15) < 1e-3, what='the mean of both')
        sent = pans(rig)
        assert (np.diff(sent) <= 1e-12).all()
        assert ((sent > 0.16) & (sent < 0.29)).sum() >= 5, 'it goes over command by command'
    else:
        rig.arm.wait_for(count=20)
        assert (pans(rig) == 0.3).all(), 'both interpolations agree on a robot that stands still'


def test_a_seam_is_blended_and_told(rig: StreamerRig):
    rig.start(chunking__blend_s=0.2)
    ramp = np.zeros((1500, 3))
    ramp[:, 0] = 0.0005 * np.arange(1500)
    rig.publish(ramp)
    rig.arm.wait_for(count=20)
    rig.publish(ramp + np.array([0.05, 0.0, 0.0]))
    rig.arm.wait_for(lambda m: pan_lift(m)[0] > 0.1)
    status = rig.now_status()
    assert 0.0 < status.seam_max < 0.01
    assert status.seam_last == status.seam_max
    assert status.seam_ratio > 0.0
    assert status.late_chunks == 0


def test_progress_tells_the_row_that_is_due(rig: StreamerRig):
    rig.start(chunking__mode='rtc')
    rig.publish(still(500))
    first = rig.progress.wait_for(lambda m: m.row > 5.0)
    later = rig.progress.wait_for(lambda m: m.row > 10.0)
    assert (later.row - first.row) * 0.02 == pytest.approx(later.played - first.played, abs=1e-6)


def test_the_tighter_limits_of_a_urdf_hold(tmp_path):
    with open_rig(tmp_path) as rig:
        text = rig.contract.read_text()
        rig.contract.write_text(
            text.replace('{name: lift, unit: rad,', '{name: lift, unit: rad, urdf_joint: LIFT,')
        )
        rig.start(robot_description=URDF)
        rig.publish(still(500, pan=0.5, lift=0.1))
        rig.arm.wait_for(lambda m: pan_lift(m) == (0.05, 0.1))
        assert pans(rig).max() <= 0.05
        assert guard_counts(rig.now_status())['position'] > 0


def test_a_joint_that_the_urdf_lacks_stops_the_streamer_from_starting(rig: StreamerRig):
    process = rig.start(robot_description=URDF, wait=False)
    process.wait_for_log("no joint 'lift'")
    process.wait_for_log('LIFT, pan')
    assert rig.arm.messages == []


def test_joint_states_that_have_come_are_looked_at_before_the_robot_is_held(rig: StreamerRig):
    """Here between two looks they always grow too old."""
    rig.start(script=Path(__file__).parent / 'lazy_action_streamer.py')
    rig.publish(still(600, pan=0.1))
    rig.wait_status('streaming')
    rig.progress.clear()
    rig.arm.wait_for(count=200)
    states = [message.state for message in rig.progress.messages]
    assert len(states) >= 10
    assert set(states) == {'streaming'}

"""The streamer's motion options: blends, ramps, interpolation, and what is told of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_streamer_core import Rig

from sparkrt_ros.nodes.streamer_core import Options
from sparkrt_ros.runtime.errors import ConfigError

OPTIONS = Options(
    mode='queue',
    temporal_ensemble_coeff=0.01,
    hold_s=10.0,
    velocity_scale=1.0,
    start_max_error=0.0,
)


def streaming(**changes) -> Rig:
    rig = Rig()
    rig.core.set_options(replace(OPTIONS, **changes))
    return rig


def pans(rig: Rig) -> np.ndarray:
    return np.array([command[0] for _, command in rig.sent])


def test_a_motion_begins_with_a_ramp_and_so_does_the_one_after_a_pause():
    rig = streaming(blend_in_s=0.2)
    rig.offer(*[1.0] * 100)
    rig.tick(40)
    sent = pans(rig)
    assert sent[0] < 0.01
    assert (np.diff(sent) >= 0.0).all()
    assert sent[30] == 1.0
    assert rig.core.interventions['start'] == 19
    rig.core.pause(rig.now_ns)
    rig.sent.clear()
    rig.pose(0.5)
    rig.core.resume(rig.now_ns)
    rig.offer(*[1.0] * 100)
    rig.tick(40)
    assert 0.5 < pans(rig)[0] < 0.51
    assert pans(rig)[-1] == 1.0


def test_a_hold_is_left_by_a_ramp_from_the_held_command():
    rig = streaming(blend_in_s=0.2)
    rig.offer(*[0.0] * 5)
    rig.tick(60)
    assert rig.core.snapshot.state == 'holding'
    rig.offer(*[1.0] * 100)
    rig.tick(40)
    sent = pans(rig)[60:]
    assert 0.0 <= sent[0] < 0.01
    assert np.diff(sent).max() < 1.875 / 20 * 1.01
    assert sent[-1] == 1.0


def test_a_seam_is_blended_and_told():
    largest = {}
    for blend_s in (0.0, 0.3):
        rig = streaming(blend_s=blend_s)
        course = np.sin(np.arange(200) * 0.05)
        rig.offer(*course)
        rig.tick(40)
        rig.offer(*(course[40:] + 0.5))
        rig.tick(100)
        seams = rig.core.seams
        assert seams.seams == 1
        largest[blend_s] = seams.largest_ratio
        steps = np.abs(np.diff(pans(rig)))[39:]
        assert steps[:20].max() - 1e-9 <= seams.largest <= steps.max() + 1e-9
    assert largest[0.0] > 5.0
    assert largest[0.3] <= 1.1 * (1 + 1e-9)


def test_a_mode_may_change_while_it_streams_without_a_step():
    rig = streaming()
    rig.offer(*[0.0] * 300)
    rig.tick(2)
    rig.offer(*[1.0] * 300)
    rig.tick(5)
    rig.core.set_options(replace(OPTIONS, mode='average'))
    rig.tick(100)
    sent = pans(rig)[6:]
    assert sent[0] == 1.0
    assert np.abs(np.diff(sent)).max() < 0.06
    assert sent[-1] == 0.5
    assert rig.core.snapshot.mode == 'average'


def test_the_row_that_is_due_is_told_for_real_time_chunking():
    rig = streaming(mode='rtc')
    rig.offer(*[0.0] * 50)
    rig.tick(11)
    assert rig.core.snapshot.row == 10.0
    assert rig.core.late == 0


def test_counters_of_the_motion_begin_anew_with_an_activation():
    rig = streaming(blend_s=0.1, blend_in_s=0.1)
    for level in (0.0, 0.4):
        rig.offer(*[level] * 50)
        rig.tick(20)
    assert rig.core.seams.seams == 1
    assert rig.core.interventions['start'] > 0
    rig.core.deactivate(rig.now_ns)
    rig.core.activate(rig.now_ns)
    assert rig.core.seams.seams == 0
    assert not any(rig.core.interventions.values())


@pytest.mark.parametrize(
    'changes', [{'blend_s': -1.0}, {'blend_in_s': -1.0}, {'interpolation': 'x'}, {'mode': 'x'}]
)
def test_an_impossible_option_is_refused(changes):
    rig = streaming()
    with pytest.raises(ConfigError):
        rig.core.set_options(replace(OPTIONS, **changes))

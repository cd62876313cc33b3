"""E6: the streamer ends in time, without a traceback, and leaves nothing driving."""

from __future__ import annotations

import signal
import time

import pytest
from streamer_rig import StreamerRig, make_rig, pan_lift, still

pytestmark = pytest.mark.ros

LIMIT_S = 15.0


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def ends_well(process, *numbers: int) -> None:
    begin_s = time.monotonic()
    for number in numbers:
        process.signal(number)
    assert process.wait() == 0, process.log
    assert time.monotonic() - begin_s < LIMIT_S
    assert 'Traceback' not in process.log
    assert 'Error' not in process.log


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_idle_streamer_ends_at_a_signal(rig: StreamerRig, number):
    ends_well(rig.start(), number)


def test_an_unconfigured_streamer_ends_at_a_signal(rig: StreamerRig):
    process = rig.start(wait=False, autostart=False)
    rig.status.wait_for()
    ends_well(process, signal.SIGTERM)


@pytest.mark.parametrize('numbers', [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_a_streaming_one_ends_and_its_last_command_holds_the_arm(rig: StreamerRig, numbers):
    process = rig.start()
    rig.publish(still(1500, pan=0.3, x=0.4))
    rig.base.wait_for(lambda m: m.linear.x == 0.4, what='the speed asked for')
    ends_well(process, *numbers)
    rig.base.wait_until(lambda: rig.base.messages[-1].linear.x == 0.0)
    assert 0.0 < pan_lift(rig.arm.last)[0] <= 0.3, 'no jump to anywhere else'


def test_a_slow_control_period_does_not_delay_the_end(rig: StreamerRig):
    process = rig.start(control__rate_hz=1.0)
    rig.publish(still(1500))
    rig.wait_status('streaming')
    ends_well(process, signal.SIGINT)


def test_each_transition_is_logged_once_and_inactive_means_silent(rig: StreamerRig):
    process = rig.start(wait=False, autostart=False)
    for transition in ('configure', 'activate', 'deactivate', 'activate', 'deactivate'):
        assert rig.change_state(transition)
    for _ in range(3):
        rig.publish(still(100))
        rig.wait_status('inactive')
    assert len(rig.arm) == len(rig.base) == 0
    ends_well(process, signal.SIGTERM)  # then its whole log is here
    assert process.count('configure done') == 1
    assert (process.count(r'\bactivate done'), process.count('deactivate done')) == (2, 2)

"""SIGINT, SIGTERM and SIGKILL in every state of the streamer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ros_harness import ROOT, NodeProcess
from streamer_rig import StreamerRig, make_rig, still

pytestmark = [pytest.mark.ros, pytest.mark.slow]

SLOW_NODE = ROOT / 'test' / 'faults' / 'slow_streamer_node.py'

MOVING = still(1500, pan=0.3, x=0.4)


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def unconfigured(rig: StreamerRig, _: Path) -> NodeProcess:
    process = rig.start(wait=False, autostart=False)
    rig.wait_status('unconfigured')
    return process


def configuring(rig: StreamerRig, _: Path) -> NodeProcess:
    process = rig.start(wait=False, script=SLOW_NODE)
    process.wait_for_log('^configuring$')
    return process


def inactive(rig: StreamerRig, _: Path) -> NodeProcess:
    process = rig.start(wait=False, autostart=False)
    assert rig.change_state('configure')
    rig.wait_status('inactive')
    return process


def waiting(rig: StreamerRig, _: Path) -> NodeProcess:
    return rig.start()


def streaming(rig: StreamerRig, _: Path) -> NodeProcess:
    process = rig.start(control__hold_s=60.0)
    rig.publish(MOVING)
    rig.base.wait_for(lambda m: m.linear.x == 0.4, what='the speed asked for')
    return process


def paused(rig: StreamerRig, folder: Path) -> NodeProcess:
    process = streaming(rig, folder)
    assert rig.call('pause').success
    rig.wait_status('paused')
    return process


def holding(rig: StreamerRig, folder: Path) -> NodeProcess:
    process = streaming(rig, folder)
    assert rig.call('reset').success
    rig.wait_status('holding')
    return process


def stopped(rig: StreamerRig, folder: Path) -> NodeProcess:
    process = streaming(rig, folder)
    assert rig.set(control__hold_s=0.0).successful
    assert rig.call('reset').success
    rig.wait_status('stopped')
    return process


STATES: tuple[Callable[..., NodeProcess], ...] = (
    unconfigured,
    configuring,
    inactive,
    waiting,
    streaming,
    paused,
    holding,
    stopped,
)


@pytest.mark.parametrize('reach', STATES, ids=lambda reach: reach.__name__)
def test_a_signal_ends_it_and_a_new_one_starts(rig: StreamerRig, tmp_path, reach):
    for number in (signal.SIGINT, signal.SIGTERM):
        process = reach(rig, tmp_path)
        process.signal(number)
        assert process.wait() == 0, process.log
        assert 'Traceback' not in process.log
        assert 'rror' not in process.log
        assert_it_rests(rig)
    process = reach(rig, tmp_path)
    process.signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    rig.start()
    rig.publish(still(50))
    rig.wait_status('streaming')
    assert_it_is_sound(rig)


def assert_it_rests(rig: StreamerRig) -> None:
    """The base was told to stand still, and the arm nothing that is not a number."""
    rig.base.wait_until(lambda: not rig.base.messages or rig.base.messages[-1].linear.x == 0.0)
    assert_it_is_sound(rig)


def assert_it_is_sound(rig: StreamerRig) -> None:
    for message in rig.arm.messages:
        assert np.isfinite(message.data).all()
    for message in rig.base.messages:
        assert np.isfinite([message.linear.x, message.angular.z]).all()

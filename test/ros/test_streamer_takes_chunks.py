"""Every chunk that arrives is taken once, whichever thread takes it at that time."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamer_rig import StreamerRig, make_rig, still

pytestmark = pytest.mark.ros


@pytest.fixture
def rig(tmp_path):
    yield from make_rig(tmp_path)


def taken(rig: StreamerRig, count: int):
    """The status once ``count`` chunks have been taken or dropped."""
    return rig.status.wait_for(
        lambda m: m.chunks_taken + m.chunks_dropped >= count, what=f'{count} chunks'
    )


def test_chunks_that_come_faster_than_commands_are_all_taken_once(rig: StreamerRig):
    """At 4 Hz several of them wait for the control thread."""
    rig.start(control__rate_hz=4.0, control__hold_s=30.0)
    rig.publish(still(600))
    rig.wait_status('streaming')
    for _ in range(3):
        before = rig.chunks_made
        for _ in range(2):  # as many as the publisher keeps
            rig.publish(still(600))
        rig.progress.wait_for(lambda m, n=before + 2: m.chunk_id == n)
    rig.status.clear()
    status = rig.now_status()
    assert (status.chunks_taken, status.chunks_dropped) == (rig.chunks_made, 0)


def test_chunks_of_a_pause_are_dropped_and_the_first_after_it_counts_once(rig: StreamerRig):
    rig.start(control__hold_s=30.0)
    rig.publish(still(600))
    rig.wait_status('streaming')
    assert rig.call('pause').success
    rig.publish(still(600))
    rig.wait_status('paused')
    assert rig.call('resume').success
    rig.wait_status('waiting')
    rig.publish(still(600))
    rig.wait_status('streaming')
    status = rig.now_status()
    assert status.chunk_id == rig.chunks_made
    assert status.chunks_taken == 2


def test_a_second_activation_takes_chunks_as_the_first(rig: StreamerRig):
    rig.start(control__hold_s=30.0)
    rig.publish(still(600))
    rig.wait_status('streaming')
    assert rig.change_state('deactivate')
    rig.wait_status('inactive')
    rig.publish(still(600))
    assert rig.change_state('activate')
    rig.wait_status('waiting')
    rig.publish(still(600))
    status = taken(rig, 1)
    assert (status.chunk_id, status.chunks_taken) == (rig.chunks_made, 1)
    assert rig.now_status().chunks_taken == 1


def test_a_chunk_is_answered_before_the_next_command_would_be_due(rig: StreamerRig):
    """Right after a command at 1 Hz; what a busy machine delays is tried again."""
    rig.start(control__rate_hz=1.0, control__hold_s=30.0)
    rig.publish(still(600))
    rig.wait_status('streaming')
    for _ in range(10):
        rig.arm.clear()
        rig.arm.wait_for(count=1)
        rig.publish(still(600))
        status = rig.status.wait_for(lambda m, n=rig.chunks_made: m.chunk_id == n)
        if status.latency < 0.8:
            break
    assert status.latency < 0.8
    assert rig.set(control__at_once=False).successful
    rig.publish(still(600))
    rig.progress.wait_for(lambda m, n=rig.chunks_made: m.chunk_id == n)


def test_where_the_middleware_does_not_tell_of_chunks_they_wait_for_the_next_command(
    rig: StreamerRig,
):
    script = Path(__file__).parent / 'deaf_action_streamer.py'
    streamer = rig.start(script=script, control__hold_s=30.0)
    streamer.wait_for_log('no chunk is answered at once')
    for _ in range(3):
        rig.publish(still(600))
        rig.progress.wait_for(lambda m, n=rig.chunks_made: m.chunk_id == n)
    rig.wait_status('streaming')
    assert taken(rig, 3).chunks_dropped == 0

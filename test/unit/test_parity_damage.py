"""Bags with damaged messages and gaps: what is lost is told, and the rest goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from bag_factory import SECOND, START_NS
from parity_bags import CAMERAS, drive, write_robot
from parity_fakes import ReplayRig, seen, taken_s


@pytest.fixture
def rig(tmp_path: Path) -> ReplayRig:
    return ReplayRig(tmp_path, write_robot(tmp_path))


def test_a_damaged_message_is_dropped_and_the_one_before_serves(rig: ReplayRig) -> None:
    messages = drive(seconds=3.0)
    expected = rig.observe(messages)
    victim = expected[3].record
    damaged = [
        dataclasses.replace(m, data=m.data[:200])
        if m.topic == CAMERAS[0] and m.log_ns == victim.samples_ns['front'] + 9_000_000
        else m
        for m in messages
    ]
    found = rig.observe(damaged)
    assert len(found) == len(expected)
    assert found[3].record.samples_ns['front'] < victim.samples_ns['front']
    assert seen(found)[:3] == seen(expected)[:3]
    assert any('do not decode' in line for line in rig.replay.events.lines('dropped'))


def test_messages_without_a_readable_stamp_are_counted(rig: ReplayRig) -> None:
    messages = drive(seconds=2.0)
    broken = [
        dataclasses.replace(m, data=m.data[:6]) if i % 50 == 25 else m
        for i, m in enumerate(messages)
    ]
    assert len(rig.observe(broken)) == 5
    refused = sum(log.refused for log in rig.replay.feed.histories.values())
    assert refused == sum(len(m.data) == 6 for m in broken) > 0


def test_a_gap_in_one_stream_stops_inference_until_it_is_over(rig: ReplayRig) -> None:
    gap = (START_NS + SECOND, START_NS + 2 * SECOND)
    messages = [
        m for m in drive(seconds=3.0) if m.topic != CAMERAS[1] or not gap[0] < m.log_ns < gap[1]
    ]
    times = taken_s(rig.observe(messages))
    assert not [t for t in times if 1.4 < t < 2.0]
    assert [t for t in times if t > 2.0]
    assert any(
        event.kind == 'stale' and '/wrist' not in event.text and 'wrist' in event.text
        for event in rig.replay.events.events
    )

"""``~/trace`` of both nodes: off by default, switched at any time, and complete while it is on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from streamer_rig import open_rig, still

from sparkrt.msg import Trace, TraceEntry
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.nodes import qos

pytestmark = pytest.mark.ros


def entries_of(inbox, kind: int) -> list[TraceEntry]:
    return [entry for trace in inbox.messages for entry in trace.entries if entry.kind == kind]


def test_the_policy_node_tells_each_message_and_what_it_made_of_them(start_policy, feed, peer):
    policy = start_policy()
    traces = peer.subscribe(Trace, '/sparkrt/trace', qos.TRACE)
    traces.wait_until(lambda: traces.publishers == 1)
    feed.start()
    policy.chunks.wait_for(count=2)
    assert len(traces) == 0, 'nobody asked'
    assert peer.set_parameters('/sparkrt', trace=True)[0].successful
    policy.chunks.wait_for(count=3)
    traces.wait_for(lambda m: m.chunk_id >= policy.chunks.last.chunk_id)
    messages = entries_of(traces, TraceEntry.MESSAGE)
    assert {entry.name for entry in messages} == {'front', 'wrist', 'joint_states'}
    told = {(entry.name, stamp_to_ns(entry.stamp)) for entry in messages}
    chunk = policy.chunks.last
    used = zip(chunk.stream_names, map(stamp_to_ns, chunk.stream_stamps), strict=True)
    assert set(used) <= told
    firsts = [trace.first for trace in traces.messages]
    counts = [len(trace.entries) for trace in traces.messages]
    assert firsts == [sum(counts[:number]) for number in range(len(counts))]
    assert all(trace.idle and trace.wait > 0.0 for trace in traces.messages)

    assert peer.set_parameters('/sparkrt', trace=False)[0].successful
    policy.chunks.wait_for()
    count = len(traces)
    policy.chunks.wait_for(count=2)
    assert len(traces) == count


def test_the_streamer_tells_each_tick_with_what_it_saw_and_sent(tmp_path):
    with open_rig(tmp_path) as rig:
        rig.start(trace=True)
        traces = rig.peer.subscribe(Trace, '/action_streamer/trace', qos.TRACE)
        rig.publish(still(200, pan=0.1))
        rig.wait_status('streaming')
        rig.arm.wait_for(count=20)
        assert rig.call('pause').success
        traces.wait_for(lambda m: any(entry.name == 'paused' for entry in m.entries))
        assert traces.messages[0].first == 0, 'whoever comes late gets it from the start'
        requests = [entry.name for entry in entries_of(traces, TraceEntry.REQUEST)]
        assert requests == ['activate', 'pause']
        assert entries_of(traces, TraceEntry.OPTIONS)[0].name == 'queue'
        (taken,) = entries_of(traces, TraceEntry.TAKEN)
        (arrived,) = entries_of(traces, TraceEntry.CHUNK)
        assert (taken.number, taken.count) == (arrived.number, arrived.count) == (1, 1)
        ticks = entries_of(traces, TraceEntry.TICK)
        clocks_ns = [stamp_to_ns(tick.clock) for tick in ticks]
        assert clocks_ns == sorted(clocks_ns)
        sent = [tick.count for tick in ticks]
        assert sent == sorted(sent)
        arm, count = rig.arm, sent[-1]
        arm.wait_until(lambda arm=arm, count=count: len(arm) == count)
        poses = {entry.number for entry in entries_of(traces, TraceEntry.POSE)}
        assert {tick.number for tick in ticks} <= poses | {0}


def test_a_streamer_that_comes_late_tells_each_tick_after_the_chunks_it_took(
    tmp_path, monkeypatch
):
    """Without a trace, it would work on some ticks before those ahead of them are over."""
    monkeypatch.setenv('WORK_S', '0.006')
    with open_rig(tmp_path) as rig:
        script = Path(__file__).parent / 'unsteady_action_streamer.py'
        rig.start(script=script, control__rate_hz=200.0)
        rig.publish(still(400, pan=0.1))
        rig.status.wait_for(lambda m: m.commands > 200)
        traces = rig.peer.subscribe(Trace, '/action_streamer/trace', qos.TRACE)
        assert rig.set(trace=True).successful
        for number in range(2, 42):
            rig.publish(still(400, pan=0.1))
            traces.wait_for(
                lambda trace, number=number: any(
                    (entry.kind, entry.number) == (TraceEntry.TAKEN, number)
                    for entry in trace.entries
                )
            )
        rig.arm.wait_for(count=20)
        assert rig.set(trace=False).successful
        kinds = (TraceEntry.TAKEN, TraceEntry.TICK)
        entries = [entry for trace in traces.messages for entry in trace.entries]
        told = [entry for entry in entries if entry.kind in kinds]
        followers = [after for entry, after in pairwise(told) if entry.kind == TraceEntry.TAKEN]
        assert [after.clock for after in followers] == [
            entry.clock for entry in entries_of(traces, TraceEntry.TAKEN)
        ]
        assert len(followers) == 40

"""Real-time chunking with both real nodes and the tiny Pi0.5."""

from __future__ import annotations

import json

import numpy as np
import pytest
from vla_rig import NODE, TASK, TINY_PI_ROBOT, PiStreamer, long_pi_folder, serve_pi

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.time import stamp_to_ns

pytestmark = pytest.mark.ros

DT_S = 0.05
TICK_NS = 10_000_000


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return long_pi_folder(tmp_path_factory.mktemp('pi') / 'policy')


@pytest.fixture
def streamer(spawn, peer, tmp_path):
    """Plays chunks as they are: no blend, no ramp."""
    return PiStreamer(spawn, peer, tmp_path, chunking__blend_s=0.0, guard__blend_in_s=0.0)


def course(streamer):
    """Times [ns] and values (N, 7) of all commands so far."""
    messages = list(streamer.commands.messages)
    times = np.array([stamp_to_ns(m.header.stamp) for m in messages], dtype=np.int64)
    return times, np.array([list(m.position) for m in messages])


def told_by(policy):
    lines = [line for line in list(policy.process.lines) if line.startswith('told ')]
    return [json.loads(line.removeprefix('told ')) for line in lines]


def takes(streamer):
    """Chunk -> tick [ns] of the first word of it."""
    found = {}
    for message in list(streamer.progress.messages):
        if message.chunk_id not in found:
            found[message.chunk_id] = stamp_to_ns(message.tick)
    return found


@pytest.mark.parametrize('slow_s', ['0.1', '0.25'])
def test_a_policy_is_told_what_the_robot_then_really_did(
    slow_s, streamer, start_policy, feed, folder
):
    policy = serve_pi(
        start_policy,
        feed,
        folder,
        prompt=TASK,
        chunking__mode='rtc',
        altered={'SLOW_S': slow_s, 'TELL': '1'},
    )
    policy.chunks.wait_for(lambda m: m.chunk_id > 14, timeout_s=120.0)
    chunks = {m.chunk_id: m for m in list(policy.chunks.messages)}
    streamer.progress.wait_for(lambda m: m.chunk_id > 14 and m.played > 0.0)
    times, commands = course(streamer)
    contract, taken, told = load_contract(str(TINY_PI_ROBOT)), takes(streamer), told_by(policy)
    assert told[0]['actions'] is None, 'the first chunk goes on from nothing'
    assert chunks[1].frozen_rows == 0
    exact = 0
    # Of the first few, some come before the robot moves, which tells nothing of a delay.
    for number in range(5, 15):
        asked = told[number - 1]
        assert asked['stamp_ns'] == stamp_to_ns(chunks[number].observation_stamp)
        assert asked['delay'] == chunks[number].frozen_rows > 0
        rows = contract.action_to_si(np.array(asked['actions']))
        due = asked['stamp_ns'] + (np.arange(len(rows)) * DT_S * 1e9).astype(np.int64)
        for row, at in zip(rows, due, strict=True):
            place = int(np.searchsorted(times, at))
            # The first word of a chunk may come a few ticks after it was taken.
            if at >= taken[number] - 4 * TICK_NS or place < 2 or at < taken[number - 1]:
                continue
            around = commands[place - 2 : place + 2]
            if times[place + 1] - times[place - 2] > 5 * TICK_NS:
                continue  # a busy machine missed commands here
            share = (at - times[place - 1]) / (times[place] - times[place - 1])
            error = np.abs(row - (around[1] + share * (around[2] - around[1])))
            steps = np.diff(around, axis=0)
            speeds = steps / np.diff(times[place - 2 : place + 2])[:, None] * TICK_NS
            bend = np.abs(np.diff(speeds, axis=0)).max()
            # Where a row of the chunk lies between two commands, a step at most is lost.
            limit = 1e-4 if bend < 1e-4 else np.abs(steps).max(axis=0) + 1e-4
            assert (error <= limit).all()
            exact += bend < 1e-4
    assert exact >= 3
    step = np.abs(np.diff(commands, axis=0)).max()
    assert step > 0.05, 'there is something to be wrong about'


def planned(chunk, at_ns, names):
    """What a chunk says of a time, row by row interpolated."""
    rows = np.array(chunk.data).reshape(chunk.rows, -1)
    row = (at_ns - stamp_to_ns(chunk.observation_stamp)) / 1e9 / chunk.dt
    columns = (rows[:, chunk.joint_names.index(name)] for name in names)
    return np.array([np.interp(row, np.arange(chunk.rows), column) for column in columns])


def jumps(streamer, policy, begin, count=12):
    """Mean over the joints of how far the first command of a chunk is from the chunk before it."""
    times, commands = course(streamer)
    taken, names = takes(streamer), streamer.commands.messages[0].name
    chunks = {m.chunk_id: m for m in list(policy.chunks.messages)}
    found = []
    for number in range(begin + 1, begin + 1 + count):
        place = int(np.searchsorted(times, taken[number]))
        before = planned(chunks[number - 1], times[place], names)
        found.append(float(np.abs(commands[place] - before).mean()))
    return found


def test_seams_are_smaller_than_those_of_a_queue_and_the_mode_switches_live(
    streamer, start_policy, feed, peer, folder
):
    policy = serve_pi(start_policy, feed, folder, prompt=TASK, num_steps=5)
    found = {}
    for mode in ('queue', 'rtc'):
        assert peer.set_parameters(NODE, chunking__mode=mode)[0].successful
        streamer.status.wait_for(lambda m, mode=mode: m.mode == mode, timeout_s=60.0)
        begin = policy.chunks.wait_for(count=3, timeout_s=60.0).chunk_id
        streamer.progress.wait_for(lambda m, begin=begin: m.chunk_id >= begin + 13)
        found[mode] = jumps(streamer, policy, begin)
    assert np.median(found['rtc']) < 0.6 * np.median(found['queue']), found
    status = streamer.status.wait_for()
    assert (status.underruns, status.chunks_dropped) == (0, 0)
    assert policy.process.count('ready in') == 1
    assert policy.status.wait_for(lambda m: m.mode == 'rtc').failures == 0

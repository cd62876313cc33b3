"""A bag played into both running nodes: what they publish is what the offline run gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ros_harness import ROOT

from sparkrt.msg import ActionChunk, TraceEntry
from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.live import LiveOptions, LiveRun
from sparkrt_ros.replay.live_compare import Heard, stream_stamps
from sparkrt_ros.replay.live_nodes import LocalDomain
from sparkrt_ros.replay.live_offline import MessageKey, numbered
from sparkrt_ros.replay.live_result import seconds
from sparkrt_ros.replay.offline import ReplayOptions

pytestmark = [pytest.mark.ros, pytest.mark.slow]

BAG = ROOT / 'bags' / 'embedded_mcap'
CHECKPOINT = ROOT / 'checkpoints' / 'embedded_pick_place'
FRONT, JOINTS = '/front_camera/image_raw', '/joint_states'
NODES = {FRONT: 'policy node', JOINTS: 'policy node and streamer'}


@pytest.fixture(scope='module', autouse=True)
def _domain(ros_domain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('ROS_DOMAIN_ID', str(ros_domain))
        patch.setenv('OMP_NUM_THREADS', '1')
        yield


@pytest.fixture(scope='module')
def options(tmp_path_factory) -> LiveOptions:
    """The first chunks of the bag of the embedded robot, with everything on a grid of 5 ms.

    By header stamps, messages, control ticks and due inferences fall on the same instants, so
    that the order within an instant matters.
    """
    return LiveOptions(
        bag=BAG,
        robot='embedded',
        checkpoint=CHECKPOINT,
        replay=ReplayOptions(time='header', max_chunks=12),
        form=ArmSpec(backend='eager', threads=1),
        logs=tmp_path_factory.mktemp('live'),
    )


class Outcome:
    def __init__(self, options: LiveOptions) -> None:
        with LiveRun(options) as run:
            self.played = run.play()
            self.result = run.judge(self.played)
        self.text = '\n'.join(self.result.lines())


@pytest.fixture(scope='module')
def quiet(options) -> Outcome:
    return Outcome(options)


class Withheld:
    """Messages that the offline run uses, of three of its chunks: two pictures, one of joints."""

    def __init__(self, chunks: list[ActionChunk]) -> None:
        used = [stream_stamps(chunk) for chunk in chunks]
        wanted = {(FRONT, used[3]['front']), (JOINTS, used[5]['joint_states'])}
        wanted.add((FRONT, used[8]['front']))
        self.drops = sorted(((t, s, NODES[t]) for t, s in wanted), key=lambda drop: drop[1])
        with open_bag(BAG) as bag:
            messages = numbered(bag.messages([FRONT, JOINTS], order='header'))
            self.keys = {key for key, m in messages if (key[0], m.stamp_ns) in wanted}

    def __call__(self, key: MessageKey) -> bool:
        return key in self.keys


@pytest.fixture(scope='module')
def withheld(quiet: Outcome) -> Withheld:
    return Withheld(quiet.played.heard.chunks)


@pytest.fixture
def competing_load():
    """A process that takes all the time it can get."""
    command = [sys.executable, '-c', 'while True: pass']
    with subprocess.Popen(['nice', '-n', '19', *command]) as process:
        yield
        process.kill()


def test_chunks_and_commands_are_those_of_the_offline_run(quiet: Outcome):
    result = quiet.result
    assert result.band == 'pass', quiet.text
    assert (result.chunks, result.chunks_identical) == (12, 12)
    assert result.commands == result.commands_identical > 400
    assert not result.differences
    assert not result.dropped
    assert result.receipt['backend'] == 'eager'


def test_ensembling_and_frequent_inference_too(options):
    parameters = {'chunking.mode': 'ensemble', 'chunking.inference_rate_hz': 12.0}
    outcome = Outcome(replace(options, parameters=parameters))
    assert outcome.result.band == 'pass', outcome.text
    assert outcome.result.receipt['mode'] == 'ensemble'
    assert outcome.result.chunks == 12
    assert outcome.result.commands == outcome.result.commands_identical > 100


def test_every_chunk_names_the_samples_it_was_made_of(quiet: Outcome):
    for chunk in quiet.played.heard.chunks:
        assert list(chunk.stream_names) == ['front', 'wrist', 'joint_states']
        newest = max(chunk.stream_stamps, key=lambda stamp: (stamp.sec, stamp.nanosec))
        assert newest == chunk.observation_stamp


def test_both_nodes_trace_what_entered_them(quiet: Outcome):
    played = quiet.played
    policy = Counter(entry.name for entry in played.policy)
    streamer = Counter(entry.kind for entry in played.streamer)
    assert sum(policy.values()) == played.sent
    assert policy.keys() == {'front', 'wrist', 'joint_states'}
    assert streamer[TraceEntry.MESSAGE] == policy['joint_states']
    assert streamer[TraceEntry.TAKEN] <= streamer[TraceEntry.CHUNK] == 12
    assert streamer[TraceEntry.REQUEST] == 1
    assert played.lost == 0


def test_the_load_of_the_machine_changes_no_byte(quiet: Outcome, options, competing_load):
    loaded = Outcome(options)
    assert loaded.result.band == 'pass', loaded.text
    assert loaded.result.digest == quiet.result.digest


def test_withheld_frames_are_named_and_explain_every_difference(quiet, options, withheld):
    outcome = Outcome(replace(options, withhold=withheld))
    result = outcome.result
    assert result.band == 'warn', outcome.text
    named = [(drop.topic, drop.stamp_ns, drop.node) for drop in result.dropped]
    assert named == withheld.drops, outcome.text
    topic, stamp_ns, node = named[0]
    assert outcome.text.count(f'dropped frame {topic} {seconds(stamp_ns)} ({node})') > 0
    differing = [item.index for item in result.differences if item.kind == 'chunk']
    assert differing == [3, 5, 8], outcome.text
    assert all('different snapshot' in d.text for d in result.differences if d.kind == 'chunk')
    assert not result.unexplained, outcome.text
    assert {item.cause for item in result.differences} == {str(drop) for drop in result.dropped}
    assert result.chunks_identical == result.chunks - 3
    assert 0 < result.commands_identical < result.commands
    assert result.digest != quiet.result.digest


def test_at_a_rate_whatever_is_lost_is_named_and_all_else_follows_from_what_came(
    options, withheld
):
    fast = replace(
        options,
        rate=2.0,
        withhold=withheld,
        replay=ReplayOptions(time='header'),
    )
    outcome = Outcome(fast)
    result = outcome.result
    # How much gets through depends on the load of the machine; what does must be right.
    assert result.chunks_identical == result.chunks > 0, outcome.text
    assert result.commands_identical == result.commands > 0, outcome.text
    assert not result.unexplained, outcome.text
    named = {(drop.topic, drop.stamp_ns, drop.node) for drop in result.dropped}
    assert named >= set(withheld.drops), outcome.text


def test_other_values_from_the_same_snapshot_are_never_explained_away(quiet: Outcome, options):
    chunks = list(quiet.played.heard.chunks)
    changed = type(chunks[4])()
    for name in changed.get_fields_and_field_types():
        setattr(changed, name, getattr(chunks[4], name))
    changed.data = chunks[4].data[:]
    changed.data[7] += 1e-9
    chunks[4] = changed
    heard = Heard(chunks=chunks, commands=quiet.played.heard.commands)
    with LiveRun(options) as run:
        result = run.judge(replace(quiet.played, heard=heard))
    assert result.band == 'fail'
    assert [item.index for item in result.unexplained] == [4]
    assert 'same snapshot, other values, by up to 1e-09' in str(result.unexplained[0])
    assert 'NO CAUSE FOUND' in str(result.unexplained[0])


def test_a_changed_command_is_found(quiet: Outcome, options):
    commands = {name: list(heard) for name, heard in quiet.played.heard.commands.items()}
    flipped = bytearray(commands['arm'][100])
    flipped[-1] ^= 1
    commands['arm'][100] = bytes(flipped)
    del commands['gripper'][-1]
    heard = Heard(chunks=quiet.played.heard.chunks, commands=commands)
    with LiveRun(options) as run:
        result = run.judge(replace(quiet.played, heard=heard))
    assert result.band == 'fail'
    assert [item.text for item in result.unexplained] == [
        'arm has other bytes',
        'gripper is missing live',
    ]


def test_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', '77')
    monkeypatch.delenv('ROS_AUTOMATIC_DISCOVERY_RANGE', raising=False)
    with LocalDomain() as domain:
        assert domain.number == 77
        assert os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST'
        assert Path(os.environ['FASTDDS_DEFAULT_PROFILES_FILE']).is_file()
    assert 'ROS_AUTOMATIC_DISCOVERY_RANGE' not in os.environ
    assert os.environ['ROS_DOMAIN_ID'] == '77'

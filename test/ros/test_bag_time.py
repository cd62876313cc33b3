"""T1 and T2: zero stamps, and bags in a loop, played with /clock into both running nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import parity_bags
import pytest
from act_folder_factory import ActFolderFactory, feature, features, tiny_config
from bag_factory import SECOND, START_NS, Recorded, write_mcap

from sparkrt.msg import ActionChunk, TraceEntry
from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.convert.time import stamp_to_ns
from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.live import LiveOptions, LiveRun
from sparkrt_ros.replay.live_compare import stream_stamps
from sparkrt_ros.replay.live_ear import LiveEar
from sparkrt_ros.replay.live_nodes import LiveNodes, LocalDomain
from sparkrt_ros.replay.live_player import Input, LivePlayer, Timed

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(400)]

FRONT, JOINTS = '/front/image_raw', '/joint_states'
CAMERA_HZ, JOINT_HZ = 30, 100
LOOPS, SECONDS = 3, 5
# Infer from every new observation.
EAGER_TO_INFER = {
    'chunking.mode': 'ensemble',
    'chunking.inference_rate_hz': 200.0,
    'backend': 'eager',
    'threads': 1,
}


@pytest.fixture(scope='module', autouse=True)
def _domain(ros_domain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('ROS_DOMAIN_ID', str(ros_domain))
        patch.setenv('OMP_NUM_THREADS', '1')
        yield


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory, act_weights_cache) -> Path:
    """A policy with one camera and the joints."""
    make = ActFolderFactory(tmp_path_factory.mktemp('one_camera'), act_weights_cache)
    inputs = features(
        feature('observation.images.front', 'VISUAL', 3, 64, 64),
        feature('observation.state', 'STATE', 5),
    )
    return make('one_camera', config=tiny_config(input_features=inputs))


@pytest.fixture(scope='module')
def robot(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('robot')
    return parity_bags.write_robot(folder, cameras=parity_bags.contract()['cameras'][:1])


def recording(*, seconds: float, zero_stamps: bool = False) -> list[Recorded]:
    """A camera at 30 Hz and joints at 100 Hz."""
    made = []
    for k in range(round(seconds * CAMERA_HZ)):
        log_ns = START_NS + 7_000_000 + k * SECOND // CAMERA_HZ
        stamp_ns = 0 if zero_stamps else log_ns - 5_000_000
        time_s = k / CAMERA_HZ
        made.append(parity_bags.camera(FRONT, log_ns, stamp_ns=stamp_ns, time_s=time_s))
    for k in range(round(seconds * JOINT_HZ)):
        log_ns = START_NS + k * SECOND // JOINT_HZ
        made.append(parity_bags.joint_states(log_ns, time_s=k / JOINT_HZ))
    return sorted(made, key=lambda recorded: recorded.log_ns)


@dataclass
class Looped:
    """What came of playing a bag several times over."""

    chunks: list[ActionChunk]
    streamer: list[TraceEntry]
    logs: Path

    def log(self, name: str) -> str:
        return (self.logs / f'{name}.txt').read_text()

    def ticks(self) -> list[tuple[int, TraceEntry]]:
        """Number of the loop, and each control tick of it."""
        found, loop, last_ns = [], 0, 0
        for entry in self.streamer:
            clock_ns = stamp_to_ns(entry.clock)
            if entry.kind not in (TraceEntry.TICK, TraceEntry.TAKEN) or clock_ns == 0:
                continue
            loop += clock_ns < last_ns
            last_ns = clock_ns
            found.append((loop, entry))
        return found


@pytest.fixture(scope='module')
def looped(tmp_path_factory, checkpoint, robot) -> Looped:
    folder = tmp_path_factory.mktemp('looped')
    write_mcap(folder / 'bag.mcap', recording(seconds=SECONDS))
    contract = load_contract(str(robot))
    parameters = {**EAGER_TO_INFER, 'robot': str(robot), 'checkpoint': str(checkpoint)}
    inputs = [
        Input(topic=FRONT, type='sensor_msgs/msg/Image', to_policy=('front',), to_streamer=()),
        Input(
            topic=JOINTS,
            type='sensor_msgs/msg/JointState',
            to_policy=('arm',),
            to_streamer=('arm',),
        ),
    ]
    with open_bag(folder / 'bag.mcap') as bag, LocalDomain() as domain:
        listener = LiveEar(contract, domain=domain.number, namespace='')
        nodes = LiveNodes(parameters, namespace='', logs=folder)
        with closing(listener) as ear, nodes:
            player = LivePlayer(ear, inputs, period_ns=20_000_000, check=nodes.processes.check)
            player.wait_ready(limit_s=120.0)
            messages = chain.from_iterable(bag.messages() for _ in range(LOOPS))
            player.play(Timed(time_ns=m.log_ns, message=m) for m in messages)
    return Looped(chunks=ear.chunks, streamer=ear.streamer.entries, logs=folder)


def test_t2_every_picture_of_every_loop_is_paired(looped: Looped):
    pictures = defaultdict(set)
    for chunk in looped.chunks:
        pictures[chunk.epoch].add(stream_stamps(chunk)['front'])
    counts = [len(found) for _, found in sorted(pictures.items())]
    assert len(counts) == LOOPS
    assert all(abs(count - SECONDS * CAMERA_HZ) <= 2 for count in counts), counts


def test_t2_each_jump_back_begins_a_new_epoch_with_one_line(looped: Looped):
    epochs = [chunk.epoch for chunk in looped.chunks]
    assert epochs == sorted(epochs)
    assert sorted(set(epochs)) == [1, 2, 3]
    assert looped.log('policy_node').count('time went back by') == LOOPS - 1
    assert looped.log('action_streamer').count('time went backwards: chunks') == LOOPS - 1
    assert 'Traceback' not in looped.log('policy_node') + looped.log('action_streamer')


def test_t2_nothing_of_the_loop_before_is_played(looped: Looped):
    taken = dict.fromkeys(range(LOOPS), 0)
    epoch_of = {chunk.chunk_id: chunk.epoch for chunk in looped.chunks}
    states = Counter()
    for loop, entry in looped.ticks():
        if entry.kind == TraceEntry.TAKEN:
            taken[loop] += 1
            assert epoch_of[entry.number] == loop + 1, 'chunks of the loop before are void'
        elif taken[loop] == 0:
            states[loop, entry.name] += 1
            assert entry.name != 'streaming', 'no chunk of this loop has come yet'
    assert all(taken.values())
    assert states[1, 'holding'] > 0
    assert states[2, 'holding'] > 0


def test_t1_pictures_without_stamps_dated_by_arrival_are_all_used(tmp_path, checkpoint, robot):
    messages = recording(seconds=3.0, zero_stamps=True)
    write_mcap(tmp_path / 'bag.mcap', messages)
    options = LiveOptions(
        bag=tmp_path / 'bag.mcap',
        robot=str(robot),
        checkpoint=checkpoint,
        form=ArmSpec(backend='eager', threads=1),
        parameters={
            'chunking.mode': 'ensemble',
            'chunking.inference_rate_hz': 200.0,
            'observation.on_zero_stamp': 'receive',
        },
        logs=tmp_path,
    )
    with LiveRun(options) as run:
        played = run.play()
        result = run.judge(played)
    assert result.band == 'pass', '\n'.join(result.lines())
    used = {stream_stamps(chunk)['front'] for chunk in played.heard.chunks}
    sent = sum(message.topic == FRONT for message in messages)
    assert len(used) >= 0.95 * sent
    log = (tmp_path / 'policy_node.txt').read_text()
    assert f'{FRONT[1:]}: header stamps are zero; dated by arrival' in log
    assert 'e+09' not in log

"""Live parity of a robot with everything a contract may hold, in a namespace of its own.

Joints come from two topics, one of them without stamps, one joint is a velocity and is sent as a
stamped twist, the others as a trajectory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from act_folder_factory import ActFolderFactory
from bag_factory import JOINT_STATE, MULTI_ARRAY, SECOND, START_NS, Recorded, cdr, header, message
from bag_factory import write_mcap as write_bag
from parity_bags import CAMERAS, camera, in_namespace, positions, write_robot

from sparkrt_ros.replay.arms import ArmSpec
from sparkrt_ros.replay.live import LiveOptions, LiveRun
from sparkrt_ros.replay.offline import ReplayOptions

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = '/left_arm'
CAMERA_HZ, JOINT_HZ, HAND_HZ = 15, 100, 40
JOINTS = [
    *({'name': n, 'unit': 'rad', 'limits': [-3, 3], 'max_velocity': 9} for n in 'abcd'),
    {'name': 'e', 'unit': 'm/s', 'limits': [-1, 1], 'max_acceleration': 4},
]
STREAMS = [
    {'name': 'arm', 'topic': 'joint_states', 'max_age_s': 0.2},
    {
        'name': 'hand',
        'topic': 'hand/positions',
        'type': 'float64_multi_array',
        'joints': ['d'],
        'max_age_s': 0.2,
    },
]
OUTPUTS = [
    {
        'name': 'arm',
        'type': 'joint_trajectory',
        'topic': 'trajectory',
        'joints': ['c', 'a', 'b', 'd'],
    },
    {
        'name': 'base',
        'type': 'twist_stamped',
        'topic': 'cmd_vel',
        'frame_id': 'base',
        'joints': {'e': 'linear.x'},
    },
]


def robot(folder: Path) -> Path:
    vector = ['a', 'b', 'c', 'd', {'joint': 'e', 'field': 'velocity'}]
    return write_robot(
        folder,
        joints=JOINTS,
        state={'streams': STREAMS, 'vector': vector},
        action={'vector': list('abcde'), 'outputs': OUTPUTS},
    )


def recording(seconds: float) -> list[Recorded]:
    made = []
    for number in range(round(seconds * CAMERA_HZ)):
        log_ns = START_NS + number * SECOND // CAMERA_HZ
        for topic, delay_ns in zip(CAMERAS, (0, 7_000_000), strict=True):
            stamp_ns, time_s = log_ns - 3_000_000, number / CAMERA_HZ
            made.append(camera(topic, log_ns + delay_ns, stamp_ns=stamp_ns, time_s=time_s))
    for number in range(round(seconds * JOINT_HZ)):
        log_ns = START_NS + number * SECOND // JOINT_HZ
        a, b, c, _, e = positions(number / JOINT_HZ)
        # Each message tells of some of the joints only.
        names, values = (['b', 'e'], [b, 0.0]) if number % 2 else (['a', 'c', 'e'], [a, c, 0.0])
        content = message(
            JOINT_STATE,
            header(log_ns - 1_000_000),
            names,
            np.array(values),
            np.array([0.0] * (len(names) - 1) + [0.3 * e]),
            np.array([]),
        )
        data = cdr(content)
        made.append(Recorded(topic='/joint_states', kind=JOINT_STATE, log_ns=log_ns, data=data))
    for number in range(round(seconds * HAND_HZ)):
        log_ns = START_NS + number * SECOND // HAND_HZ
        layout = message('std_msgs/msg/MultiArrayLayout', [], 0)
        content = message(MULTI_ARRAY, layout, positions(number / HAND_HZ)[3:4].copy())
        data = cdr(content)
        made.append(Recorded(topic='/hand/positions', kind=MULTI_ARRAY, log_ns=log_ns, data=data))
    return in_namespace(sorted(made, key=lambda recorded: recorded.log_ns), NAMESPACE)


@pytest.fixture(scope='module', autouse=True)
def _domain(ros_domain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('ROS_DOMAIN_ID', str(ros_domain))
        patch.setenv('OMP_NUM_THREADS', '1')
        yield


@pytest.fixture(scope='module')
def options(tmp_path_factory, act_weights_cache) -> LiveOptions:
    folder = tmp_path_factory.mktemp('mixed')
    write_bag(folder / 'bag.mcap', recording(2.0))
    return LiveOptions(
        bag=folder / 'bag.mcap',
        robot=str(robot(folder)),
        checkpoint=ActFolderFactory(folder, act_weights_cache)('act_policy'),
        form=ArmSpec(backend='eager', threads=1),
        parameters={'chunking.n_action_steps': 3},
        replay=ReplayOptions(namespace=NAMESPACE),
        logs=folder,
    )


def test_step_by_step_all_of_it_is_the_same(options: LiveOptions):
    with LiveRun(options) as run:
        played = run.play()
        result = run.judge(played)
    assert result.band == 'pass', '\n'.join(result.lines())
    assert result.chunks == result.chunks_identical >= 5
    heard = played.heard.commands
    assert {name: len(found) for name, found in heard.items()}.keys() == {'arm', 'base'}
    assert len(heard['arm']) == len(heard['base']) > 50
    assert len(set(heard['arm'])) > 10
    names = {tuple(chunk.stream_names) for chunk in played.heard.chunks}
    assert names == {('front', 'wrist', 'arm', 'hand')}


def test_messages_withheld_of_a_topic_without_stamps_are_named(options: LiveOptions):
    topic = f'{NAMESPACE}/hand/positions'
    withheld = replace(options, withhold=lambda key: key[0] == topic and 8 <= key[1] < 12)
    with LiveRun(withheld) as run:
        result = run.judge(run.play())
    assert result.band == 'warn', '\n'.join(result.lines())
    assert [drop.topic for drop in result.dropped] == [topic] * 4
    assert [drop.stamp_ns for drop in result.dropped] == [
        START_NS + number * SECOND // HAND_HZ for number in range(8, 12)
    ]
    assert not result.unexplained


def test_at_a_rate_all_that_is_said_follows_from_what_was_heard(options: LiveOptions):
    with LiveRun(replace(options, rate=1.0)) as run:
        result = run.judge(run.play())
    assert not result.unexplained, '\n'.join(result.lines())
    assert result.chunks == result.chunks_identical > 0
    assert result.commands == result.commands_identical > 0

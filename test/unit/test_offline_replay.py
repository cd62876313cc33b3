"""What a bag gives the policy to see, and when: from the bag alone, in every form of it."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_factory import SECOND, START_NS, Recorded, write_db3, write_folder, write_mcap
from parity_bags import CAMERA_HZ, CAMERAS, clock, drive, in_namespace, write_robot
from parity_fakes import ReplayRig, seen, taken_s
from rosbags.rosbag2 import StoragePlugin

from sparkrt_ros.replay.bag_types import Decoder
from sparkrt_ros.replay.offline import Observed
from sparkrt_ros.runtime.errors import ConfigError


@pytest.fixture
def robot(tmp_path: Path) -> Path:
    return write_robot(tmp_path)


@pytest.fixture
def rig(tmp_path: Path, robot: Path) -> ReplayRig:
    return ReplayRig(tmp_path, robot)


def content(observed: list[Observed]) -> list[tuple[Any, ...]]:
    """Everything that could differ."""
    return [
        (
            dataclasses.astuple(o.record),
            [(key, image.tobytes()) for key, image in o.observation.images.items()],
            o.observation.state.tobytes(),
            o.observation.stamp_ns,
            o.chunk.epoch,
            o.chunk.chunk_id,
        )
        for o in observed
    ]


def test_the_policy_is_asked_as_the_streamer_needs_chunks(rig: ReplayRig) -> None:
    observed = rig.observe(drive(seconds=3.0))
    assert taken_s(observed)[0] == pytest.approx(0.014)
    # Four rows of 0.1 s are consumed before the next chunk takes over.
    gaps = np.diff(taken_s(observed))
    assert len(observed) == 8
    assert gaps == pytest.approx([0.4] * 7, abs=0.03)
    assert [o.chunk.chunk_id for o in observed] == list(range(1, 9))
    assert [o.record.index for o in observed] == list(range(8))


def test_an_observation_is_consistent_and_as_recorded(rig: ReplayRig) -> None:
    messages = drive(seconds=1.0)
    pictures = {
        (m.topic, m.log_ns): np.frombuffer(m.data[-64 * 64 * 3 :], np.uint8).reshape(64, 64, 3)
        for m in messages
        if m.topic in CAMERAS
    }
    for o in rig.observe(messages):
        stamps = o.record.samples_ns
        assert max(stamps.values()) - min(stamps.values()) <= 0.12 * SECOND
        assert stamps['front'] == stamps['wrist'] == o.record.reference_ns
        for name, delay_ns in (('front', 9_000_000), ('wrist', 14_000_000)):
            recorded = pictures[f'/{name}/image_raw', stamps[name] + delay_ns]
            assert np.array_equal(o.observation.images[f'observation.images.{name}'], recorded)
        assert o.record.ages_s['front'] == pytest.approx(
            (o.record.taken_ns - stamps['front']) / SECOND
        )


def test_the_same_bag_gives_the_same_whatever_it_is_stored_in(
    tmp_path: Path, rig: ReplayRig
) -> None:
    messages = drive(seconds=2.0)
    write_mcap(tmp_path / 'one.mcap', messages)
    write_mcap(tmp_path / 'chunked.mcap', messages, chunk_every=7)
    write_db3(tmp_path / 'one.db3', messages)
    write_folder(tmp_path / 'sqlite', messages, storage=StoragePlugin.SQLITE3)
    write_folder(tmp_path / 'mcap', messages, storage=StoragePlugin.MCAP)
    names = ('one.mcap', 'chunked.mcap', 'one.db3', 'sqlite', 'mcap', 'one.mcap')
    first, *others = [content(rig.observe_bag(tmp_path / name)) for name in names]
    assert len(first) == 5
    assert all(other == first for other in others)


def test_no_clock_of_the_machine_is_read(rig: ReplayRig, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content(rig.observe(drive(seconds=2.0)))

    def read() -> float:
        raise AssertionError('a clock was read')

    for name in ('monotonic', 'time', 'monotonic_ns', 'time_ns'):
        monkeypatch.setattr(time, name, read)
    assert content(rig.observe_bag(rig.bag)) == expected


def test_a_latency_delays_chunks_and_starts_inferences_earlier(rig: ReplayRig) -> None:
    slow = rig.observe(drive(seconds=4.0), latency_s=0.15)
    script = rig.replay.script.script()
    arrivals = script.ticks_ns[np.minimum(script.chunk_ticks, len(script.ticks_ns) - 1)]
    delays = arrivals - np.array([o.record.taken_ns for o in slow])
    assert (delays >= 0.15 * SECOND).all()
    assert (delays < 0.18 * SECOND).all()
    # The pacer knows the latency from the second chunk on.
    assert np.diff(taken_s(slow))[2:] == pytest.approx([0.4] * (len(slow) - 3), abs=0.05)


def test_what_arrives_during_an_inference_is_seen_by_the_next(rig: ReplayRig) -> None:
    for o in rig.observe(drive(seconds=3.0), latency_s=0.25):
        assert max(o.record.samples_ns.values()) <= o.record.taken_ns


@pytest.mark.parametrize('rate_hz', [2.0, 5.0, 10.0])
def test_a_rate_of_ones_own(rig: ReplayRig, rate_hz: float) -> None:
    observed = rig.observe(drive(seconds=4.0), rate_hz=rate_hz)
    assert len(observed) == pytest.approx(4.0 * rate_hz, abs=1)
    assert np.diff(taken_s(observed)).min() >= 1.0 / rate_hz - 1e-6


def test_it_can_stop_early(rig: ReplayRig) -> None:
    every = content(rig.observe(drive(seconds=3.0)))
    assert content(rig.observe(drive(seconds=3.0), max_chunks=3)) == every[:3]


def test_only_pictures_that_are_used_are_decoded(rig: ReplayRig, monkeypatch: Any) -> None:
    decoded: list[str] = []
    original = Decoder.decode

    def decode(self: Decoder, raw: bytes, *, where: str) -> Any:
        decoded.append(self.type)
        return original(self, raw, where=where)

    monkeypatch.setattr(Decoder, 'decode', decode)
    observed = rig.observe(drive(seconds=3.0))
    assert decoded.count('sensor_msgs/msg/Image') == 2 * len(observed)


# Names


def test_two_robots_in_one_bag_have_to_be_told_apart(rig: ReplayRig) -> None:
    first, second = drive(seconds=1.0), drive(seconds=1.0, moving=False)
    both = [*in_namespace(first, '/robot1'), *in_namespace(second, '/robot2')]
    with pytest.raises(ConfigError, match='--namespace /robot1 or /robot2'):
        rig.observe(both)
    for namespace, alone in (('/robot1', first), ('robot2/', second)):
        found = seen(rig.observe(both, namespace=namespace))
        assert found == seen(rig.observe(alone))
    assert seen(rig.observe(first)) != seen(rig.observe(second))


def test_one_robot_elsewhere_is_not_guessed_but_named(rig: ReplayRig) -> None:
    elsewhere = in_namespace(drive(seconds=1.0), '/lab/arm')
    with pytest.raises(ConfigError, match=r'add --namespace /lab/arm') as error:
        rig.observe(elsewhere)
    assert 'no /front/image_raw' in error.value.found
    with pytest.raises(ConfigError, match=r'add --namespace /($|\W)'):
        rig.observe(drive(seconds=1.0), namespace='/lab/arm')


def test_missing_and_foreign_topics_are_listed_with_their_types(rig: ReplayRig) -> None:
    messages = [m for m in drive(seconds=1.0) if m.topic != '/wrist/image_raw']
    wrong = [
        dataclasses.replace(m, topic='/wrist/image_raw')
        for m in messages
        if m.topic == '/joint_states'
    ]
    with pytest.raises(ConfigError) as error:
        rig.observe(messages)
    assert 'no /wrist/image_raw' in error.value.found
    assert '/joint_states [sensor_msgs/msg/JointState, 50]' in error.value.found
    assert '/wrist/image_raw [sensor_msgs/msg/Image] for camera wrist' in error.value.expected
    with pytest.raises(ConfigError, match=r'/wrist/image_raw of type sensor_msgs/msg/JointState'):
        rig.observe([*messages, *wrong])


# Time


def test_zero_stamps_are_refused_by_default_and_told(rig: ReplayRig) -> None:
    assert rig.observe(drive(zero_stamps=True)) == []
    assert rig.kinds() == {'dropped', 'stale'}
    (line, *_) = rig.replay.events.lines('dropped')
    assert 'a header stamp of zero' in line


def test_zero_stamps_can_be_dated_by_arrival(tmp_path: Path, rig: ReplayRig) -> None:
    changed = write_robot(tmp_path)
    text = changed.read_text().replace('max_age_s: 0.3', 'max_age_s: 0.3\n  zero_stamp: receive')
    text = text.replace('max_age_s: 0.2', 'max_age_s: 0.2\n    zero_stamp: receive')
    changed.write_text(text)
    observed = rig.observe(drive(zero_stamps=True), robot=changed)
    assert len(observed) == 8
    assert 'zero stamp' in rig.kinds()
    front = rig.replay.feed.intake.buffer.counters(0)['front']
    assert front.received == 30


def test_stamps_of_another_clock_give_nothing_and_the_reason(rig: ReplayRig) -> None:
    assert rig.observe(drive(stamp_offset_ns=-7200 * SECOND)) == []
    assert any('use_sim_time' in line for line in rig.replay.events.lines('dropped'))


def test_stamps_of_another_clock_can_be_the_time(rig: ReplayRig) -> None:
    expected = seen(rig.observe(drive()))
    shifted = drive(stamp_offset_ns=-7200 * SECOND)
    found = rig.observe(shifted, time='header')
    assert len(found) == len(expected)
    assert found[0].record.taken_ns < START_NS - 7000 * SECOND


def test_messages_recorded_out_of_order(rig: ReplayRig, tmp_path: Path) -> None:
    """One file written in any order is the same bag."""
    messages = drive(seconds=2.0)
    expected = content(rig.observe(messages))
    shuffled = list(messages)
    random.Random(3).shuffle(shuffled)
    assert content(rig.observe(shuffled)) == expected


def test_late_recording_is_undone_by_the_time_of_the_stamps(rig: ReplayRig) -> None:
    """A recorder that lagged on the pictures: their stamps still tell when they were taken."""
    late = [
        dataclasses.replace(m, log_ns=m.log_ns + (SECOND if m.topic in CAMERAS else 0))
        for m in drive(seconds=3.0)
    ]
    assert rig.observe(late) == []
    assert 'stale' in rig.kinds()
    assert len(rig.observe(late, time='header')) == 8


def looped(loops: int, *, seconds: float = 2.0, clock_hz: int = 100) -> list[Recorded]:
    """A bag of a bag that was played again and again: /clock and stamps start anew each time."""
    made: list[Recorded] = []
    for loop in range(loops):
        later_ns = loop * round((seconds + 0.5) * SECOND)
        once = [
            *drive(seconds=seconds),
            *(
                clock(START_NS + k * SECOND // clock_hz, START_NS + k * SECOND // clock_hz)
                for k in range(round(seconds * clock_hz) + 1)
            ),
        ]
        made += [dataclasses.replace(m, log_ns=m.log_ns + later_ns) for m in once]
    return sorted(made, key=lambda m: m.log_ns)


def test_every_loop_of_a_looped_bag_gives_the_same(rig: ReplayRig) -> None:
    once = rig.observe(looped(1), time='clock')
    thrice = rig.observe(looped(3), time='clock')
    assert len(once) == 6
    assert rig.replay.jumps == 2
    assert [o.chunk.epoch for o in thrice] == [1] * 6 + [2] * 6 + [3] * 6
    assert seen(thrice) == seen(once) * 3
    jumps = [event for event in rig.replay.events.events if event.kind == 'jump']
    assert len(jumps) == 2
    assert 'time went back by 2.0' in jumps[0].text


def test_a_chunk_whose_inference_time_overtook_is_withheld(rig: ReplayRig) -> None:
    observed = rig.observe(looped(2, seconds=1.7), time='clock', latency_s=0.3)
    assert 'withheld' in rig.kinds()
    epochs = [o.chunk.epoch for o in observed]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


def test_messages_before_the_first_clock_have_no_time(rig: ReplayRig) -> None:
    messages = [m for m in looped(1) if m.topic != '/clock' or m.log_ns > START_NS + SECOND]
    observed = rig.observe(messages, time='clock')
    assert observed[0].record.taken_ns >= START_NS + SECOND
    assert any('before the first /clock' in line for line in rig.replay.events.lines('dropped'))


def test_without_clock_messages_their_time_cannot_be_chosen(rig: ReplayRig) -> None:
    with pytest.raises(ConfigError, match='no /clock'):
        rig.observe(drive(seconds=1.0), time='clock')


def test_an_unknown_time_is_refused(rig: ReplayRig) -> None:
    with pytest.raises(ConfigError, match="'wall'"):
        rig.observe(drive(seconds=1.0), time='wall')


def test_each_topic_has_its_history(rig: ReplayRig) -> None:
    rig.observe(drive(seconds=2.0))
    histories = {log.name: log.history() for log in rig.replay.feed.histories.values()}
    assert {name: len(h.stamps_ns) for name, h in histories.items()} == {
        'front': 20,
        'wrist': 20,
        'arm': 100,
    }
    delay_ns = histories['wrist'].received_ns - histories['wrist'].stamps_ns
    assert (delay_ns == 14_000_000).all()


def test_a_replay_needs_neither_ros_nor_torch() -> None:
    """The process that replays for a GPU starts fast and stays small."""
    code = (
        'import sys\n'
        'for name in ("torch", "rclpy", "sensor_msgs", "std_msgs", "sparkrt"):\n'
        '    sys.modules[name] = None\n'
        'import sparkrt_ros.replay.apart, sparkrt_ros.cli.parity\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_looped_pictures_are_all_used_in_every_loop(rig: ReplayRig) -> None:
    """Asked at the rate of the camera, every loop gives as many observations as pictures."""
    observed = rig.observe(looped(3), time='clock', rate_hz=CAMERA_HZ)
    counts = Counter(o.chunk.epoch for o in observed)
    pictures = round(2.0 * CAMERA_HZ)
    assert set(counts) == {1, 2, 3}
    assert all(abs(count - pictures) <= 2 for count in counts.values())

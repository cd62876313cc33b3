"""Of joint messages that are taken together, only what says something new is read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy')

import numpy as np
from streamer_rig import CONTRACT

from sparkrt_ros.convert.contract import load_contract
from sparkrt_ros.nodes import streamer_pose
from sparkrt_ros.nodes.streamer_pose import PoseSource

NOW_NS = 1_700_000_000_000_000_000
STREAM = '{name: arm, topic: joint_states, max_age_s: 0.3}'


class FakeSubscription:
    """Gives out what the test put into ``waiting``; ``read`` counts it."""

    def __init__(self, node, kind, topic, profile) -> None:
        self.waiting: list = []
        self.read = 0
        node.subscription = self

    def take(self):
        while self.waiting:
            self.read += 1
            yield self.waiting.pop(0)

    def newest_first(self):
        waiting, self.waiting = self.waiting, []
        for message in reversed(waiting):
            self.read += 1
            yield message


class FakeNode:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.subscription: FakeSubscription

    def get_logger(self) -> SimpleNamespace:
        return SimpleNamespace(warning=self.warnings.append, error=self.warnings.append)

    def get_clock(self) -> SimpleNamespace:
        return SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=NOW_NS))


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(streamer_pose, 'PolledSubscription', FakeSubscription)

    def made(stream: str = STREAM, *, traced: bool = False):
        path = tmp_path / 'robot.yaml'
        path.write_text(CONTRACT.replace(STREAM, stream))
        node, poses = FakeNode(), []
        trace = SimpleNamespace(enabled=traced, joints=lambda *_, **__: None, publish=lambda: None)
        beat = SimpleNamespace(every=lambda rate_hz, *_, **__: SimpleNamespace(rate_hz=rate_hz))
        source = PoseSource(node, load_contract(path), poses.append, beat=beat, trace=trace)
        return SimpleNamespace(source=source, node=node, poses=poses, arm=node.subscription)

    return made


def joints(age_ms: int, **positions: float) -> SimpleNamespace:
    stamp_ns = NOW_NS - age_ms * 1_000_000
    stamp = SimpleNamespace(sec=stamp_ns // 1_000_000_000, nanosec=stamp_ns % 1_000_000_000)
    return SimpleNamespace(
        header=SimpleNamespace(stamp=stamp),
        name=list(positions),
        position=list(positions.values()),
        velocity=[],
        effort=[],
    )


def poll(rig, *messages) -> list[float]:
    rig.arm.waiting += messages
    rig.source.poll()
    return rig.poses[-1].values[:2].tolist() if rig.poses else []


def test_one_message_with_all_joints_is_enough(make):
    rig = make()
    assert poll(rig, *(joints(9 - i, pan=i, lift=-i) for i in range(10))) == [9.0, -9.0]
    assert rig.arm.read == 1
    assert len(rig.poses) == 1


def test_partial_publishers_do_not_hide_each_other(make):
    rig = make()
    messages = [joints(20, lift=5.0)] + [joints(19 - i, pan=float(i)) for i in range(10)]
    assert poll(rig, *messages) == [9.0, 5.0]


def test_where_the_newest_is_bad_the_one_before_counts(make):
    rig = make()
    assert poll(rig, joints(2, pan=1.0, lift=1.0), joints(1, pan=np.nan, lift=2.0)) == [1.0, 1.0]
    assert 'not finite' in rig.node.warnings[0]
    assert rig.source.merger.bad_messages == 1


def test_an_older_stamp_that_comes_last_takes_nothing_back(make):
    rig = make()
    assert poll(rig, joints(1, pan=2.0, lift=2.0)) == [2.0, 2.0]
    assert poll(rig, joints(9, pan=1.0, lift=1.0)) == [2.0, 2.0]


@pytest.mark.parametrize('dated', ['clock: receive', 'zero_stamp: receive'])
def test_where_arrival_may_date_them_all_are_read_in_its_order(make, dated):
    rig = make(f'{{name: arm, topic: joint_states, max_age_s: 0.3, {dated}}}')
    assert poll(rig, joints(1, pan=1.0, lift=1.0), joints(1, pan=2.0, lift=2.0)) == [2.0, 2.0]
    assert rig.arm.read == 2


def test_all_are_read_while_the_trace_is_on(make):
    rig = make(traced=True)
    assert poll(rig, *(joints(9 - i, pan=i, lift=-i) for i in range(10))) == [9.0, -9.0]
    assert rig.arm.read == 10


def test_without_messages_there_is_no_pose(make):
    assert poll(make()) == []


def test_bytes_that_are_no_message_are_logged_and_what_comes_after_them_counts(make):
    """The control thread looks too, and nothing that arrives may end it."""
    rig = make()
    poll(rig, joints(5, pan=1.0, lift=1.0))

    def raising():
        raise ValueError('not enough memory in the buffer stream')
        yield

    rig.arm.newest_first, newest_first = raising, rig.arm.newest_first
    assert poll(rig) == [1.0, 1.0]
    assert 'ValueError: not enough memory' in rig.node.warnings[0]
    rig.arm.newest_first = newest_first
    assert poll(rig, joints(1, pan=2.0, lift=2.0)) == [2.0, 2.0]

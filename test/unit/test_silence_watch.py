"""When a topic counts as silent, and when that is told."""

import math

import pytest

pytest.importorskip('rclpy', reason='needs ROS 2')

from sensor_msgs.msg import Image
from std_msgs.msg import Float64MultiArray

from sparkrt_ros.convert.contract_types import StreamTiming
from sparkrt_ros.nodes import qos
from sparkrt_ros.nodes.silent_topics import PATIENCE_S, Link, SilenceWatch, patience_s, type_name


class Doctor:
    def __init__(self):
        self.looks = 0
        self.found = 'nobody publishes'

    def cause(self, link):
        self.looks += 1
        return f'{link.topic}: {self.found}'


@pytest.fixture
def doctor():
    return Doctor()


@pytest.fixture
def told():
    return []


@pytest.fixture
def watch(doctor, told):
    return SilenceWatch(doctor, tell=told.append)


def link(count, topic='/front', **changes):
    return Link(topic=topic, type_name='x', profile=qos.CAMERA, matched=0, count=count, **changes)


def test_silence_is_told_once_and_its_end_too(watch, doctor, told):
    for now_s in range(10):
        watch.update([link(0)], now_s=float(now_s))
    assert watch.causes == {'/front': '/front: nobody publishes'}
    assert told == ['nothing comes: /front: nobody publishes']
    watch.update([link(1)], now_s=10.0)
    assert watch.causes == {}
    assert told[1:] == ['/front: messages come again']
    for now_s in range(11, 15):
        watch.update([link(1)], now_s=float(now_s))
    assert len(told) == 3, 'it is silent again'


def test_a_pause_shorter_than_the_patience_is_none(watch, doctor, told):
    for number in range(20):
        watch.update([link(number)], now_s=1.9 * number)
    assert (doctor.looks, told, watch.causes) == (0, [], {})


def test_another_cause_is_told_anew(watch, doctor, told):
    for now_s in (0.0, 3.0, 5.0):
        watch.update([link(0)], now_s=now_s)
    doctor.found = 'incompatible QoS'
    watch.update([link(0)], now_s=7.0)
    assert told[-1] == 'nothing comes: /front: incompatible QoS'
    assert len(told) == 2


def test_the_graph_is_looked_at_once_a_second_at_most(watch, doctor):
    for number in range(500):
        watch.update([link(0)], now_s=number * 0.01)
    assert 2 <= doctor.looks <= 4


def test_topics_that_are_not_read_any_more_are_forgotten(watch):
    for now_s in (0.0, 3.0, 6.0):
        watch.update([link(0), link(0, '/wrist')], now_s=now_s)
    assert set(watch.causes) == {'/front', '/wrist'}
    watch.update([link(0)], now_s=6.1)
    assert set(watch.causes) == {'/front'}


def test_a_slow_stream_may_be_silent_for_as_long_as_its_messages_are_good(watch, doctor):
    slow = patience_s(StreamTiming(max_age_s=10.0), count=3)
    for now_s in range(10):
        watch.update([link(3, patience_s=slow)], now_s=float(now_s))
    assert doctor.looks == 0
    watch.update([link(3, patience_s=slow)], now_s=10.0)
    assert set(watch.causes) == {'/front'}


def test_what_is_sent_only_when_it_changes_is_missed_only_before_the_first_message():
    held = StreamTiming(max_age_s=0.1, align='hold')
    assert patience_s(held, count=0) == PATIENCE_S
    assert patience_s(held, count=1) == math.inf
    assert patience_s(StreamTiming(max_age_s=0.1), count=1) == PATIENCE_S


def test_names_of_types():
    assert type_name(Image) == 'sensor_msgs/msg/Image'
    assert type_name(Float64MultiArray) == 'std_msgs/msg/Float64MultiArray'

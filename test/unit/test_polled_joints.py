"""Of joint messages that are taken together, the newest good one of each layout is merged."""

from __future__ import annotations

from types import SimpleNamespace

from sparkrt_ros.nodes.streamer_pose import by_names


def joints(number: int, *names: str, sec: int, nanosec: int = 0):
    stamp = SimpleNamespace(sec=sec, nanosec=nanosec)
    return SimpleNamespace(number=number, name=list(names), header=SimpleNamespace(stamp=stamp))


def numbers(messages) -> list[list[int]]:
    return [[message.number for message in found] for found in by_names(messages)]


def test_one_layout_is_sorted_by_its_stamps_not_by_arrival():
    messages = [
        joints(1, 'a', sec=5),
        joints(2, 'a', sec=7, nanosec=1),
        joints(3, 'a', sec=7),
        joints(4, 'a', sec=6),
    ]
    assert numbers(messages) == [[2, 3, 4, 1]]


def test_of_equal_stamps_the_last_to_arrive_comes_first():
    assert numbers([joints(1, 'a', sec=5), joints(2, 'a', sec=5)]) == [[2, 1]]


def test_partial_publishers_do_not_hide_each_other():
    messages = [
        joints(1, 'arm', sec=9),
        joints(2, 'gripper', sec=1),
        joints(3, 'arm', sec=10),
        joints(4, 'gripper', 'arm', sec=1),
    ]
    assert numbers(messages) == [[3, 1], [2], [4]]


def test_messages_without_stamp_or_names_are_of_one_layout():
    messages = [SimpleNamespace(number=1), SimpleNamespace(number=2)]
    assert numbers(messages) == [[2, 1]]

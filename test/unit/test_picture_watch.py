"""A camera whose picture stays while its stamps go on is noticed."""

from __future__ import annotations

import array
from types import SimpleNamespace

import numpy as np
import pytest

from sparkrt_ros.nodes.picture_watch import PictureWatch


def message(*, changed: int | None = None, size: int = 5000):
    data = np.zeros(size, dtype=np.uint8)
    if changed is not None:
        data[changed] = 1
    return SimpleNamespace(data=array.array('B', data.tobytes()))


def test_equal_pictures_count_from_the_first_of_them():
    watch = PictureWatch()
    assert watch.unchanged_s(message(), stamp_ns=1_000_000_000) == 0.0
    assert watch.unchanged_s(message(), stamp_ns=1_250_000_000) == 0.25
    assert watch.unchanged_s(message(), stamp_ns=3_000_000_000) == 2.0


@pytest.mark.parametrize('changed', [0, 1, 1021, 1022, 4999])
def test_one_byte_is_a_change_wherever_it_is(changed):
    watch = PictureWatch()
    watch.unchanged_s(message(), stamp_ns=1)
    assert watch.unchanged_s(message(changed=changed), stamp_ns=2_000_000_000) == 0.0
    again = message(changed=changed)
    assert watch.unchanged_s(again, stamp_ns=3_000_000_000) == 1.0


def test_another_size_is_a_change():
    watch = PictureWatch()
    watch.unchanged_s(message(size=5000), stamp_ns=1)
    assert watch.unchanged_s(message(size=4000), stamp_ns=2_000_000_000) == 0.0


def test_the_same_message_twice_is_no_second_picture():
    watch, one = PictureWatch(), message()
    watch.unchanged_s(one, stamp_ns=1_000_000_000)
    assert watch.unchanged_s(one, stamp_ns=1_000_000_000) == 0.0
    watch.unchanged_s(message(), stamp_ns=1_500_000_000)
    assert watch.unchanged_s(one, stamp_ns=1_000_000_000) == 0.0


def test_time_that_goes_back_begins_anew():
    watch = PictureWatch()
    watch.unchanged_s(message(), stamp_ns=9_000_000_000)
    assert watch.unchanged_s(message(), stamp_ns=1_000_000_000) == 0.0
    assert watch.unchanged_s(message(), stamp_ns=1_500_000_000) == 0.5

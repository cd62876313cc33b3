"""What the kernel is asked for, read back from the kernel."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from sparkrt_ros.nodes import scheduling
from sparkrt_ros.nodes.scheduling import (
    TIME_SLICE_S,
    set_realtime,
    set_time_slice,
    spread_threads,
)


def slice_ns(thread_id: int) -> int | None:
    """The slice of a thread, where this kernel tells it."""
    path = Path(f'/proc/self/task/{thread_id}/sched')
    found = re.search(r'se\.slice\s*:\s*(\d+)', path.read_text()) if path.exists() else None
    return int(found[1]) if found else None


def on_a_thread(act):
    """What ``act`` returns on a thread of its own, which then ends."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]


def test_a_short_slice_is_granted_to_the_calling_thread_alone():
    def ask():
        granted = set_time_slice(0.0002)
        return granted, slice_ns(threading.get_native_id()), os.sched_getscheduler(0)

    before_ns = slice_ns(threading.get_native_id())
    granted, found_ns, policy = on_a_thread(ask)
    assert granted
    assert found_ns in (200_000, None, before_ns), 'before_ns: a kernel before 6.12'
    assert policy == os.SCHED_OTHER
    assert slice_ns(threading.get_native_id()) == before_ns


def test_another_thread_can_be_named_and_how_nice_it_is_stays():
    ready, leave, found = threading.Event(), threading.Event(), {}

    def run() -> None:
        found['id'] = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        ready.set()
        leave.wait(30.0)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(30.0)
    try:
        before_ns = slice_ns(found['id'])
        assert set_time_slice(0.003, thread_id=found['id'])
        assert slice_ns(found['id']) in (3_000_000, None, before_ns)
        assert os.getpriority(os.PRIO_PROCESS, found['id']) == 7
    finally:
        leave.set()
        thread.join()


def test_a_thread_that_is_not_scheduled_normally_is_left_alone():
    def ask():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return set_time_slice(), os.sched_getscheduler(0)

    assert on_a_thread(ask) == (False, os.SCHED_BATCH)


def test_on_a_processor_whose_system_calls_are_not_known_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(scheduling.platform, 'machine', lambda: 'abacus')
    assert not on_a_thread(set_time_slice)


def test_without_a_real_time_priority_a_thread_has_short_turns():
    def ask():
        return set_realtime(0), slice_ns(threading.get_native_id())

    refusal, found_ns = on_a_thread(ask)
    assert refusal == ''
    assert found_ns in (round(TIME_SLICE_S * 1e9), None, slice_ns(threading.get_native_id()))


def test_a_refusal_is_told_in_words(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(scheduling.os, 'sched_setscheduler', refuse)
    assert 'not permitted' in set_realtime(10)


def test_a_thread_that_is_not_there_is_an_error():
    with pytest.raises(ProcessLookupError):
        set_time_slice(thread_id=2**30)


class Kernel:
    """Which processors threads were told to keep to."""

    def __init__(self, monkeypatch, *, allowed: set[int]) -> None:
        self.told: list[tuple[int, set[int]]] = []
        monkeypatch.setattr(scheduling.os, 'sched_getaffinity', lambda _: set(allowed))
        monkeypatch.setattr(
            scheduling.os, 'sched_setaffinity', lambda *told: self.told.append(told)
        )


@pytest.mark.parametrize(
    ('allowed', 'shares'),
    [
        ({0, 1}, ([0], [1])),
        ({2, 3, 5}, ([2, 5], [3])),
        ({4}, ([4], [4])),
    ],
)
def test_threads_share_the_processors_of_the_caller(monkeypatch, allowed, shares):
    kernel = Kernel(monkeypatch, allowed=allowed)
    spread_threads([11, 12])
    assert [(who, list(where)) for who, where in kernel.told] == [(11, shares[0]), (12, shares[1])]

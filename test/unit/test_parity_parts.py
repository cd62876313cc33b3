"""The small parts of a parity run: threads, events, noise, time, and what is printed."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from parity_report_samples import sample
from rich.console import Console

from sparkrt_ros.cli._parity_table import print_result
from sparkrt_ros.cli.parity import exit_code
from sparkrt_ros.replay.clock import MessageTimes, VirtualClock, wait_ns
from sparkrt_ros.replay.history import MOST_EVENTS, EventLog
from sparkrt_ros.replay.prefetch import Prefetch
from sparkrt_ros.replay.worst import WorstFrames
from sparkrt_ros.runtime.noise import chunk_noise


def test_prefetch_keeps_order_and_stays_within_its_bound() -> None:
    made: list[int] = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for k in range(50):
            made.append(k)
            if len(made) == 4:
                enough.set()
            yield k

    with Prefetch(source(), ahead=2) as items:
        iterator = iter(items)
        assert next(iterator) == 0
        assert enough.wait(5.0)
        assert len(made) <= 5
        assert [next(iterator), *items.waiting(2)][0] == 1
        rest = list(iterator)
    assert rest[-1] == 49
    assert made == list(range(50))


def test_prefetch_raises_what_its_source_raises_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError('broken')

    with Prefetch(source(), ahead=8) as items:
        iterator = iter(items)
        assert next(iterator) == 1
        with pytest.raises(KeyError, match='broken'):
            next(iterator)


def test_prefetch_left_in_the_middle_ends_its_thread() -> None:
    def source() -> Iterator[int]:
        while True:
            yield 1

    with Prefetch(source(), ahead=1, name='endless') as items:
        assert next(iter(items)) == 1
    assert not [t for t in threading.enumerate() if t.name == 'endless']


def test_events_over_and_over_are_counted_and_listed_once_a_second() -> None:
    log = EventLog()
    for k in range(2500):
        log.add('stale', time_ns=k * 1_000_000, stream='front', text='old')
    log.add('stale', time_ns=0, stream='wrist', text='also old')
    assert [event.time_ns for event in log.events] == [0, 1_000_000_000, 2_000_000_000, 0]
    assert log.counts == {'stale': 2501}
    assert log.lines('stale') == ['old (2500 times)', 'also old']
    assert log.lines('jump') == []


def test_events_after_a_jump_back_are_listed() -> None:
    log = EventLog()
    for time_ns in (5_000_000_000, 1_000_000_000):
        log.add('stale', time_ns=time_ns, stream='front', text='old')
    assert len(log.events) == 2


def test_events_are_bounded() -> None:
    log = EventLog()
    for k in range(MOST_EVENTS + 10):
        log.add('dropped', time_ns=k, stream=f'{k}', text=f'message {k}')
    assert len(log.events) == MOST_EVENTS
    assert log.left_out == 10
    assert log.counts['dropped'] == MOST_EVENTS + 10


def test_noise_is_one_generator_for_each_chunk() -> None:
    shape = (1, 50, 32)
    first = chunk_noise(3, 7, shape)
    assert first is not None
    assert first.dtype == np.float32
    assert first.shape == shape
    assert np.array_equal(first, chunk_noise(3, 7, shape))
    assert not np.array_equal(first, chunk_noise(3, 8, shape))
    assert not np.array_equal(first, chunk_noise(4, 7, shape))
    assert abs(float(first.mean())) < 0.1
    assert float(first.std()) == pytest.approx(1.0, abs=0.05)
    assert chunk_noise(3, 7, ()) is None


def test_the_steady_time_never_goes_back() -> None:
    clock = VirtualClock()
    for now_ns in (10_000, 10_500, 4_000, 4_200):
        clock.set(now_ns)
    assert clock.now_ns == 4_200
    assert clock.steady_ns == 700
    clock.ahead_ns = 300
    assert clock.steady_s() == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ('seconds', 'expected'), [(0.0, 0), (1e-9, 2), (0.5, 500_000_001), (float('inf'), None)]
)
def test_a_wait_is_never_too_short(seconds: float, expected: int | None) -> None:
    assert wait_ns(seconds) == expected


def message(topic: str = '/x', *, log_ns: int, stamp_ns: int | None = None) -> Any:
    clock = SimpleNamespace(clock=SimpleNamespace(sec=1, nanosec=5))
    return SimpleNamespace(topic=topic, log_ns=log_ns, stamp_ns=stamp_ns, message=clock)


def test_three_kinds_of_time() -> None:
    stamped, zero, bare = (message(log_ns=7, stamp_ns=stamp) for stamp in (3, 0, None))
    log, header, clock = (MessageTimes(choice) for choice in ('log', 'header', 'clock'))
    assert [log.arrival_ns(m) for m in (stamped, zero, bare)] == [7, 7, 7]
    assert [header.arrival_ns(m) for m in (stamped, zero, bare)] == [3, 7, 7]
    assert clock.arrival_ns(stamped) is None
    assert clock.arrival_ns(message('/clock', log_ns=8)) == 1_000_000_005
    assert clock.arrival_ns(stamped) == 1_000_000_005
    assert [t.order for t in (log, header, clock)] == ['log', 'header', 'log']


def test_the_worst_frames_are_copies_and_no_number_is_worst() -> None:
    frames = WorstFrames()
    picture = np.zeros((2, 2, 3), np.uint8)
    frames.note('a', 'b', 0.5, {'front': picture})
    picture[:] = 9
    frames.note('a', 'b', 0.4, {'front': picture})
    assert frames.of('a', 'b')['front'].max() == 0
    frames.note('a', 'b', float('nan'), {'front': picture})
    frames.note('a', 'b', 1e9, {'front': np.ones((2, 2, 3), np.uint8)})
    assert frames.of('a', 'b')['front'].min() == 9
    assert frames.of('b', 'a') == {}


def with_facts(result: Any, *, complete: bool, caught: str = 'fail') -> Any:
    facts = {
        **result.provenance,
        'bag': {'complete': complete},
        'self_check': {'fp32': {'frozen input': caught}},
        'measured': {'times_real_time': 2.0},
    }
    return dataclasses.replace(result, provenance=facts)


@pytest.mark.parametrize(
    ('band', 'complete', 'code'),
    [
        ('pass', True, 0),
        ('fail', True, 1),
        ('warn', True, 3),
        ('pass', False, 4),
        ('warn', False, 3),
        ('fail', False, 1),
    ],
)
def test_exit_codes(band: str, complete: bool, code: int) -> None:
    result = sample()
    one = dataclasses.replace(result.comparisons[0], band=band)
    result = dataclasses.replace(result, comparisons=(one,))
    assert exit_code(with_facts(result, complete=complete)) == code


@pytest.mark.parametrize(('caught', 'text'), [('fail', 'were failed'), ('pass', 'could not be')])
def test_everything_is_printed(caught: str, text: str) -> None:
    console = Console(width=160, record=True)
    warnings = tuple(f'warning {k}' for k in range(20))
    result = dataclasses.replace(sample(), warnings=warnings)
    print_result(with_facts(result, complete=True, caught=caught), console)
    printed = console.export_text()
    for comparison in result.comparisons:
        assert comparison.candidate in printed
        assert all(reason in printed for reason in comparison.reasons)
    for name in result.joint_names:
        assert name in printed
    assert '8 more notes' in printed
    assert text in printed
    assert printed.rstrip().endswith(result.band.upper())

"""Overlap functions against a plain table of time steps, as LeRobot's client keeps it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_helpers import DT_NS, chunk, sample, timeline

from sparkrt_ros.runtime.chunking.overlap import OVERLAP_SHARES, OverlapWeights

FUNCTIONS = {
    'weighted_average': lambda old, new: 0.3 * old + 0.7 * new,
    'latest_only': lambda old, new: new,
    'average': lambda old, new: 0.5 * old + 0.5 * new,
    'conservative': lambda old, new: 0.7 * old + 0.3 * new,
}


class StepTable:
    """Time step -> action. A chunk replaces the table; where both have a step, the function."""

    def __init__(self, mode: str) -> None:
        self.function = FUNCTIONS[mode]
        self.table: dict[int, float] = {}
        self.executed = -1

    def take(self, first: int, actions: list[float]) -> None:
        replaced: dict[int, float] = {}
        for index, action in enumerate(actions):
            step = first + index
            if step <= self.executed:
                continue
            if step in self.table:
                replaced[step] = self.function(self.table[step], action)
            else:
                replaced[step] = action
        self.table = replaced

    def next(self, step: int) -> float | None:
        self.executed = step
        return self.table.pop(step, None)


def test_every_function_of_the_reference_is_there():
    assert set(OVERLAP_SHARES) == set(FUNCTIONS)
    for name, function in FUNCTIONS.items():
        assert OVERLAP_SHARES[name] == function(1.0, 0.0)


@pytest.mark.parametrize('mode', FUNCTIONS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_on_the_step_grid_it_equals_the_table_of_steps(mode, data):
    held, oracle = timeline(mode=mode), StepTable(mode)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    newest, number = -1, 0
    for step in range(40):
        late = data.draw(st.integers(0, 4))
        if step == 0 or (data.draw(st.booleans()) and step - late > newest):
            observed = step if step == 0 else step - late
            rows = random.normal(size=(data.draw(st.integers(6, 15)), 2))
            number += 1
            newest = observed
            held.take(chunk(rows, stamp_ns=observed * DT_NS, chunk_id=number), now_ns=step * DT_NS)
            oracle.take(observed, rows[:, 0].tolist())
        wanted = oracle.next(step)
        found = sample(held, step * DT_NS)
        if wanted is None:
            assert found is None
            break
        assert found[0] == pytest.approx(wanted, abs=1e-14)


@pytest.mark.parametrize('mode', FUNCTIONS)
def test_what_the_old_course_had_beyond_the_new_chunk_is_dropped_for_good(mode):
    held = timeline(mode=mode)
    held.take(chunk(np.full((20, 2), 5.0), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.full((3, 2), 1.0), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    assert sample(held, 4 * DT_NS) is None
    held.take(chunk(np.full((20, 2), 3.0), stamp_ns=4 * DT_NS, chunk_id=3), now_ns=4 * DT_NS)
    assert sample(held, 4 * DT_NS) == [3.0, 3.0], 'the first chunk still covers this time'


@pytest.mark.parametrize('mode', FUNCTIONS)
def test_a_chunk_that_runs_out_leaves_the_course_before_a_longer_newer_one(mode):
    held = timeline(mode=mode)
    held.take(chunk(np.full((4, 2), 5.0), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.full((9, 2), 1.0), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    both = FUNCTIONS[mode](5.0, 1.0)
    assert sample(held, 2 * DT_NS)[0] == pytest.approx(both, rel=1e-15)
    assert sample(held, 4 * DT_NS) == [1.0, 1.0]


@pytest.mark.parametrize('mode', FUNCTIONS)
def test_a_standstill_moves_the_whole_course(mode):
    held = timeline(mode=mode)
    held.take(chunk(np.full((4, 2), 5.0), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.full((9, 2), 1.0), stamp_ns=DT_NS, chunk_id=2), now_ns=DT_NS)
    held.stand_still(2 * DT_NS)
    assert sample(held, 12 * DT_NS)[0] == pytest.approx(FUNCTIONS[mode](5.0, 1.0), rel=1e-15)
    assert sample(held, 14 * DT_NS) == [1.0, 1.0]


def test_latest_only_is_queue_mode_bit_for_bit():
    random = np.random.default_rng(5)
    plain, latest = timeline(), timeline(mode='latest_only')
    for step in range(30):
        now_ns = step * DT_NS
        if step % 3 == 0:
            made = chunk(random.normal(size=(12, 2)), stamp_ns=now_ns, chunk_id=step + 1)
            plain.take(made, now_ns=now_ns)
            latest.take(made, now_ns=now_ns)
        assert sample(plain, now_ns + 7_000_003) == sample(latest, now_ns + 7_000_003)


@pytest.mark.parametrize('interpolation', ['linear', 'cubic'])
@pytest.mark.parametrize('mode', ['ensemble', *FUNCTIONS])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_course_lies_between_the_chunks_it_is_made_of(mode, interpolation, data):
    held = timeline(mode=mode)
    held.interpolation = interpolation
    alone = []
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    now_ns = 0
    for number in range(1, data.draw(st.integers(2, 6))):
        made = chunk(random.normal(size=(30, 2)), stamp_ns=now_ns, chunk_id=number)
        held.take(made, now_ns=now_ns)
        single = timeline()
        single.interpolation = interpolation
        single.take(made, now_ns=now_ns)
        alone.append(single)
        now_ns += data.draw(st.integers(1, 3 * DT_NS))
        found = np.array(sample(held, now_ns))
        parts = np.array([sample(one, now_ns) for one in alone])
        assert (found >= parts.min(axis=0) - 1e-12).all()
        assert (found <= parts.max(axis=0) + 1e-12).all()


@settings(deadline=None)
@given(share=st.floats(0.0, 0.99), covered=st.integers(1, 12), count=st.integers(12, 20))
def test_weights_are_not_negative_and_sum_up_to_1(share, covered, count):
    weights = OverlapWeights(capacity=32)
    weights.share = share
    mask = np.zeros(count, dtype=np.bool_)
    mask[count - covered :] = True
    out = np.full(count, np.nan)
    weights.fill(mask, out=out)
    assert (out >= 0.0).all()
    assert (out[: count - covered] == 0.0).all()
    assert out.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize('mode', ['queue', 'ensemble', 'average'])
@pytest.mark.parametrize('interpolation', ['linear', 'cubic'])
def test_sampling_allocates_no_array(mode, interpolation):
    size = 3000
    names = tuple(map(str, range(size)))
    held = timeline(mode=mode, names=names)
    held.interpolation = interpolation
    held.blend_s = 0.3
    random = np.random.default_rng(2)
    out = np.zeros(size)
    for number in range(4):
        held.sample(number * DT_NS, out=out)
        rows = random.normal(size=(60, size))
        held.take(
            chunk(rows, stamp_ns=number * DT_NS, chunk_id=number + 1, names=names),
            now_ns=number * DT_NS,
        )
        held.sample(number * DT_NS, out=out)
    tracemalloc.start()
    for tick in range(1, 40):
        assert held.sample(3 * DT_NS + tick * 1_000_003, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000, 'one array of bools would be 3000 bytes'

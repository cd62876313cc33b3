"""Temporal ensembling by time against the step-based form of ACT, and its own invariants."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_helpers import DT_NS, DT_S, chunk, sample, timeline

from sparkrt_ros.runtime.chunking.ensemble import TemporalEnsembler

HORIZON = 12


class StepEnsembler:
    """The step-based online update of ACT, float64: one chunk a step, one action out."""

    def __init__(self, *, coeff: float, horizon: int) -> None:
        self.weights = np.exp(-coeff * np.arange(horizon))
        self.cumulated = np.cumsum(self.weights)
        self.mean: np.ndarray | None = None
        self.count = np.zeros(0, dtype=int)

    def update(self, rows: np.ndarray) -> np.ndarray:
        if self.mean is None:
            self.mean, self.count = rows.copy(), np.ones(len(rows), dtype=int)
        else:
            for step in range(len(rows) - 1):
                seen = self.count[step]
                total = self.mean[step] * self.cumulated[seen - 1]
                total = total + rows[step] * self.weights[seen]
                self.mean[step] = total / self.cumulated[seen]
                self.count[step] = min(seen + 1, len(rows))
            self.mean = np.concatenate([self.mean, rows[-1:]])
            self.count = np.append(self.count, 1)
        action, self.mean, self.count = self.mean[0], self.mean[1:], self.count[1:]
        return action


def exact_mean(values: list[float], *, coeff: float) -> float:
    """The weighted mean in correctly rounded sums, oldest first."""
    weights = [math.exp(-coeff * i) for i in range(len(values))]
    products = [weight * value for weight, value in zip(weights, values, strict=True)]
    return math.fsum(products) / math.fsum(weights)


@pytest.mark.parametrize('coeff', [0.01, 0.0, 0.5, -0.2])
def test_on_the_step_grid_it_equals_the_step_based_ensembler(coeff):
    random = np.random.default_rng(7)
    held = timeline(mode='ensemble', coeff=coeff)
    oracle = StepEnsembler(coeff=coeff, horizon=HORIZON)
    for step in range(5 * HORIZON):
        rows = random.normal(size=(HORIZON, 2))
        held.take(chunk(rows, stamp_ns=step * DT_NS, chunk_id=step + 1), now_ns=step * DT_NS)
        due = sample(held, step * DT_NS)
        np.testing.assert_allclose(due, oracle.update(rows), rtol=0, atol=4e-15)
    assert held.held_chunks == HORIZON


def test_on_the_grid_of_30_hz_whose_step_is_no_whole_nanosecond_too():
    random = np.random.default_rng(8)
    held = timeline(mode='ensemble', coeff=0.1)
    oracle = StepEnsembler(coeff=0.1, horizon=HORIZON)
    for step in range(5 * HORIZON):
        rows = random.normal(size=(HORIZON, 2))
        now_ns = 1_700_000_000_000_000_000 + round(step * 1e9 / 30)
        held.take(chunk(rows, stamp_ns=now_ns, chunk_id=step + 1, dt_s=1 / 30), now_ns=now_ns)
        np.testing.assert_allclose(sample(held, now_ns), oracle.update(rows), rtol=0, atol=2e-14)


def test_it_agrees_with_the_runtimes_own_step_based_ensembler():
    random = np.random.default_rng(9)
    held = timeline(mode='ensemble', coeff=0.01)
    oracle = TemporalEnsembler(coefficient=0.01, chunk_size=HORIZON)
    for step in range(3 * HORIZON):
        rows = random.normal(size=(HORIZON, 2)).astype(np.float32)
        held.take(chunk(rows, stamp_ns=step * DT_NS, chunk_id=step + 1), now_ns=step * DT_NS)
        due = sample(held, step * DT_NS)
        # Their running mean is kept in fp32: a few roundings of values around 1.
        np.testing.assert_allclose(due, oracle.update(rows), rtol=0, atol=5e-7)


def test_the_older_chunk_weighs_more():
    held = timeline(mode='ensemble', coeff=0.01)
    held.take(chunk(np.zeros((10, 2)), stamp_ns=0), now_ns=0)
    held.take(chunk(np.ones((10, 2)), stamp_ns=0, chunk_id=2), now_ns=0)
    weight = math.exp(-0.01)
    assert sample(held, 0) == [weight / (1.0 + weight)] * 2
    assert sample(held, 0)[0] == pytest.approx(0.4975, abs=1e-6)


def test_off_the_grid_each_chunk_is_interpolated_before_the_mean():
    held = timeline(mode='ensemble', coeff=0.3)
    old = np.array([[0.0, 4.0], [1.0, 8.0], [5.0, 0.0]])
    new = np.array([[2.0, 1.0], [6.0, 3.0], [7.0, 9.0]])
    held.take(chunk(old, stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(new, stamp_ns=DT_NS // 2, chunk_id=2), now_ns=DT_NS // 2)
    due = sample(held, DT_NS + DT_NS // 4)
    older = [1.0 + 0.25 * 4.0, 8.0 - 0.25 * 8.0]
    newer = [2.0 + 0.75 * 4.0, 1.0 + 0.75 * 2.0]
    expected = [exact_mean(list(pair), coeff=0.3) for pair in zip(older, newer, strict=True)]
    np.testing.assert_allclose(due, expected, rtol=2e-16 * 4, atol=0)


def test_weights_count_only_the_chunks_that_cover_the_time():
    held = timeline(mode='ensemble', coeff=0.7)
    held.take(chunk(np.full((2, 2), 9.0), stamp_ns=0), now_ns=0)
    held.take(chunk(np.full((8, 2), 1.0), stamp_ns=1, chunk_id=2), now_ns=1)
    held.take(chunk(np.full((8, 2), 3.0), stamp_ns=2, chunk_id=3), now_ns=2)
    due = sample(held, 4 * DT_NS)
    assert due[0] == pytest.approx(exact_mean([1.0, 3.0], coeff=0.7), rel=1e-15)


def test_a_single_chunk_is_played_as_in_queue_mode_and_its_rows_bit_for_bit():
    rows = np.random.default_rng(1).normal(size=(30, 2))
    queue, ensemble = timeline(), timeline(mode='ensemble')
    for held in (queue, ensemble):
        held.take(chunk(rows, stamp_ns=0), now_ns=0)
    for row in range(30):
        assert sample(ensemble, row * DT_NS) == rows[row].tolist()
        between_ns = row * DT_NS + 7_777_777
        np.testing.assert_allclose(
            sample(ensemble, between_ns), sample(queue, between_ns), rtol=0, atol=1e-15
        )


def test_chunks_of_a_replaced_epoch_leave_the_mean():
    held = timeline(mode='ensemble', coeff=0.0)
    held.take(chunk(np.zeros((9, 2)), stamp_ns=0), now_ns=0)
    sample(held, 0)
    held.take(chunk(np.ones((9, 2)), stamp_ns=DT_NS, chunk_id=2, epoch=1), now_ns=DT_NS)
    assert sample(held, DT_NS) == [1.0, 1.0]


def test_the_coefficient_is_taken_at_the_next_sample():
    held = timeline(mode='ensemble', coeff=0.0)
    held.take(chunk(np.zeros((9, 2)), stamp_ns=0), now_ns=0)
    held.take(chunk(np.ones((9, 2)), stamp_ns=0, chunk_id=2), now_ns=0)
    assert sample(held, 0)[0] == 0.5
    held.clear()
    held.temporal_ensemble_coeff = 1.0
    held.take(chunk(np.zeros((9, 2)), stamp_ns=1, chunk_id=3), now_ns=1)
    held.take(chunk(np.ones((9, 2)), stamp_ns=1, chunk_id=4), now_ns=1)
    assert sample(held, 1)[0] == pytest.approx(1 / (1 + math.e), rel=1e-15)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_mean_lies_between_the_chunks_and_ends_with_the_last(data):
    coeff = data.draw(st.floats(-1, 1))
    held = timeline(mode='ensemble', coeff=coeff)
    now_ns, end_ns, low, high = 0, 0, math.inf, -math.inf
    for number in range(data.draw(st.integers(1, 8))):
        now_ns += data.draw(st.integers(0, 3 * DT_NS))
        sample(held, now_ns)
        values = data.draw(st.lists(st.floats(-3, 3), min_size=1, max_size=9))
        rows = np.array(values)[:, None] * np.ones(2)
        held.take(chunk(rows, stamp_ns=now_ns, chunk_id=number + 1), now_ns=now_ns)
        end_ns = max(end_ns, now_ns + len(values) * DT_NS)
        low, high = min(low, *values), max(high, *values)
    later_ns = now_ns + data.draw(st.integers(0, 12 * DT_NS))
    due = sample(held, later_ns)
    if later_ns <= end_ns - 3:
        assert due is not None
        assert low - 1e-12 <= due[0] <= high + 1e-12
    elif later_ns >= end_ns:
        assert due is None
        assert held.remaining_s(later_ns) == 0.0


@pytest.mark.parametrize('mode', ['queue', 'ensemble'])
def test_sampling_allocates_nothing_that_grows_with_joints_chunks_or_calls(mode):
    names = tuple(f'joint_{number}' for number in range(2000))
    held = timeline(mode=mode, names=names)
    for number in range(40):
        rows = np.full((50, len(names)), float(number))
        stamp_ns = number * DT_NS
        held.take(
            chunk(rows, stamp_ns=stamp_ns, chunk_id=number + 1, names=names), now_ns=stamp_ns
        )
    out = np.zeros(len(names))
    begin_ns = 39 * DT_NS
    held.sample(begin_ns, out=out)
    tracemalloc.start()
    for tick in range(1, 500):
        held.sample(begin_ns + tick * 250_000, out=out)
        held.remaining_s(begin_ns + tick * 250_000)
    grown, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held.remaining_s(begin_ns + 500 * 250_000) > DT_S, 'the run must not end in underrun'
    # One row of 2000 joints would be 16 kB; one small object kept by each call, 14 kB.
    assert peak < 4000
    assert grown < 2500

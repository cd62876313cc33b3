"""The work of the inference thread, step by step, with a policy that counts."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from test_observation_intake import Setup, ns

from sparkrt_ros.nodes.chunk_gate import ChunkGate
from sparkrt_ros.nodes.pacing import PacingConfig, Progress
from sparkrt_ros.nodes.policy_worker import PolicyWorker, WorkerClocks
from sparkrt_ros.runtime.errors import ActionError

SESSION = 11


class CountingPolicy:
    """Row i of chunk n is n + i / 100 for every joint, in degrees."""

    last_timing = SimpleNamespace(
        preprocess_s=0.001,
        model_s=0.002,
        postprocess_s=0.003,
        stages_s={'prefix': 0.0005, 'denoise': 0.0015},
    )

    def __init__(self):
        self.observations = []
        self.resets = 0
        self.during = lambda: None
        self.answer = None

    def predict_chunk(self, observation):
        self.observations.append(observation)
        self.during()
        if self.answer is not None:
            return self.answer
        rows = len(self.observations) + np.arange(8, dtype=np.float32)[:, None] / 100
        return np.repeat(rows, 2, axis=1)

    def reset(self):
        self.resets += 1


class Bench:
    """A worker on a bench: its time is ``now_s``, its looks are not throttled."""

    def __init__(self, monkeypatch, **pacing):
        monkeypatch.setattr('sparkrt_ros.nodes.policy_worker.LOOK_INTERVAL_S', 0.0)
        self.now_s = 0.0
        self.setup = Setup()
        self.gate = ChunkGate()
        self.policy = CountingPolicy()
        self.chunks = []
        config = {
            'mode': 'queue',
            'n_action_steps': 8,
            'dt_s': 0.05,
            'inference_rate_hz': 10.0,
            'lead_margin_s': 0.0,
            'streamer_timeout_s': 1.0,
            **pacing,
        }
        self.worker = PolicyWorker(
            SimpleNamespace(
                policy=self.policy,
                contract=self.setup.robot,
                capabilities=SimpleNamespace(requires_task=False, noise_shape=()),
            ),
            self.setup.reader,
            self.gate,
            session_id=SESSION,
            pacing=PacingConfig(**config),
            task='lift',
            clocks=WorkerClocks(
                now_ns=lambda: ns(self.now_s),
                pacing_s=lambda: self.now_s,
            ),
            publish=self.chunks.append,
        )
        self.gate.open()

    def feed(self):
        self.setup.joints(self.now_s)
        self.setup.image(self.now_s)

    def progress(self, **changes):
        values = {
            'session_id': SESSION,
            'epoch': self.gate.epoch,
            'chunk_id': len(self.chunks),
            'played_s': 0.0,
            'remaining_s': 0.4,
            'state': 'streaming',
        }
        self.worker.follow(Progress(at_s=self.now_s, **{**values, **changes}))


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)


def test_a_chunk_carries_what_the_streamer_needs(bench):
    bench.now_s = 3.0
    bench.feed()
    assert bench.worker.step() == 0.0
    (chunk,) = bench.chunks
    assert chunk.observation_stamp_ns == ns(3.0)
    assert chunk.joint_names == ('pan', 'grip')
    assert chunk.dt_s == pytest.approx(0.05)
    assert chunk.epoch == bench.gate.epoch
    assert chunk.chunk_id == 1
    expected = np.radians(1 + np.arange(8) / 100)
    np.testing.assert_allclose(chunk.actions[:, 0], expected, rtol=1e-6)
    assert bench.policy.observations[0].task == 'lift'


def test_without_an_observation_it_waits_hungry_and_says_why(bench):
    assert bench.worker.step() == math.inf
    assert bench.worker.hungry
    assert 'no usable message yet' in bench.worker.figures.reason
    assert bench.worker.figures.refused == 1
    bench.feed()
    assert bench.worker.step() == 0.0
    assert not bench.worker.hungry
    assert bench.worker.figures.reason == ''


def test_one_observation_is_never_used_twice(bench):
    bench.feed()
    bench.worker.step()
    bench.progress(session_id=0, chunk_id=0, state='waiting')
    bench.now_s = 0.6
    bench.progress(session_id=0, chunk_id=0, state='waiting')
    assert 0.0 < bench.worker.step() <= math.inf
    assert len(bench.chunks) == 1


def test_it_waits_while_the_streamer_has_enough(bench):
    bench.feed()
    bench.worker.step()
    bench.progress()
    assert bench.worker.step() == pytest.approx(0.4)
    bench.now_s = 0.4
    bench.feed()
    assert bench.worker.step() == 0.0
    assert [chunk.chunk_id for chunk in bench.chunks] == [1, 2]


def test_a_closed_or_paused_gate_stops_the_work(bench):
    bench.feed()
    for stop in (bench.gate.pause, bench.gate.close):
        stop()
        assert bench.worker.step() == math.inf
    assert bench.policy.observations == []


@pytest.mark.parametrize('what', ['raise_epoch', 'close', 'pause'])
def test_an_inference_overtaken_by_events_is_withheld(bench, what):
    bench.feed()
    bench.policy.during = getattr(bench.gate, what)
    bench.worker.step()
    assert bench.chunks == []
    assert bench.worker.figures.withheld == 1
    assert bench.worker.next_chunk_id == 1


def test_after_a_reset_the_next_chunk_comes_at_once_and_in_the_new_epoch(bench):
    bench.feed()
    bench.worker.step()
    bench.progress()
    assert bench.worker.step() > 0.0
    bench.worker.begin_episode()
    epoch = bench.gate.raise_epoch()
    assert bench.policy.resets == 1
    bench.feed()
    assert bench.worker.step() == 0.0
    assert bench.chunks[-1].epoch == epoch


@pytest.mark.parametrize(
    'answer',
    [np.full((8, 2), np.nan), np.zeros((8, 3)), np.zeros((0, 2)), np.full((8, 2), np.inf)],
)
def test_actions_that_are_no_actions_never_leave(bench, answer):
    bench.feed()
    bench.policy.answer = answer
    with pytest.raises(ActionError):
        bench.worker.step()
    assert bench.chunks == []
    assert bench.worker.failed(ActionError('x', found='y', expected='z')) == 1
    assert bench.worker.figures.failures == 1


def test_failures_in_a_row_are_counted_from_the_last_success(bench):
    for count in (1, 2):
        assert bench.worker.failed(RuntimeError('no')) == count
    bench.feed()
    bench.worker.step()
    assert bench.worker.failed(RuntimeError('no')) == 1
    assert bench.worker.figures.failures == 3
    assert 'no' in bench.worker.figures.reason


def test_a_failed_inference_is_not_repeated_on_the_same_observation(bench):
    bench.feed()
    bench.policy.answer = np.full((8, 2), np.nan)
    with pytest.raises(ActionError):
        bench.worker.step()
    bench.now_s = 0.6
    bench.progress(session_id=0, chunk_id=0, state='waiting')
    bench.worker.step()
    assert len(bench.policy.observations) == 1


def test_figures_of_the_last_inference(bench):
    bench.feed()
    bench.worker.step()
    figures = bench.worker.figures
    assert figures.chunks == 1
    assert figures.ages_s == {'front': 0.0, 'state': 0.0}
    assert (figures.preprocess_s, figures.model_s, figures.postprocess_s) == (0.001, 0.002, 0.003)
    assert figures.stages_s == {'prefix': 0.0005, 'denoise': 0.0015}
    assert 0.0 < figures.p50_s <= figures.p99_s
    before = figures
    bench.worker.failed(RuntimeError('no'))
    assert before.failures == 0


def test_an_idle_streamer_is_waited_for(bench):
    bench.feed()
    bench.progress(state='paused')
    assert bench.worker.step() == pytest.approx(1.0)
    assert bench.worker.figures.reason == 'the streamer is paused'


def test_looks_are_throttled(monkeypatch):
    bench = Bench(monkeypatch)
    monkeypatch.setattr('sparkrt_ros.nodes.policy_worker.LOOK_INTERVAL_S', 1000.0)
    assert bench.worker.step() == math.inf
    assert 0.0 < bench.worker.step() <= 1000.0
    assert bench.worker.figures.refused == 1

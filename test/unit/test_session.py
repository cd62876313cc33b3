"""Queue and ensemble modes, resets, and what may leave a session."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from session_helpers import (
    ACTION_SIZE,
    CHUNK_SIZE,
    CountingPreprocessor,
    RampAdapter,
    double,
    identity,
    observe,
)

from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.config import SessionMode
from sparkrt_ros.runtime.errors import ActionError, BackendError, ObservationError
from sparkrt_ros.runtime.session import Session

QUEUE = SessionMode(name='queue', n_action_steps=3)
ENSEMBLE = SessionMode(name='ensemble', n_action_steps=1, temporal_ensemble_coeff=0.1)


class Rig:
    def __init__(self, mode: SessionMode, *, postprocessor=identity) -> None:
        self.adapter = RampAdapter()
        self.preprocessor = CountingPreprocessor()
        self.backend = EagerBackend(device=torch.device('cpu'))
        self.session = Session(
            self.adapter, self.preprocessor, postprocessor, self.backend, mode=mode
        )

    def act(self, start: float = 0.0) -> float:
        action = self.session.select_action(observe(start))
        assert action.shape == (ACTION_SIZE,)
        assert action.dtype == np.float32
        assert action[0] == action[1]
        return float(action[0])


@pytest.fixture
def queue() -> Rig:
    return Rig(QUEUE)


@pytest.fixture
def ensemble() -> Rig:
    return Rig(ENSEMBLE)


def test_queue_plays_its_rows_and_then_infers_from_the_new_observation(queue: Rig) -> None:
    assert [queue.act(start) for start in (0, 10, 20, 30, 40)] == [0, 1, 2, 30, 31]
    assert queue.adapter.predictions == 2


def test_a_full_queue_costs_no_preprocessing(queue: Rig) -> None:
    for _ in range(3):
        queue.act()
    assert queue.preprocessor.calls == 1
    assert queue.session.queue_depth == 0


def test_a_bad_observation_is_refused_even_while_the_queue_is_full(queue: Rig) -> None:
    queue.act()
    with pytest.raises(ObservationError):
        queue.session.select_action(observe(float('nan')))
    assert queue.act() == 1


def test_reset_empties_the_queue(queue: Rig) -> None:
    queue.act()
    queue.session.reset()
    assert queue.session.queue_depth == 0
    assert queue.act(50) == 50


def test_the_queue_holds_postprocessed_rows() -> None:
    rig = Rig(QUEUE, postprocessor=double)
    assert [rig.act(1) for _ in range(3)] == [2, 4, 6]


def test_ensemble_infers_at_every_step_and_averages(ensemble: Rig) -> None:
    first, second = ensemble.act(0), ensemble.act(10)
    old, new = 1.0, np.exp(-0.1)
    assert first == 0
    assert second == pytest.approx((1 * old + 10 * new) / (old + new), rel=1e-6)
    assert ensemble.preprocessor.calls == ensemble.adapter.predictions == 2


def test_ensemble_averages_before_postprocessing() -> None:
    def square(actions: torch.Tensor) -> torch.Tensor:
        return actions.square()

    rig = Rig(ENSEMBLE, postprocessor=square)
    plain = Rig(ENSEMBLE)
    starts = (3, 5, 8)
    assert [rig.act(s) for s in starts] == pytest.approx([plain.act(s) ** 2 for s in starts])


def test_ensemble_runs_on_for_longer_than_a_chunk(ensemble: Rig) -> None:
    # Row i of a chunk made at step s says s + i, so all chunks agree.
    steps = 4 * CHUNK_SIZE
    assert [ensemble.act(step) for step in range(steps)] == pytest.approx(list(range(steps)))


def test_reset_empties_the_ensemble(ensemble: Rig) -> None:
    ensemble.act(0)
    ensemble.session.reset()
    assert ensemble.act(50) == 50


def test_reset_empties_the_memory_of_the_policy(queue: Rig) -> None:
    queue.act()
    memory = queue.session._context.memory
    assert memory
    queue.session.reset()
    assert not memory


@pytest.mark.parametrize('mode', [QUEUE, ENSEMBLE], ids=['queue', 'ensemble'])
def test_predict_chunk_disturbs_no_episode(mode: SessionMode) -> None:
    rig, undisturbed = Rig(mode), Rig(mode)
    for step in range(8):
        chunk = rig.session.predict_chunk(observe(99))
        assert chunk.shape == (CHUNK_SIZE, ACTION_SIZE)
        assert rig.act(step) == undisturbed.act(step)


@pytest.mark.parametrize('mode', [QUEUE, ENSEMBLE], ids=['queue', 'ensemble'])
def test_warm_up_disturbs_no_episode(mode: SessionMode) -> None:
    rig, undisturbed = Rig(mode), Rig(mode)
    for step in range(8):
        rig.session.warm_up()
        assert rig.act(step) == undisturbed.act(step)


def test_results_never_share_the_buffers_of_the_policy(queue: Rig) -> None:
    chunk = queue.session.predict_chunk(observe(0))
    queue.session.predict_chunk(observe(100))
    np.testing.assert_array_equal(chunk[:, 0], np.arange(CHUNK_SIZE))
    chunk[:] = -1
    assert queue.adapter.buffer.min() >= 0


@pytest.mark.parametrize('mode', [QUEUE, ENSEMBLE], ids=['queue', 'ensemble'])
def test_a_result_can_be_overwritten_without_changing_the_next(mode: SessionMode) -> None:
    rig, undisturbed = Rig(mode), Rig(mode)
    for step in range(6):
        action = rig.session.select_action(observe(step))
        action[:] = 1e6
        np.testing.assert_array_equal(
            rig.session.select_action(observe(step)),
            [undisturbed.session.select_action(observe(step)) for _ in range(2)][1],
        )


@pytest.mark.parametrize('mode', [QUEUE, ENSEMBLE], ids=['queue', 'ensemble'])
def test_a_non_finite_output_is_refused_and_not_kept(mode: SessionMode) -> None:
    rig = Rig(mode)
    poison = rig.adapter._ramp

    def region(state: torch.Tensor) -> torch.Tensor:
        chunk = poison(state)
        if state[0, 0] == 7:
            chunk[0, 0, 1] = torch.nan
        return chunk

    rig.adapter._ramp = region
    session = Session(rig.adapter, rig.preprocessor, identity, rig.backend, mode=mode)
    with pytest.raises(ActionError, match='columns 1'):
        session.select_action(observe(7))
    assert session.queue_depth == 0
    assert session.select_action(observe(20))[0] == 20


def test_an_output_of_another_shape_is_refused() -> None:
    rig = Rig(QUEUE)
    rig.adapter.buffer = torch.zeros(1, CHUNK_SIZE, ACTION_SIZE + 1)
    with pytest.raises(ActionError, match=r'shape \(1, 5, 3\); expected shape \(1, 5, 2\)'):
        rig.act()


def test_noise_reaches_the_policy(queue: Rig) -> None:
    noise = torch.ones(1)
    queue.session.predict_chunk(observe(), noise=noise)
    assert queue.adapter.last_noise is noise
    queue.session.predict_chunk(observe())
    assert queue.adapter.last_noise is None


def test_after_warm_up_and_seal_the_usual_observation_is_served(queue: Rig) -> None:
    queue.session.warm_up()
    queue.session.seal()
    assert queue.act(4) == 4


def test_sealing_without_warm_up_refuses_the_first_inference(queue: Rig) -> None:
    queue.session.seal()
    with pytest.raises(BackendError, match='inputs seen before sealing: none'):
        queue.act()


def test_timing_covers_the_last_inference_and_its_parts(queue: Rig) -> None:
    assert queue.session.last_timing.total_s == 0
    queue.act()
    timing = queue.session.last_timing
    assert min(timing.preprocess_s, timing.model_s, timing.postprocess_s) > 0
    assert timing.total_s == pytest.approx(
        timing.preprocess_s + timing.model_s + timing.postprocess_s
    )
    queue.act()
    assert queue.session.last_timing is timing


def test_the_checkpoint_decides_the_mode_unless_told_otherwise() -> None:
    backend = EagerBackend(device=torch.device('cpu'))
    session = Session(RampAdapter(), CountingPreprocessor(), identity, backend)
    assert session.mode == QUEUE
    adapter = RampAdapter(n_action_steps=1, temporal_ensemble_coeff=0.1)
    assert Session(adapter, CountingPreprocessor(), identity, backend).mode == ENSEMBLE


def test_results_carry_no_gradient_and_inference_mode_does_not_leak(queue: Rig) -> None:
    queue.act()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_sources_are_named_as_the_preprocessor_expects_them() -> None:
    preprocessor = CountingPreprocessor()
    session = Session(
        RampAdapter(),
        preprocessor,
        identity,
        EagerBackend(device=torch.device('cpu')),
        source_keys={'observation.images.front': 'observation.images.cam_high'},
    )
    session.predict_chunk(observe())
    assert preprocessor.keys == {'observation.images.cam_high', 'observation.state'}

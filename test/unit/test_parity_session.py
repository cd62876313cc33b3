"""One inference, both spaces: what parity compares is what the node publishes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from session_helpers import CHUNK_SIZE, CountingPreprocessor, RampAdapter, double, observe

from sparkrt_ros.runtime.backends.base import BaseBackend, Region, Specialise
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.errors import ActionError, BackendError
from sparkrt_ros.runtime.policy import Policy
from sparkrt_ros.runtime.session import Session

CPU = torch.device('cpu')


class WholeBackend(BaseBackend):
    """Takes whole predictions, like a backend that records them, and counts."""

    name = 'whole'
    whole_chunk = True
    calls = 0

    def _prepare(self, region: Region) -> Specialise:
        def run(*inputs):
            self.calls += 1
            return region.fn(*inputs)

        return lambda: run


class CapturableRamp(RampAdapter):
    def regions(self) -> tuple[Region, ...]:
        return (Region(name='ramp', fn=self._ramp, capturable=True),)


class NoisyRamp(RampAdapter):
    """Adds its noise, as an iterative policy starts from it."""

    def predict_chunk(self, context, batch, *, noise):
        chunk = super().predict_chunk(context, batch, noise=noise)
        return chunk if noise is None else chunk + noise


def session(adapter: RampAdapter, backend=None) -> Session:
    backend = EagerBackend(device=CPU) if backend is None else backend
    return Session(adapter, CountingPreprocessor(), double, backend)


def test_both_spaces_come_from_one_inference() -> None:
    adapter = RampAdapter()
    normalized, actions = session(adapter).predict_both(observe(3))
    assert adapter.predictions == 1
    np.testing.assert_array_equal(normalized[:, 0], 3 + np.arange(CHUNK_SIZE))
    np.testing.assert_array_equal(actions, 2 * normalized)


def test_it_is_what_predict_chunk_and_infer_normalized_say() -> None:
    made = session(RampAdapter())
    normalized, actions = made.predict_both(observe(0.1))
    np.testing.assert_array_equal(actions, made.predict_chunk(observe(0.1)))
    np.testing.assert_array_equal(normalized, made.infer_normalized(observe(0.1)))


def test_a_recorded_prediction_is_not_bypassed() -> None:
    backend = WholeBackend(device=CPU)
    made = session(CapturableRamp(), backend)
    normalized, actions = made.predict_both(observe(3))
    assert backend.calls == 1
    np.testing.assert_array_equal(normalized[:, 0], 3 + np.arange(CHUNK_SIZE))
    np.testing.assert_array_equal(actions, 2 * normalized)


@pytest.mark.parametrize('whole', [False, True])
def test_both_are_the_callers_to_keep(whole: bool) -> None:
    backend = WholeBackend(device=CPU) if whole else EagerBackend(device=CPU)
    made = session(CapturableRamp(), backend)
    kept = made.predict_both(observe(0))
    made.predict_both(observe(100))
    assert kept[0].max() < 100
    assert kept[1].max() < 100


def test_noise_reaches_the_adapter_and_decides_the_chunk() -> None:
    adapter = NoisyRamp()
    made = session(adapter)
    noise = torch.full((1, CHUNK_SIZE, 2), 0.25)
    normalized, actions = made.predict_both(observe(3), noise=noise)
    assert adapter.last_noise is noise
    np.testing.assert_array_equal(normalized[:, 0], 3.25 + np.arange(CHUNK_SIZE))
    np.testing.assert_array_equal(actions, 2 * normalized)
    np.testing.assert_array_equal(actions, made.predict_chunk(observe(3), noise=noise))


def test_an_output_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ActionError):
        session(NoisyRamp()).predict_both(observe(), noise=torch.full((1, CHUNK_SIZE, 2), np.nan))


def test_a_policy_offers_it_while_it_is_open() -> None:
    made = session(RampAdapter())
    policy = Policy(made, capabilities=RampAdapter().capabilities, receipt={})
    normalized, actions = policy.predict_both(observe(1))
    np.testing.assert_array_equal(actions, 2 * normalized)
    policy.close()
    with pytest.raises(BackendError, match='closed'):
        policy.predict_both(observe(1))

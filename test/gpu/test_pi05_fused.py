"""The fused Pi0.5 and Pi0 at full size: own kernels, one recording, the chunk of the reference.

Needs about 30 GB of device memory. Run with ``-o log_cli_level=INFO`` to see what was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from test_pi05_full import BF16_COSINE, CUDA, RandomWeights, draw, free, make_config, observe
from test_pi05_full import make_session as session_of

from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend
from sparkrt_ros.runtime.backends.eager import EagerBackend
from sparkrt_ros.runtime.parity import compare
from sparkrt_ros.runtime.policies.pi_adapter import PiAdapter
from sparkrt_ros.runtime.policies.pi_fused import FusedPi
from sparkrt_ros.runtime.precision.tiers import TIERS

_log = logging.getLogger(__name__)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(580)]


@pytest.fixture(scope='module', params=['pi05', 'pi0'])
def forms(request: pytest.FixtureRequest) -> Iterator[tuple[PiAdapter, PiAdapter]]:
    config = make_config(request.param, 'bfloat16')
    full = PiAdapter(config, RandomWeights(config, device=CUDA), device=CUDA)
    fused = full.fused(TIERS['bf16'])
    for note in fused.notes:
        _log.info('%s', note)
    yield full, fused
    del full, fused
    free(CUDA)


def test_own_kernels_serve(forms: tuple[PiAdapter, PiAdapter]) -> None:
    _, fused = forms
    assert isinstance(fused.served, FusedPi)
    assert not [note for note in fused.notes if 'fails' in note or 'differs' in note]


def test_one_recording_gives_the_chunk_of_the_reference(
    forms: tuple[PiAdapter, PiAdapter],
) -> None:
    full, fused = forms
    reference = session_of(full, EagerBackend(device=CUDA))
    captured = session_of(fused, CudaGraphBackend(device=CUDA))
    captured.warm_up()
    captured.seal()
    before = captured.report()['chunk']
    assert before['reason'] == ''
    for seed, words in enumerate((1, 8, 20)):
        observation, noise = observe(seed, words), draw(f'noise {seed}', 50, 32)
        found = captured.predict_chunk(observation, noise=noise)
        agreement = compare(found, reference.predict_chunk(observation, noise=noise))
        _log.info('%s words: %s', words, agreement)
        assert agreement.cosine >= BF16_COSINE
        assert captured.predict_chunk(observation, noise=noise).tobytes() == found.tobytes()
    after = captured.report()['chunk']
    assert after['recordings'] == before['recordings'] == 3
    assert after['eager_calls'] == 0


def test_the_decoders_are_held_once_in_two_bytes(forms: tuple[PiAdapter, PiAdapter]) -> None:
    full, _ = forms
    held = torch.cuda.memory_allocated()
    other = full.fused(TIERS['bf16'])
    assert torch.cuda.memory_allocated() - held < 7.5e9
    del other
    free(CUDA)

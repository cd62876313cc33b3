"""Pi0.5 and Pi0 from camera pixels to actions as one recording per length of prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pi_folder import PI_SESSIONS, write_pi_folder

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.host_inputs import Continuation
from sparkrt_ros.runtime.parity import compare
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import Observation
from sparkrt_ros.runtime.vla_config import RtcConfig, StatePromptConfig, VlaConfig

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-4
LENGTHS = StatePromptConfig(lengths=(36, 40))


def load(folder: Path, *, backend: str = 'cudagraph', **vla: Any) -> Policy:
    choices = VlaConfig(state_prompt=LENGTHS, **vla)
    policy = load_policy(folder, config=RuntimeConfig(backend=backend, device='cuda', vla=choices))
    policy.warm_up()
    return policy


def observe(name: str, step: int) -> Observation:
    session = PI_SESSIONS[name]
    arrays = session.observation(step)
    images = {key: value for key, value in arrays.items() if 'images' in key}
    task = session.tasks[step] or 'go'
    return Observation(images=images, state=arrays['observation.state'], task=task)


def region(policy: Policy) -> dict[str, Any]:
    found: dict[str, Any] = policy.receipt['regions']['chunk']
    return found


@pytest.mark.parametrize('name', PI_SESSIONS)
def test_recordings_are_made_before_the_policy_acts_and_equal_the_reference(
    name: str, tmp_path: Path
) -> None:
    session = PI_SESSIONS[name]
    folder = write_pi_folder(name, tmp_path / 'policy')
    captured, reference = load(folder), load(folder, backend='eager')
    assert captured.receipt['refused'] == []
    before = region(captured)
    assert before['reason'] == ''
    for step in range(len(session.tasks)):
        noise = torch.from_numpy(session.noise(step))
        wanted = reference.predict_chunk(observe(name, step), noise=noise)
        found = captured.predict_chunk(observe(name, step), noise=noise)
        assert np.abs(found - wanted).max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))
    after = region(captured)
    assert after['recordings'] == before['recordings']
    assert after['replays'] == before['replays'] + len(session.tasks)
    assert after['eager_calls'] == 0


def test_one_recording_serves_every_delay(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    rtc = RtcConfig(execution_horizon=4)
    captured, reference = load(folder, rtc=rtc), load(folder, backend='eager', rtc=rtc)
    before = region(captured)['recordings']
    noise = torch.from_numpy(PI_SESSIONS['pi05'].noise(0))
    chunks = []
    for delay, horizon, rows in ((0, 4, 6), (2, 4, 6), (2, 6, 3), (1, None, 1)):
        previous = Continuation(
            actions=np.full((rows, 7), 0.3, np.float32), delay=delay, horizon=horizon
        )
        found, wanted = (
            policy.predict_chunk(observe('pi05', 0), noise=noise, continuation=previous)
            for policy in (captured, reference)
        )
        assert compare(found, wanted).max_abs <= TOLERANCE
        chunks.append(found)
    assert all(not np.array_equal(chunks[0], other) for other in chunks[1:])
    assert region(captured)['recordings'] == before


def test_guidance_is_recorded_too(tmp_path: Path) -> None:
    folder = write_pi_folder('pi0', tmp_path / 'policy')
    noise = torch.from_numpy(PI_SESSIONS['pi0'].noise(0))
    captured, reference = (
        load(folder, backend=backend, cfg_beta=1.5) for backend in ('cudagraph', 'eager')
    )
    found, wanted = (
        policy.predict_chunk(observe('pi0', 0), noise=noise) for policy in (captured, reference)
    )
    assert compare(found, wanted).max_abs <= TOLERANCE
    recordings = region(captured)['recordings']
    for policy in (captured, reference):
        policy.guide(0.4)
    weaker, wanted = (
        policy.predict_chunk(observe('pi0', 0), noise=noise) for policy in (captured, reference)
    )
    assert compare(weaker, wanted).max_abs <= TOLERANCE
    assert np.abs(weaker - found).max() > 1e-3
    assert region(captured)['recordings'] == recordings
    assert region(captured)['eager_calls'] == 0


def test_noise_of_its_own_differs_from_chunk_to_chunk(tmp_path: Path) -> None:
    folder = write_pi_folder('pi05', tmp_path / 'policy')
    with load(folder, seed=3) as policy:
        first, second = (policy.predict_chunk(observe('pi05', 0)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    with load(folder, seed=3) as policy:
        np.testing.assert_array_equal(policy.predict_chunk(observe('pi05', 0)), first)

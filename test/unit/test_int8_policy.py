"""Precision int8 from a policy folder to its receipt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from int8_reference import needs_int8
from test_policy import observe

from sparkrt_ros.runtime import planning
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError, ConfigError
from sparkrt_ros.runtime.kernels import int8_support
from sparkrt_ros.runtime.kernels.recording import Recorder
from sparkrt_ros.runtime.observation_file import write_observations
from sparkrt_ros.runtime.parity import compare
from sparkrt_ros.runtime.planning import Form, candidates
from sparkrt_ros.runtime.policies.act_adapter import ActAdapter
from sparkrt_ros.runtime.policies.fused_resnet import FusedResNet
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.precision import calibrating
from sparkrt_ros.runtime.precision.calibration import Calibration
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.types import Observation

INT8 = RuntimeConfig(device='cpu', precision='int8', num_threads=1)
CPU = torch.device('cpu')
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.usefixtures('one_thread')


def served(policy: Policy) -> tuple[str, str]:
    return policy.receipt['backend'], policy.receipt['precision']


def reasons(policy: Policy) -> str:
    return '; '.join(f'{item["form"]}: {item["reason"]}' for item in policy.receipt['refused'])


def with_gate(monkeypatch: Patch, name: str, **changes: float) -> None:
    changed = {**TIERS, name: replace(TIERS[name], **changes)}
    monkeypatch.setattr(planning, 'TIERS', MappingProxyType(changed))


@needs_int8
def test_it_serves_and_its_receipt_says_from_what(act_folder: Path) -> None:
    policy = load_policy(act_folder, config=INT8)
    receipt = policy.receipt
    assert served(policy) == ('fused', 'int8')
    assert receipt['refused'] == []
    assert receipt['calibration']['source'] == 'synthetic pictures and vectors'
    assert receipt['calibration']['coverage'] in calibrating.COVERAGES
    assert receipt['gate']['cosine'] >= TIERS['int8'].min_cosine
    assert json.loads(json.dumps(receipt)) == receipt
    policy.warm_up()
    policy.predict_chunk(observe())


@needs_int8
def test_it_stays_near_fp32_and_is_not_it(act_folder: Path) -> None:
    fast = load_policy(act_folder, config=INT8).predict_chunk(observe(7))
    exact = load_policy(act_folder, config=INT8.with_changes(precision='fp32'))
    agreement = compare(fast, exact.predict_chunk(observe(7)))
    assert agreement.cosine > 0.99
    assert agreement.max_abs > 0


@needs_int8
def test_loaded_twice_it_gives_the_same_bits(act_folder: Path) -> None:
    one, other = (load_policy(act_folder, config=INT8) for _ in range(2))
    np.testing.assert_array_equal(one.predict_chunk(observe()), other.predict_chunk(observe()))


@needs_int8
@pytest.mark.parametrize('from_file', [False, True])
def test_it_is_calibrated_and_judged_by_given_observations(
    act_folder: Path, tmp_path: Path, monkeypatch: Patch, from_file: bool
) -> None:
    given = [
        replace(one, images={f'observation.images.{k}': v for k, v in one.images.items()})
        for one in map(observe, range(9))
    ]
    judged: list[Observation] = []
    gate = planning.gate

    def listen(candidate: object, reference: object, observations: object, **limits: float):
        judged.extend(observations)  # type: ignore[arg-type]
        return gate(candidate, reference, observations, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(planning, 'gate', listen)
    if from_file:
        path = tmp_path / 'frames.npz'
        write_observations(path, given)
        policy = load_policy(act_folder, config=INT8.with_changes(calibration=str(path)))
        assert policy.receipt['calibration']['source'] == str(path)
    else:
        policy = load_policy(act_folder, config=INT8, calibration=given)
        assert policy.receipt['calibration']['source'] == 'observations of the caller'
    assert policy.receipt['calibration']['observations'] == 7
    assert served(policy) == ('fused', 'int8')
    np.testing.assert_array_equal(
        [one.state for one in judged], [given[index].state for index in (3, 7)]
    )


@needs_int8
@pytest.mark.parametrize('coverages', [(1.0, 0.5), (0.5, 1.0)])
def test_the_ranges_with_the_least_error_serve(
    act_folder: Path, monkeypatch: Patch, coverages: tuple[float, float]
) -> None:
    monkeypatch.setattr(calibrating, 'COVERAGES', coverages)
    policy = load_policy(act_folder, config=INT8)
    assert policy.receipt['calibration']['coverage'] == 1.0


@needs_int8
def test_the_levels_of_pixels_are_those_of_the_camera(
    act_folder: Path, monkeypatch: Patch
) -> None:
    """Even where no observation of the calibration reaches from black to white."""
    used: list[Calibration] = []
    calibrated = ActAdapter.calibrated

    def listen(self: ActAdapter, calibration: Calibration) -> ActAdapter:
        used.append(calibration)
        return calibrated(self, calibration)

    monkeypatch.setattr(ActAdapter, 'calibrated', listen)
    grey = {name: np.full((64, 64, 3), 90, np.uint8) for name in ('front', 'wrist')}
    given = [replace(observe(seed), images=grey) for seed in range(8)]
    load_policy(act_folder, config=INT8, calibration=given)
    pixels = used[0].levels(FusedResNet.PIXELS)
    session = load_policy(act_folder, config=INT8.with_changes(precision='fp32'))._session
    assert session is not None
    black, white = (
        torch.cat(
            session.network_images(
                replace(observe(), images={name: np.full_like(grey[name], value) for name in grey})
            )
        )
        for value in (0, 255)
    )
    np.testing.assert_allclose(pixels.low, black.amin(dim=(0, 2, 3)), rtol=1e-6)
    ends = pixels.low + 255 * pixels.step
    np.testing.assert_allclose(ends, white.amax(dim=(0, 2, 3)), rtol=1e-6)


def test_a_missing_file_of_observations_is_told_whatever_the_precision(act_folder: Path) -> None:
    config = RuntimeConfig(device='cpu', calibration='nowhere.npz')
    with pytest.raises(ConfigError, match=r'nowhere\.npz'):
        load_policy(act_folder, config=config)


@needs_int8
def test_what_fails_its_gate_gives_way_with_the_reason(
    act_folder: Path, monkeypatch: Patch
) -> None:
    with_gate(monkeypatch, 'int8', min_cosine=1.1)
    monkeypatch.setattr(planning, 'cpu_flags', lambda: frozenset({'avx512_bf16'}))
    policy = load_policy(act_folder, config=INT8)
    assert served(policy) == ('fused', 'bf16')
    assert 'fused, int8: gate failed: cosine' in reasons(policy)
    assert policy.receipt['calibration'] is None


@needs_int8
def test_a_network_that_leaves_the_numbers_gives_way_with_the_reason(
    act_folder: Path, monkeypatch: Patch
) -> None:
    note = Recorder.note

    def overflow(self: Recorder, name: str, x: torch.Tensor) -> None:
        note(self, name, x * float('inf') if name == 'encoder.0.fed' else x)

    monkeypatch.setattr(Recorder, 'note', overflow)
    policy = load_policy(act_folder, config=INT8)
    assert policy.receipt['precision'] != 'int8'
    assert 'calibration: found a range from' in reasons(policy)


def test_what_the_processor_cannot_do_gives_way_with_the_reason(
    act_folder: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(int8_support, 'cpu_flags', lambda: frozenset({'avx2'}))
    monkeypatch.setattr(planning, 'cpu_flags', lambda: frozenset({'avx2'}))
    policy = load_policy(act_folder, config=INT8)
    assert served(policy) == ('fused', 'fp32')
    assert 'without int8 instructions' in reasons(policy)


def test_bf16_comes_after_int8_only_where_the_processor_is_fast_at_it(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(planning, 'cpu_flags', lambda: frozenset({'avx512_bf16'}))
    tried = [form.precision for form in candidates(INT8, device=CPU)]
    assert tried == ['int8', 'bf16', 'fp32', 'fp32']
    monkeypatch.setattr(planning, 'cpu_flags', frozenset)
    assert [form.precision for form in candidates(INT8, device=CPU)] == ['int8', 'fp32', 'fp32']
    assert Form(backend='cudagraph', precision='bf16') in candidates(
        INT8, device=torch.device('cuda', 0)
    )


def test_other_backends_do_not_compute_it(act_folder: Path) -> None:
    policy = load_policy(act_folder, config=INT8.with_changes(backend='eager'))
    assert served(policy) == ('eager', 'fp32')
    assert 'eager, int8: precision int8: found backend eager' in reasons(policy)


def test_a_policy_without_such_a_form_is_refused_by_name(
    act_folder: Path, monkeypatch: Patch
) -> None:
    monkeypatch.delattr(ActAdapter, 'calibrated')
    policy = load_policy(act_folder, config=INT8)
    assert policy.receipt['precision'] != 'int8'
    assert 'precision int8: found a act policy' in reasons(policy)


def test_int8_without_a_calibration_is_an_error(act_folder: Path) -> None:
    policy = load_policy(act_folder, config=RuntimeConfig(device='cpu', backend='eager'))
    adapter = policy._session._adapter  # type: ignore[union-attr]
    with pytest.raises(BackendError, match='no calibration'):
        adapter.fused(TIERS['int8'])

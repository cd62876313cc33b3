"""The fused Pi0 and Pi0.5 against the networks as written: the same sums in another order."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from pi_folder import CPU, PI_CASES, PiInputs, make_adapter, make_batch
from torch import Tensor

from sparkrt_ros.runtime.checkpoint.features import STATE_KEY
from sparkrt_ros.runtime.checkpoint.pi_sizes import GEMMA_VARIANTS
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.host_inputs import COUNTS_KEY, TOKENS_KEY
from sparkrt_ros.runtime.kernels.pi_choice import choose_pi_ops, judge
from sparkrt_ros.runtime.kernels.pi_ops import PLAIN, PiOps
from sparkrt_ros.runtime.kernels.pi_trial import Trial
from sparkrt_ros.runtime.policies.flow_matching import make_plan
from sparkrt_ros.runtime.policies.pi_fused import FusedPi, choose_vision_dtype
from sparkrt_ros.runtime.policies.pi_network import PiNetwork, sample
from sparkrt_ros.runtime.policies.rtc import PreviousChunk, prefix_weights
from sparkrt_ros.runtime.processors.images import prepare_image

pytestmark = pytest.mark.usefixtures('one_thread')

INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'
TINY = GEMMA_VARIANTS['tiny_expert']
PLAN = make_plan(steps=3)
KINDS = ['pi05', 'pi0']
TOLERANCE = 2e-5


@pytest.fixture(params=['plain', 'triton'])
def ops(request: pytest.FixtureRequest) -> PiOps:
    if request.param == 'plain':
        return PLAIN
    if not INTERPRETED:
        pytest.skip("Triton's interpreter is not on: set TRITON_INTERPRET=1")
    from sparkrt_ros.runtime.kernels.pi_triton import TritonOps

    return TritonOps().ops()


def fuse(network: PiNetwork, ops: PiOps = PLAIN) -> FusedPi:
    return FusedPi(
        network, times=PLAN.times, ops=ops, dtype=torch.float32, vision_dtype=torch.float32
    )


def inputs_of(kind: str, network: PiNetwork, inputs: PiInputs) -> dict[str, object]:
    batch = make_batch(PI_CASES[kind], inputs, 'one')
    side = network.config.image_resolution[0]
    state = torch.nn.functional.pad(batch[STATE_KEY], (0, 32 - batch[STATE_KEY].shape[-1]))
    return {
        'images': [prepare_image(value, side) for key, value in batch.items() if 'images' in key],
        'tokens': batch[TOKENS_KEY],
        'counts': batch[COUNTS_KEY],
        'state': state if kind == 'pi0' else None,
        'noise': torch.from_numpy(inputs.noise('noise')),
    }


def chunk(network: object, given: dict[str, object], moments: object, **options: object) -> Tensor:
    mask = options.pop('image_mask', None)
    prefix = network.encode(given['images'], given['tokens'], given['counts'], image_mask=mask)
    scene = network.scene(prefix, given['state'])
    return sample(network, scene, given['noise'], plan=PLAN, moments=moments, **options)


@torch.inference_mode()
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('counts', [(13,), (24, 5)])
def test_a_fused_chunk_is_that_of_the_network(
    kind: str, counts: tuple[int, ...], ops: PiOps
) -> None:
    network = make_adapter(PI_CASES[kind]).network
    given = inputs_of(kind, network, PiInputs(counts=counts))
    mask = torch.ones(len(counts), len(given['images']), dtype=torch.bool)
    mask[-1, 1] = False
    fused = fuse(network, ops)
    wanted = chunk(network, given, network.moments(PLAN.times), image_mask=mask)
    found = chunk(fused, given, fused.moments, image_mask=mask)
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


@torch.inference_mode()
@pytest.mark.parametrize('kind', KINDS)
def test_guidance_and_continuation_bend_it_alike(kind: str) -> None:
    network = make_adapter(PI_CASES[kind]).network
    given = inputs_of(kind, network, PiInputs(counts=(13, 7)))
    for key in ('state', 'noise'):
        given[key] = given[key] if given[key] is None else given[key][:1]
    given['images'] = [image[:1] for image in given['images']]
    weights = prefix_weights(torch.tensor([2]), torch.tensor([4]), rows=6)
    previous = PreviousChunk(actions=torch.ones(1, 6, 32), weights=weights)
    fused = fuse(network)
    options = {'previous': previous, 'cfg_beta': 1.7}
    wanted = chunk(network, given, network.moments(PLAN.times), **options)
    found = chunk(fused, given, fused.moments, **options)
    torch.testing.assert_close(found, wanted, rtol=0, atol=10 * TOLERANCE)


@torch.inference_mode()
def test_a_fused_form_outlives_what_it_was_made_of() -> None:
    network = make_adapter(PI_CASES['pi05']).network
    fused = fuse(network)
    assert not {'vision', 'language', 'expert'} & set(fused._small._modules)
    given = inputs_of('pi05', network, PiInputs())
    wanted = chunk(fused, given, fused.moments)
    del network
    assert torch.equal(chunk(fused, given, fused.moments), wanted)


@torch.inference_mode()
def test_every_operation_is_tried_and_a_wrong_one_is_named() -> None:
    trial = Trial(TINY, device=CPU, dtype=torch.float32, tokens=6, prefix=20)
    assert set(trial.calls) == set(PLAIN.__dataclass_fields__)
    for name, call in trial.calls.items():
        plain = getattr(PLAIN, name)
        assert judge(call, plain, plain, timed=False, layers=3)[0] == '', name
        assert all(bool(x.isfinite().all()) for x in call(plain, 1)), name
    assert trial.chain(PLAIN)[0].isfinite().all()

    def wrong(*arguments: object, **named: object) -> Tensor:
        return PLAIN.geglu(*arguments, **named) * 1.5

    def broken(*arguments: object) -> Tensor:
        raise RuntimeError('no such kernel\nat line 1')

    reasons = [
        judge(trial.calls['geglu'], one, PLAIN.geglu, timed=False, layers=3)[0]
        for one in (wrong, broken)
    ]
    assert reasons[0].startswith('differs from the plain operation')
    assert reasons[1] == 'fails: no such kernel'


@torch.inference_mode()
@pytest.mark.skipif(not INTERPRETED, reason="Triton's interpreter is not on")
def test_kernels_pass_their_own_trial() -> None:
    from sparkrt_ros.runtime.kernels.pi_settings import CANDIDATES
    from sparkrt_ros.runtime.kernels.pi_triton import TritonOps

    sizes = replace(TINY, width=64, mlp_width=128, head_dim=32)
    trial = Trial(sizes, device=CPU, dtype=torch.float32, tokens=6, prefix=20)
    for name, call in trial.calls.items():
        for setting in CANDIDATES.get(name, (None,)):
            settings = {} if setting is None else {name: setting}
            op = getattr(TritonOps(settings=settings).ops(), name)
            reason, _ = judge(call, op, getattr(PLAIN, name), timed=False, layers=3)
            assert reason == '', f'{name} {setting}'
    torch.testing.assert_close(
        trial.chain(TritonOps().ops())[0], trial.chain(PLAIN)[0], rtol=1e-4, atol=1e-4
    )


def test_a_device_without_kernels_has_plain_operations() -> None:
    choice = choose_pi_ops(TINY, device=CPU, dtype=torch.float32, tokens=6, prefix=20)
    assert choice.ops is PLAIN
    assert choice.notes == ('no kernels are known for cpu',)


def test_the_vision_tower_keeps_float32_only_where_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = make_adapter(PI_CASES['pi05']).network
    dtype, note = choose_vision_dtype(network, ops=PLAIN, dtype=torch.bfloat16)
    assert dtype is torch.bfloat16
    assert note.startswith('vision in bfloat16: cosine 0.999')
    monkeypatch.setattr('sparkrt_ros.runtime.policies.pi_fused.VISION_COSINE', 1.1)
    dtype, note = choose_vision_dtype(network, ops=PLAIN, dtype=torch.bfloat16)
    assert dtype is torch.float32
    assert note.startswith('vision in float32: in bfloat16 the cosine is')


def test_a_fused_policy_is_not_fused_again() -> None:
    adapter = make_adapter(PI_CASES['pi05'])
    adapter._fuse(adapter.network, torch.float32)
    assert isinstance(adapter.served, FusedPi)
    with pytest.raises(BackendError, match='a fused policy'):
        _ = adapter.network

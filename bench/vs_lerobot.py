"""LeRobot beside ours: the same weights, the same frames, one process, taking turns.

    python bench/vs_lerobot.py --backend fused --precision fp32 bf16

Needs lerobot 0.6.1 and this source tree on PYTHONPATH. Where LeRobot is not installed,
``--no-lerobot`` lets our own reference network stand in for it, under its own name.

Two measurements of every arm: the model alone, from normalised inputs on the device to the
normalised chunk; and the whole, from uint8 frames in host memory to actions in host memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec('sparkrt_ros') is None:
    sys.path.insert(0, str(ROOT))

from sparkrt_ros.runtime.backends.backend_config import BackendConfig  # noqa: E402
from sparkrt_ros.runtime.backends.base import ExecutionBackend  # noqa: E402
from sparkrt_ros.runtime.backends.registry import make_backend  # noqa: E402
from sparkrt_ros.runtime.bench import Spread  # noqa: E402
from sparkrt_ros.runtime.bench_machine import machine_facts  # noqa: E402
from sparkrt_ros.runtime.checkpoint.load import Checkpoint, load_checkpoint  # noqa: E402
from sparkrt_ros.runtime.config import RuntimeConfig  # noqa: E402
from sparkrt_ros.runtime.device import fp32_products, resolve_device  # noqa: E402
from sparkrt_ros.runtime.errors import SparkRTError  # noqa: E402
from sparkrt_ros.runtime.malloc import (  # noqa: E402
    keep_freed_memory,
    return_freed_memory,
)
from sparkrt_ros.runtime.packing import ObservationPacker  # noqa: E402
from sparkrt_ros.runtime.parity import compare, probe_observations  # noqa: E402
from sparkrt_ros.runtime.planning import REFERENCE, Form, candidates  # noqa: E402
from sparkrt_ros.runtime.policies.adapter import PolicyContext, make_context  # noqa: E402
from sparkrt_ros.runtime.policies.registry import make_adapter  # noqa: E402
from sparkrt_ros.runtime.policy import load_policy  # noqa: E402
from sparkrt_ros.runtime.precision.calibrating import calibrate  # noqa: E402
from sparkrt_ros.runtime.precision.samples import Samples  # noqa: E402
from sparkrt_ros.runtime.precision.tiers import TIERS  # noqa: E402
from sparkrt_ros.runtime.processors.pipeline import make_processors  # noqa: E402
from sparkrt_ros.runtime.session import Session  # noqa: E402
from sparkrt_ros.runtime.types import Observation  # noqa: E402
from sparkrt_ros.sim.random_policy import write_random_policy  # noqa: E402

WARM_UP = 3
OBSERVATIONS = 4
QUANTILES = ('min', 'p50', 'p95', 'p99', 'max')
Batch = dict[str, torch.Tensor]


@dataclass(kw_only=True)
class Arm:
    """One implementation. model: normalised inputs on the device -> normalised chunk there.

    whole: observation -> actions in host memory.
    """

    name: str
    model: Callable[[Batch], torch.Tensor]
    whole: Callable[[Observation], np.ndarray]
    model_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    chunks: list[np.ndarray] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        return self.name.startswith('sparkrt ')


# Theirs


def lerobot_arm(name: str, policy: Any, pre: Any, post: Any, device: torch.device) -> Arm:
    """LeRobot the way its own control loop uses it."""
    from lerobot.policies.utils import prepare_observation_for_inference

    def model(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return policy.predict_action_chunk(batch)

    def whole(observation: Observation) -> np.ndarray:
        arrays = {**observation.images, 'observation.state': observation.state}
        with torch.inference_mode():
            chunk = policy.predict_action_chunk(
                pre(prepare_observation_for_inference(arrays, device))
            )
            return post(chunk).to('cpu').numpy()[0]

    return Arm(name=name, model=model, whole=whole)


# Ours


def our_arm(form: Form, folder: Path, device: torch.device, *, threads: int) -> Arm:
    """One of our forms. Raises SparkRTError unless this very form serves."""
    config = RuntimeConfig(
        backend=form.backend, precision=form.precision, device=str(device), num_threads=threads
    )
    policy = load_policy(folder, config=config)
    policy.warm_up()
    receipt = policy.receipt
    served = Form(backend=receipt['backend'], precision=receipt['precision'])
    if served != form:
        reasons = '; '.join(f'{item["form"]}: {item["reason"]}' for item in receipt['refused'])
        raise SparkRTError(str(form), found=f'{served} serves: {reasons}', expected=str(form))
    return Arm(
        name=f'sparkrt {form}', model=_our_model(form, folder, device), whole=policy.predict_chunk
    )


def _our_model(form: Form, folder: Path, device: torch.device) -> Callable[[Batch], torch.Tensor]:
    adapter, checkpoint = _adapter(folder, device)
    tier = TIERS[form.precision]
    chosen = BackendConfig(kind=form.backend, allow_tf32=tier.allow_tf32)
    backend = make_backend(chosen, device=device)
    if tier.is_calibrated:
        make = partial(_session, checkpoint=checkpoint, backend=backend)
        samples = Samples.synthetic(adapter.capabilities)
        adapter = calibrate(adapter, samples, make_session=make).adapter
    elif not form.is_reference:
        adapter = adapter.fused(tier, plain_operators=form.backend in ('eager', 'torchcompile'))
    context = make_context(adapter.regions(), backend=backend)

    def model(batch: Batch) -> torch.Tensor:
        with torch.inference_mode():
            return adapter.predict_chunk(context, batch, noise=None)

    return model


def _session(adapter: Any, *, checkpoint: Checkpoint, backend: ExecutionBackend) -> Session:
    processors = make_processors(checkpoint, device=backend.device)
    keys = checkpoint.source_keys
    return Session(adapter, *processors, backend, source_keys=keys, channels_last=True)


def reference_compiled(folder: Path, device: torch.device) -> Arm:
    """Our reference network under torch.compile, between our own pre- and postprocessing."""
    adapter, checkpoint = _adapter(folder, device)
    (region,) = adapter.regions()
    mode = 'reduce-overhead' if device.type == 'cuda' else 'default'
    fast = torch.compile(region.fn, mode=mode, dynamic=False)
    context = PolicyContext(regions={region.name: fast})
    _, postprocess = make_processors(checkpoint, device=device)
    make_batch = batches_of(folder, device)

    def model(batch: Batch) -> torch.Tensor:
        with torch.inference_mode(), fp32_products(allow_tf32=False):
            return adapter.predict_chunk(context, batch, noise=None)

    def whole(observation: Observation) -> np.ndarray:
        with torch.inference_mode():
            return np.array(postprocess(model(make_batch(observation))).cpu().numpy()[0])

    return Arm(name='reference network, compiled', model=model, whole=whole)


def batches_of(folder: Path, device: torch.device) -> Callable[[Observation], Batch]:
    """Turns observations into the normalised inputs of the network, on the device."""
    adapter, checkpoint = _adapter(folder, device)
    packer = ObservationPacker(
        adapter.capabilities, device=device, source_keys=checkpoint.source_keys
    )
    preprocess, _ = make_processors(checkpoint, device=device)
    return lambda observation: dict(preprocess(packer.pack(packer.check(observation))))


def _adapter(folder: Path, device: torch.device) -> tuple[Any, Checkpoint]:
    checkpoint = load_checkpoint(folder)
    weights_file = str(checkpoint.weights_file)
    adapter = make_adapter(
        checkpoint.config, checkpoint.weights, device=device, weights_file=weights_file
    )
    return adapter, checkpoint


# All arms


def make_arms(
    options: argparse.Namespace, folder: Path, device: torch.device
) -> tuple[list[Arm], dict[str, str]]:
    """The peer as written, the peer compiled, and ours; and what is left out, with the reason."""
    arms: list[Arm] = []
    skipped: dict[str, str] = {}
    if options.no_lerobot:
        name = 'act-small' if options.small else 'act-480x640x2'
        write_random_policy(name, folder)
        arms.append(our_arm(REFERENCE, folder, device, threads=options.threads))
        arms[0].name = 'reference network, eager'
        compiled: Callable[[], Arm] = lambda: reference_compiled(folder, device)  # noqa: E731
    else:
        from lerobot_peer import compiled_copy, lerobot_folder

        policy, pre, post = lerobot_folder(folder, small=options.small, device=device)
        arms.append(lerobot_arm('LeRobot eager', policy, pre, post, device))
        compiled = lambda: lerobot_arm(  # noqa: E731
            'LeRobot compiled', compiled_copy(policy, device), pre, post, device
        )
    makers: dict[str, Callable[[], Arm]] = {} if options.no_compile else {'compiled': compiled}
    for form in our_forms(options, device):
        if not (options.no_lerobot and form.is_reference):
            makers[str(form)] = partial(our_arm, form, folder, device, threads=options.threads)
    make_batch = batches_of(folder, device)
    for name, make in makers.items():
        try:
            arms.append(tried(make(), folder, make_batch))
        except (SparkRTError, RuntimeError) as error:
            skipped[name] = str(error).strip().splitlines()[0]
    return arms, skipped


def our_forms(options: argparse.Namespace, device: torch.device) -> list[Form]:
    """Every combination asked for; ``auto`` is what it means on this device."""
    pairs = [(b, p) for b in options.backend for p in options.precision]
    configs = [RuntimeConfig(backend=b, precision=p) for b, p in pairs]
    return list(dict.fromkeys(candidates(config, device=device)[0] for config in configs))


def tried(arm: Arm, folder: Path, make_batch: Callable[[Observation], Batch]) -> Arm:
    """The arm after one run of each kind: what cannot run fails here, not among the rounds."""
    config = _adapter(folder, torch.device('cpu'))[0].capabilities
    observation = probe_observations(config, count=1)[0]
    arm.model(make_batch(observation))
    arm.whole(observation)
    return arm


# Measuring


def measure_whole(arm: Arm, observation: Observation, device: torch.device) -> np.ndarray:
    _wait(device)
    start = time.perf_counter()
    chunk = arm.whole(observation)
    arm.whole_s.append(time.perf_counter() - start)
    return chunk


def measure_model(arm: Arm, batch: Batch, device: torch.device) -> None:
    """On a GPU by events around the call, from an idle device; else by the clock."""
    _wait(device)
    if device.type != 'cuda':
        start = time.perf_counter()
        arm.model(batch)
        arm.model_s.append(time.perf_counter() - start)
        return
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    arm.model(batch)
    end.record()
    end.synchronize()
    arm.model_s.append(begin.elapsed_time(end) / 1e3)


def _wait(device: torch.device) -> None:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def take_turns(
    arms: Sequence[Arm],
    observations: Sequence[Observation],
    batches: Sequence[Batch],
    *,
    rounds: int,
    device: torch.device,
    threads: int,
) -> None:
    """Every arm once per round and measurement, another one first each time."""
    for number in range(-WARM_UP, rounds):
        index, first = number % len(observations), number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            torch.set_num_threads(threads)
            # Ours has the process keep freed memory; the others run as they do of themselves.
            keep_freed_memory() if arm.is_ours else return_freed_memory()
            measure_model(arm, batches[index], device)
            chunk = measure_whole(arm, observations[index], device)
            if 0 <= number < len(observations):
                arm.chunks.append(np.array(chunk))
        if number == -1:
            for arm in arms:
                arm.model_s.clear()
                arm.whole_s.clear()


# Reporting


def summarise(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Rows; ratios are of medians. Agreement is the worst over the first observations."""
    rows: list[dict[str, Any]] = []
    peers = {
        'eager': arms[0],
        'compiled': next((a for a in arms if a.name.endswith(' compiled')), None),
    }
    for arm in arms:
        pairs = zip(arm.chunks, arms[0].chunks, strict=True)
        agreements = [compare(found, wanted) for found, wanted in pairs]
        row: dict[str, Any] = {'arm': arm.name}
        for part in ('model', 'whole'):
            times = getattr(arm, f'{part}_s')
            row[part] = asdict(Spread.of(times))
            for label, peer in peers.items():
                if peer is not None and not (label == 'compiled' and peer is arms[0]):
                    ratio = np.median(getattr(peer, f'{part}_s')) / np.median(times)
                    row[part][f'times_{label}'] = float(ratio)
        row['max_abs'] = max(a.max_abs for a in agreements)
        row['cosine'] = min(a.cosine for a in agreements)
        rows.append(row)
    return rows


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    for part, title in (
        ('model', 'model only: normalised inputs on the device to the normalised chunk'),
        ('whole', 'whole: uint8 frames in host memory to actions in host memory'),
    ):
        print(f'\n{title} [ms]')
        print(
            f'{"arm":<28} {"min":>8} {"p50":>8} {"p95":>8} {"p99":>8} {"max":>8} '
            f'{"x eager":>8} {"x compiled":>10} {"max abs":>9} {"cosine":>10}'
        )
        for row in rows:
            times = row[part]
            spread = ' '.join(f'{times[f"{q}_ms"]:8.2f}' for q in QUANTILES)
            compiled = times.get('times_compiled')
            print(
                f'{row["arm"]:<28} {spread} {times["times_eager"]:8.2f} '
                f'{"-" if compiled is None else f"{compiled:.2f}":>10} '
                f'{row["max_abs"]:9.1e} {row["cosine"]:10.7f}'
            )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--backend', nargs='+', default=['auto'], help='of ours, one or more')
    parser.add_argument('--precision', nargs='+', default=['fp32', 'bf16'], help='one or more')
    parser.add_argument('--device', default='auto', help='cpu, cuda, cuda:N or auto')
    parser.add_argument('--threads', type=int, default=2, help='CPU threads of every arm')
    parser.add_argument('--rounds', type=int, default=30, help='rounds that count')
    parser.add_argument('--small', action='store_true', help='a small network and small pictures')
    parser.add_argument('--no-compile', action='store_true', help='leave the compiled peer out')
    parser.add_argument('--no-lerobot', action='store_true', help='our reference network instead')
    parser.add_argument('--json', type=Path, help='also write everything here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    device = resolve_device(options.device)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix='vs_lerobot_') as scratch:
        # Of its own: nothing is compiled beforehand, and nothing half-written is found.
        os.environ['TORCHINDUCTOR_CACHE_DIR'] = str(Path(scratch) / 'inductor')
        folder = Path(scratch) / 'policy'
        arms, skipped = make_arms(options, folder, device)
        make_batch = batches_of(folder, device)
        capabilities = _adapter(folder, torch.device('cpu'))[0].capabilities
        observations = probe_observations(capabilities, count=OBSERVATIONS)
        batches = [make_batch(observation) for observation in observations]
        take_turns(
            arms,
            observations,
            batches,
            rounds=max(options.rounds, OBSERVATIONS),
            device=device,
            threads=options.threads,
        )
    rows = summarise(arms)
    facts = {**machine_facts(device), 'threads': options.threads, 'rounds': len(arms[0].whole_s)}
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    for name, reason in skipped.items():
        print(f'left out: {name}: {reason}')
    print_rows(rows)
    if options.json:
        content = {'machine': facts, 'left_out': skipped, 'arms': rows}
        options.json.write_text(json.dumps(content, indent=2) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())

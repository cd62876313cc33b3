"""How long a policy takes in each of its forms, on the same weights and the same observations.

All arms live in one process and take turns, so that what else the machine does falls on each of
them alike. Warming up is measured apart; the collector of garbage stays on, as in a robot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.flop_counter import FlopCounterMode

from sparkrt_ros.runtime.bench_machine import (
    Ceilings,
    machine_facts,
    measure_ceilings,
    resident_bytes,
)
from sparkrt_ros.runtime.checkpoint.load import describe_checkpoint
from sparkrt_ros.runtime.checkpoint.report import report
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.device import resolve_device
from sparkrt_ros.runtime.parity import probe_observations
from sparkrt_ros.runtime.planning import Form
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.precision.tiers import TIERS

OBSERVATIONS = 4
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A distribution of times, in ms. p99 is a sample that occurred, not one between two.

    min: what the machine can do while nothing else wants it.
    """

    count: int
    min_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        milliseconds = np.asarray(seconds, dtype=np.float64) * 1e3
        quantiles = np.percentile(milliseconds, (0, 50, 95, 99, 100), method='higher')
        names = ('min_ms', 'p50_ms', 'p95_ms', 'p99_ms', 'max_ms')
        return cls(count=len(seconds), **dict(zip(names, map(float, quantiles), strict=True)))


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure. forms: asked for; what serves may be another. threads: see RuntimeConfig.

    repeat: predictions per arm; warmup: predictions per arm before them that do not count.
    """

    forms: tuple[Form, ...]
    device: str = 'auto'
    threads: int | None = None
    repeat: int = 50
    warmup: int = 3


@dataclass(kw_only=True)
class Arm:
    """One form of the policy, loaded and warm, and the seconds it took each time."""

    asked: Form
    policy: Policy
    load_s: float
    warm_up_s: float
    resident_added: int
    cuda_peak: int
    whole_s: list[float] = field(default_factory=list)
    model_s: list[float] = field(default_factory=list)

    @property
    def served(self) -> Form:
        receipt = self.policy.receipt
        return Form(backend=receipt['backend'], precision=receipt['precision'])

    def run(self, observation: Any) -> None:
        """One prediction, from pixels in host memory to actions in host memory."""
        start = time.perf_counter()
        self.policy.predict_chunk(observation)
        self.whole_s.append(time.perf_counter() - start)
        self.model_s.append(self.policy.last_timing.model_s)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one chunk costs at least. flop: of the network as written (two per multiply and add).

    parameters: those inference uses; each has to be read once per chunk.
    """

    flop: int
    parameters: int


def run_bench(
    folder: Path, options: BenchOptions, *, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Measure every form and return plain values, ready for JSON.

    Raises ConfigError, CheckpointError and BackendError as loading the policy does.
    """
    device = resolve_device(options.device)
    with _threads_kept():
        progress('counting operations')
        work = count_work(folder)
        arms = []
        for form in options.forms:
            progress(f'loading {form}')
            arms.append(load_arm(folder, form, options, device=device))
        progress('measuring the device')
        threads = max(arm.policy.receipt['num_threads'] for arm in arms)
        torch.set_num_threads(threads)
        precisions = dict.fromkeys(arm.served.precision for arm in arms)
        ceilings = {p: measure_ceilings(device, TIERS[p]) for p in precisions}
        take_turns(arms, repeat=options.repeat, warmup=options.warmup, progress=progress)
        rows = [row(arm, work, ceilings[arm.served.precision]) for arm in arms]
    receipt = arms[0].policy.receipt
    return {
        'policy': {key: receipt[key] for key in ('policy', 'folder', 'digest')},
        'work': asdict(work),
        'machine': machine_facts(device),
        'ceilings': {name: asdict(value) for name, value in ceilings.items()},
        'options': {'repeat': options.repeat, 'warmup': options.warmup},
        'arms': rows,
    }


def load_arm(folder: Path, form: Form, options: BenchOptions, *, device: torch.device) -> Arm:
    """Load and warm up one form, and note what that took."""
    config = RuntimeConfig(
        backend=form.backend,
        precision=form.precision,
        device=str(device),
        num_threads=options.threads,
    )
    before = resident_bytes()
    allocated = 0
    if device.type == 'cuda':
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
    start = time.perf_counter()
    policy = load_policy(folder, config=config)
    loaded = time.perf_counter()
    policy.warm_up()
    warm = time.perf_counter()
    peak = torch.cuda.max_memory_allocated(device) - allocated if device.type == 'cuda' else 0
    return Arm(
        asked=form,
        policy=policy,
        load_s=loaded - start,
        warm_up_s=warm - loaded,
        resident_added=resident_bytes() - before,
        cuda_peak=peak,
    )


def take_turns(
    arms: Sequence[Arm], *, repeat: int, warmup: int, progress: Progress = lambda _: None
) -> None:
    """Run every arm once per round on that round's observation; another arm begins each time."""
    observations = probe_observations(arms[0].policy.capabilities, count=OBSERVATIONS)
    for number in range(-warmup, repeat):
        if number % max(repeat // 10, 1) == 0:
            progress(f'round {max(number, 0)} of {repeat}')
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            _use_threads(arm.policy.receipt['num_threads'])
            arm.run(observations[number % len(observations)])
        if number == -1:
            for arm in arms:
                arm.whole_s.clear()
                arm.model_s.clear()


def count_work(folder: Path) -> Work:
    """Count the operations of one chunk on the network as written, and its parameters."""
    with load_policy(folder, config=RuntimeConfig(backend='eager', device='cpu')) as policy:
        observation = probe_observations(policy.capabilities, count=1)[0]
        with FlopCounterMode(display=False) as counter:
            policy.predict_chunk(observation)
    weights = report(describe_checkpoint(folder))['weights']
    return Work(flop=counter.get_total_flops(), parameters=weights['inference_parameters'])


def row(arm: Arm, work: Work, ceilings: Ceilings) -> dict[str, Any]:
    """What there is to say of an arm. Rates are those of its median model part.

    weights_gb_per_s: the bytes of all parameters in the tier's type over the time, a lower bound
    of the memory traffic.
    """
    receipt = arm.policy.receipt
    model = Spread.of(arm.model_s)
    seconds = model.p50_ms / 1e3
    dtype: torch.dtype = getattr(torch, TIERS[arm.served.precision].dtype)
    width = dtype.itemsize
    flop_per_s, bytes_per_s = work.flop / seconds, work.parameters * width / seconds
    return {
        'arm': str(arm.asked),
        'served': str(arm.served),
        'refused': receipt['refused'],
        'notes': receipt['notes'],
        'gate': receipt['gate'],
        'num_threads': receipt['num_threads'],
        'whole': asdict(Spread.of(arm.whole_s)),
        'model': asdict(model),
        'load_s': arm.load_s,
        'warm_up_s': arm.warm_up_s,
        'resident_added_mb': arm.resident_added / 1e6,
        'resident_mb': resident_bytes() / 1e6,
        'cuda_peak_mb': arm.cuda_peak / 1e6,
        'tflop_per_s': flop_per_s / 1e12,
        'flop_fraction': flop_per_s / 1e12 / ceilings.matmul_tflop_per_s,
        'weights_gb_per_s': bytes_per_s / 1e9,
        'bandwidth_fraction': bytes_per_s / 1e9 / ceilings.copy_gb_per_s,
        'samples_ms': [1e3 * value for value in arm.whole_s],
    }


def speedups(arms: Sequence[Mapping[str, Any]]) -> list[float]:
    """The median of the first arm over that of each."""
    first = float(arms[0]['whole']['p50_ms'])
    return [first / float(arm['whole']['p50_ms']) for arm in arms]


def samples(arm: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """The times of an arm, sorted, in ms."""
    return np.sort(np.asarray(arm['samples_ms'], dtype=np.float64))


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@contextmanager
def _threads_kept() -> Iterator[None]:
    """The threads of torch belong to the process: put them back."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)

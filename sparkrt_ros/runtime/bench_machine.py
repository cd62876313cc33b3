"""What a machine is and what it can do at best, for judging measured times by."""

from __future__ import annotations

import datetime
import importlib.util
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparkrt_ros.runtime.cores import usable_cores
from sparkrt_ros.runtime.device import device_title, fp32_products
from sparkrt_ros.runtime.kernels.int8 import Int8Linear
from sparkrt_ros.runtime.kernels.to_bytes import RowsToBytes
from sparkrt_ros.runtime.precision.calibration import Range
from sparkrt_ros.runtime.precision.tiers import Tier

BUDGET_S = 0.5
MATMUL_SIZE = {'cpu': 1024, 'cuda': 8192}
COPY_BYTES = {'cpu': 1 << 27, 'cuda': 1 << 30}
MIN_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The best of a large square product, and of a copy (bytes read plus bytes written)."""

    matmul_tflop_per_s: float
    copy_gb_per_s: float


def measure_ceilings(device: torch.device, tier: Tier, *, budget_s: float = BUDGET_S) -> Ceilings:
    """Measure both in the arithmetic of a tier, each for about ``budget_s``."""
    size, count = MATMUL_SIZE[device.type], COPY_BYTES[device.type]
    with torch.inference_mode(), fp32_products(allow_tf32=tier.allow_tf32):
        product = _square_product(size, tier, device=device)
        product_s = best_seconds(product, device, budget_s=budget_s)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copy_s = best_seconds(lambda: target.copy_(source), device, budget_s=budget_s)
    return Ceilings(
        matmul_tflop_per_s=2 * size**3 / product_s / 1e12, copy_gb_per_s=2 * count / copy_s / 1e9
    )


def _square_product(size: int, tier: Tier, *, device: torch.device) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    if tier.is_calibrated:
        width = Range(low=np.array([-4.0]), high=np.array([4.0]))
        levels = width.levels()
        product, rows = Int8Linear(a, levels), RowsToBytes(levels)(b)
        return lambda: product(rows)
    dtype: torch.dtype = getattr(torch, tier.dtype)
    a, b = a.to(dtype), b.to(dtype)
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def best_seconds(run: Callable[[], object], device: torch.device, *, budget_s: float) -> float:
    """The shortest of the runs that fit into the budget, after one that does not count."""
    _timed(run, device)
    best, end = float('inf'), time.perf_counter() + budget_s
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        best = min(best, _timed(run, device))
        rounds += 1
    return best


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not tell."""
    try:
        pages = int(Path('/proc/self/statm').read_text(encoding='ascii').split()[1])
    except OSError:
        return 0
    return pages * os.sysconf('SC_PAGE_SIZE')


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Machine, versions, commit and date: what a figure means nothing without."""
    return {
        'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'commit': _commit(),
        'device': str(device),
        'device_name': device_title(device),
        'cpu': _cpu_name(),
        'cores': usable_cores(),
        'system': platform.platform(),
        'python': sys.version.split()[0],
        'torch': torch.__version__,
        'cuda': torch.version.cuda if device.type == 'cuda' else None,
        'sparkrt': _version(),
    }


def _version() -> str:
    try:
        return version('sparkrt-ros')
    except PackageNotFoundError:
        import sparkrt_ros

        return sparkrt_ros.__version__


def _commit() -> str | None:
    """The commit of the source tree, with ``-dirty`` where files differ from it."""
    spec = importlib.util.find_spec('sparkrt_ros')
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).resolve().parent
    command = ['git', '-C', str(folder), 'describe', '--always', '--dirty', '--abbrev=12']
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _cpu_name() -> str:
    try:
        lines = Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(': ')[2] for line in lines if line.startswith('model name'))
    return next(names, platform.machine())

"""How many CPU threads an inference gets: measured, because counting cores misleads.

Beside an inference run the threads of ROS and other processes. Two threads of torch that wait for
each other in every operator may then be slower than one, and by a lot.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from sparkrt_ros.runtime.cores import spared_cores, usable_cores

ROUNDS = 3


def thread_counts(cores: int) -> list[int]:
    """The counts worth trying: all cores, all but one (left to ROS), half, and one."""
    return sorted({cores, spared_cores(cores), max(cores // 2, 1), 1}, reverse=True)


def choose_threads(run: Callable[[], object], *, device: torch.device) -> dict[int, float]:
    """Set the threads of torch to the fastest count for ``run``; return seconds by count.

    The best of a few rounds counts, taken in turns, so that a moment of load does not decide.
    Does nothing when the work is not the CPU's.
    """
    if device.type != 'cpu':
        return {}
    counts = thread_counts(usable_cores())
    best = dict.fromkeys(counts, float('inf'))
    for _ in range(ROUNDS):
        for count in counts:
            torch.set_num_threads(count)
            start = time.perf_counter()
            run()
            best[count] = min(best[count], time.perf_counter() - start)
    torch.set_num_threads(min(best, key=lambda count: best[count]))
    return best

"""Many episodes side by side under a policy that predicts for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.demos import DemoSpec, shrink
from sparkrt_ros.sim.task import CAMERAS, PickPlace

Predict = Callable[[Mapping[str, npt.NDArray[np.uint8]], npt.NDArray[np.float64]], Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one episode ended; ``elapsed_s`` is the time of success or the limit."""

    seed: int
    success: bool
    elapsed_s: float


def rollout(
    predict: Predict,
    seeds: Sequence[int],
    *,
    n_action_steps: int,
    delay_steps: int = 0,
    demos: DemoSpec | None = None,
) -> list[Outcome]:
    """Closed loop over ``seeds``: observe, predict, execute ``n_action_steps`` rows, repeat.

    With ``delay_steps`` a chunk is used that many periods after its observation, from the row that
    is then due, as on a robot whose inference takes time; until then the one before goes on.
    """
    demos = demos or DemoSpec()
    tasks = [PickPlace(seed=seed) for seed in seeds]
    chunks: list[tuple[int, Any]] = []
    for period in range(round(tasks[0].spec.time_limit_s * tasks[0].spec.policy_rate_hz)):
        running = [task for task in tasks if not task.success]
        if not running:
            break
        if period % n_action_steps == 0:
            chunks.append((period, _observe(predict, tasks, demos)))
        due = [item for item in chunks if item[0] + delay_steps <= period] or chunks[:1]
        since, chunk = due[-1]
        chunks = chunks[chunks.index(due[-1]) :] if len(chunks) > 2 else chunks
        row = min(period - since, chunk.shape[1] - 1)
        for index, task in enumerate(tasks):
            if not task.success:
                task.step(chunk[index, row])
    return [
        Outcome(seed=task.seed, success=task.success, elapsed_s=task.elapsed_s) for task in tasks
    ]


def _observe(predict: Predict, tasks: Sequence[PickPlace], demos: DemoSpec) -> Any:
    pictures = [task.render() for task in tasks]
    images = {
        camera: np.stack([shrink(p[camera], demos.width, demos.height) for p in pictures])
        for camera in CAMERAS
    }
    return predict(images, np.stack([task.arm.positions_rad for task in tasks]))

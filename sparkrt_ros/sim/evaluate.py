"""Closed-loop success of a policy folder: ``python -m sparkrt_ros.sim.evaluate FOLDER``.

Uses the runtime itself (``load_policy``, queue mode), one episode after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sparkrt_ros.runtime.config import PRECISIONS, RuntimeConfig
from sparkrt_ros.runtime.observation_file import write_observations
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import Observation
from sparkrt_ros.sim.demos import DemoSpec, shrink
from sparkrt_ros.sim.rollout import Outcome
from sparkrt_ros.sim.task import PickPlace

RECORDED_EVERY = 4


def observe(task: PickPlace, spec: DemoSpec) -> Observation:
    """The present state of ``task`` as the policy was trained to see it."""
    images = {
        f'observation.images.{camera}': shrink(image, spec.width, spec.height)
        for camera, image in task.render().items()
    }
    state = task.arm.positions_rad.astype(np.float32)
    return Observation(images=images, state=state, stamp_ns=round(task.elapsed_s * 1e9))


def run_episode(
    policy: Policy,
    seed: int,
    *,
    spec: DemoSpec | None = None,
    seen: list[Observation] | None = None,
) -> Outcome:
    """One episode from its start to success or the time limit.

    seen: every ``RECORDED_EVERY``th observation is appended to it.
    """
    spec = spec or DemoSpec()
    task = PickPlace(seed=seed)
    policy.reset()
    step = 0
    while not task.success and not task.timed_out:
        observation = observe(task, spec)
        if seen is not None and step % RECORDED_EVERY == 0:
            seen.append(observation)
        task.step(policy.step(observation).astype(np.float64))
        step += 1
    return Outcome(seed=seed, success=task.success, elapsed_s=round(task.elapsed_s, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every episode and the total; returns 0 when at least ``--require`` succeeded."""
    parser = argparse.ArgumentParser(
        prog='python -m sparkrt_ros.sim.evaluate', description=__doc__
    )
    parser.add_argument('folder', type=Path)
    parser.add_argument('--episodes', type=int, default=50)
    parser.add_argument('--first-seed', type=int, default=0)
    parser.add_argument('--n-action-steps', type=int, default=None)
    parser.add_argument('--device', default='auto')
    parser.add_argument('--precision', default='fp32', choices=PRECISIONS)
    parser.add_argument('--calibration', default='', help='observations for --precision int8')
    parser.add_argument('--record', type=Path, default=None, help='write observations here')
    parser.add_argument('--threads', type=int, default=None, help='CPU threads of torch')
    parser.add_argument('--require', type=float, default=0.9, help='share that must succeed')
    parser.add_argument('--json', type=Path, default=None, help='also write the outcomes here')
    options = parser.parse_args(arguments)
    config = RuntimeConfig(
        mode='queue',
        device=options.device,
        precision=options.precision,
        calibration=options.calibration,
        n_action_steps=options.n_action_steps,
        num_threads=options.threads,
    )
    outcomes = []
    seen: list[Observation] = []
    with load_policy(options.folder, config=config) as policy:
        for seed in range(options.first_seed, options.first_seed + options.episodes):
            outcomes.append(run_episode(policy, seed, seen=seen))
            verdict = 'success' if outcomes[-1].success else 'FAILED'
            sys.stdout.write(f'seed {seed:4d}  {verdict}  {outcomes[-1].elapsed_s:6.2f} s\n')
            sys.stdout.flush()
    solved = [outcome for outcome in outcomes if outcome.success]
    mean_s = sum(outcome.elapsed_s for outcome in solved) / max(len(solved), 1)
    sys.stdout.write(f'{len(solved)} of {len(outcomes)} succeeded, mean {mean_s:.2f} s\n')
    if options.json is not None:
        text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
        options.json.write_text(text + '\n', encoding='utf-8')
    if options.record is not None:
        write_observations(options.record, seen)
    return 0 if len(solved) >= options.require * len(outcomes) else 1


if __name__ == '__main__':
    raise SystemExit(main())

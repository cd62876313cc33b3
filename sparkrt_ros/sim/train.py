"""Train the embedded robot's policy: ``python -m sparkrt_ros.sim.train --output DIR``.

Records demonstrations on all cores, fits ACT, writes a LeRobot checkpoint folder and reports the
closed-loop success of several settings.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from sparkrt_ros.sim.demos import FIRST_TRAINING_SEED, DemoSpec, record_many
from sparkrt_ros.sim.export import write_checkpoint
from sparkrt_ros.sim.learner import BatchPredictor, Demonstrations, Learner, TrainSpec, act_config
from sparkrt_ros.sim.rollout import rollout

logger = logging.getLogger(__name__)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m sparkrt_ros.sim.train', description=__doc__)
    spec = TrainSpec()
    parser.add_argument('--output', type=Path, required=True, help='folder to write')
    parser.add_argument('--episodes', type=int, default=1200, help='demonstrations to record')
    parser.add_argument('--steps', type=int, default=spec.steps, help='most optimiser steps')
    parser.add_argument(
        '--budget-s', type=float, default=spec.budget_s, help='most seconds of fitting'
    )
    parser.add_argument('--batch', type=int, default=spec.batch)
    parser.add_argument('--rate', type=float, default=spec.rate, help='peak learning rate')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--processes', type=int, default=None, help='recorders; default all cores')
    parser.add_argument('--action-steps', type=int, default=5, help="the policy's n_action_steps")
    parser.add_argument('--evaluate', type=int, default=50, help='held-out episodes; 0 for none')
    parser.add_argument('--seed', type=int, default=spec.seed)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns 0."""
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s')
    options = parse(arguments)
    started = time.perf_counter()
    device = torch.device(options.device)
    demos = DemoSpec()
    spec = replace(
        TrainSpec(),
        steps=options.steps,
        budget_s=options.budget_s,
        batch=options.batch,
        rate=options.rate,
        seed=options.seed,
    )
    data = _record(options, demos, device)
    config = act_config(demos, n_action_steps=options.action_steps)
    learner = Learner(data, config, spec, device)
    weights = learner.fit()
    write_checkpoint(options.output, config=config, weights=weights, stats=learner.stats)
    seconds = time.perf_counter() - started
    provenance = {
        'trained_by': 'sparkrt_ros.sim.train',
        'episodes': options.episodes,
        'instants': len(data),
        'wall_s': round(seconds, 1),
        'device': torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu',
        'torch': torch.__version__,
        'training': asdict(spec),
        'demonstrations': asdict(demos),
    }
    text = json.dumps(provenance, indent=4) + '\n'
    (options.output / 'sparkrt_training.json').write_text(text, encoding='utf-8')
    logger.info('wrote %s after %.0f s', options.output, seconds)
    halved = {k: v.half().float() if v.dim() > 1 else v for k, v in weights.items()}
    _evaluate(options, BatchPredictor(config, halved, learner.stats, device))
    return 0


def _record(options: argparse.Namespace, demos: DemoSpec, device: torch.device) -> Demonstrations:
    first = FIRST_TRAINING_SEED + options.seed * 100_000
    seeds = range(first, first + options.episodes)
    started = time.perf_counter()
    episodes = list(record_many(seeds, demos, processes=options.processes))
    solved = sum(episode.success for episode in episodes)
    seconds = time.perf_counter() - started
    logger.info('%d demonstrations, %d solved, %.0f s', len(episodes), solved, seconds)
    data = Demonstrations(episodes, device)
    logger.info('%d instants on %s, %.0f s', len(data), device, time.perf_counter() - started)
    return data


def _evaluate(options: argparse.Namespace, predict: BatchPredictor) -> None:
    if not options.evaluate:
        return
    for n_action_steps, delay_steps in ((5, 0), (10, 0), (20, 0), (5, 3), (5, 6), (20, 10)):
        outcomes = rollout(
            predict,
            range(options.evaluate),
            n_action_steps=n_action_steps,
            delay_steps=delay_steps,
        )
        solved = [outcome for outcome in outcomes if outcome.success]
        mean_s = sum(outcome.elapsed_s for outcome in solved) / max(len(solved), 1)
        failed = [outcome.seed for outcome in outcomes if not outcome.success]
        logger.info(
            'n_action_steps %d, delay %d: %d of %d in %.2f s; failed %s',
            n_action_steps,
            delay_steps,
            len(solved),
            len(outcomes),
            mean_s,
            failed,
        )


if __name__ == '__main__':
    raise SystemExit(main())

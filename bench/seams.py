"""How large the steps at chunk seams are, and what latency costs, on the embedded robot.

python bench/seams.py                       three seeds, every mode, about two minutes
python bench/seams.py --seeds 50 --json out/seams.json

The robot, the streamer's core (timeline and guard) and the pacing of the policy node run in one
process in made-up time: each control period moves the robot on by as much, an inference takes
exactly as long as is injected, and meanwhile the robot goes on with the chunks it has.

A seam lasts from the first command of a chunk that took over until the blend is over. Its step is
the largest that a joint made from one command to the next in that time; the ratio is that step
against the largest that the same joint makes inside chunks in the same time, the largest of all
joints and seams. Both are taken from the rows of the chunks and the commands as they left, not
from what the streamer says about itself. Seams within twice ``--blend-in`` of the start
are left out: there the guard's ramp shapes the commands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparkrt_ros.convert.contract import RobotContract, load_contract
from sparkrt_ros.nodes.guard import Guard
from sparkrt_ros.nodes.pacing import Pacer, PacingConfig, Progress
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_values import MadeUpTimeOutlet
from sparkrt_ros.runtime.bench_machine import machine_facts
from sparkrt_ros.runtime.chunking.interpolation import INTERPOLATIONS
from sparkrt_ros.runtime.chunking.timeline import DEFAULT_COEFF, MODES, Timeline
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.policy import Policy, load_policy
from sparkrt_ros.runtime.types import ActionChunk
from sparkrt_ros.sim.demos import DemoSpec
from sparkrt_ros.sim.evaluate import observe
from sparkrt_ros.sim.task import PickPlace

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / 'checkpoints' / 'embedded_pick_place'
SESSION = 1
# The offset of a blend has faded to nothing after about three times its duration.
BLEND_TAIL = 3.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table. Times in seconds."""

    mode: str
    latency_s: float
    blend_s: float
    interpolation: str
    blend_in_s: float
    inference_rate_hz: float


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode.

    ratios: of each seam. largest_step: at a seam [rad]. told_ratio: what the streamer says.
    acceleration: the largest of any command [rad/s^2].
    """

    success: bool
    elapsed_s: float
    ratios: tuple[float, ...]
    largest_step: float
    told_ratio: float
    acceleration: float
    interventions: dict[str, int]
    underruns: int


class Robot(MadeUpTimeOutlet):
    """The embedded robot with a streamer and a paced policy, in made-up time."""

    def __init__(self, policy: Policy, contract: RobotContract, setting: Setting) -> None:
        self._policy, self._contract, self._setting = policy, contract, setting
        self._spec = DemoSpec()
        self._period_ns = round(1e9 / contract.control_rate_hz)
        self.core = StreamerCore(
            timeline=Timeline(joint_names=contract.action),
            guard=Guard(
                names=contract.action,
                limits=contract.action_limits,
                velocity_columns=contract.velocity_mask,
            ),
            velocity_columns=contract.velocity_mask,
            period_s=self._period_ns / 1e9,
            outlet=self,
            notify=lambda: None,
        )
        self.core.set_options(
            Options(
                mode=setting.mode,
                temporal_ensemble_coeff=DEFAULT_COEFF,
                hold_s=contract.hold_s,
                velocity_scale=1.0,
                start_max_error=0.0,
                interpolation=setting.interpolation,
                blend_s=setting.blend_s,
                blend_in_s=setting.blend_in_s,
            )
        )

    def send(self, command: np.ndarray, *, now_ns: int) -> None:
        """See Outlet."""
        self._task.arm.command(command)
        self._commands.append(command.copy())
        self._taken.append(self.core.chunks_taken)

    def stop_velocities(self, command: np.ndarray, *, now_ns: int) -> None:
        """See Outlet."""

    def run(self, seed: int) -> Episode:
        """One episode from its start to success or the time limit."""
        self._task = PickPlace(seed=seed)
        self._commands: list[np.ndarray] = []
        self._taken: list[int] = []
        self._chunks: list[ActionChunk] = []
        self._coming: tuple[int, ActionChunk] | None = None
        self._pacer = Pacer(config=self._pacing(), session_id=SESSION)
        now_ns = 1_000_000_000
        self._policy.reset()
        self.core.activate(now_ns)
        while not self._task.success and not self._task.timed_out:
            self._think(now_ns)
            pose = self._task.arm.positions_rad.copy()
            self.core.pose = Pose(values=pose, fresh_until_ns=now_ns + 2 * self._period_ns)
            self.core.tick(now_ns)
            self._task.advance(self._period_ns / 1e9)
            now_ns += self._period_ns
        return self._judge()

    def _pacing(self) -> PacingConfig:
        follows = self._setting.mode in ('queue', 'rtc')
        return PacingConfig(
            mode='queue' if follows else 'ensemble',
            n_action_steps=self._policy.capabilities.n_action_steps,
            dt_s=1.0 / self._contract.policy_rate_hz,
            inference_rate_hz=self._setting.inference_rate_hz,
            lead_margin_s=0.02,
            streamer_timeout_s=1.0,
        )

    def _think(self, now_ns: int) -> None:
        """What the policy process does up to this tick."""
        if self._coming is not None and self._coming[0] <= now_ns:
            chunk = self._coming[1]
            self._coming = None
            self.core.offer(chunk, session_id=SESSION)
            self._pacer.sent(now_ns / 1e9, chunk_id=chunk.chunk_id, epoch=0)
        self._pacer.follow(self._progress(now_ns))
        if self._coming is None and self._pacer.due(now_ns / 1e9).wait_s <= 0.0:
            self._pacer.started(now_ns / 1e9)
            self._pacer.latency.add(self._setting.latency_s)
            arrival_ns = now_ns + round(self._setting.latency_s * 1e9)
            self._coming = arrival_ns, self._infer(now_ns)
            if arrival_ns <= now_ns:
                self._think(now_ns)

    def _infer(self, now_ns: int) -> ActionChunk:
        actions = self._policy.predict_chunk(observe(self._task, self._spec))
        chunk = ActionChunk(
            actions=self._contract.action_to_si(actions).astype(np.float32),
            joint_names=self._contract.action,
            observation_stamp_ns=now_ns,
            dt_s=1.0 / self._contract.policy_rate_hz,
            chunk_id=len(self._chunks) + 1,
        )
        self._chunks.append(chunk)
        return chunk

    def _progress(self, now_ns: int) -> Progress:
        shot = self.core.snapshot
        return Progress(
            at_s=now_ns / 1e9,
            session_id=shot.session_id,
            epoch=shot.epoch,
            chunk_id=shot.chunk_id,
            played_s=shot.played_ns / 1e9,
            remaining_s=shot.remaining_s,
            state=shot.state,
        )

    def _largest_inside(self, chunk: ActionChunk) -> np.ndarray:
        """The largest step of each joint where this chunk is all there is: (A,)."""
        alone = Timeline(joint_names=chunk.joint_names, interpolation=self._setting.interpolation)
        alone.take(replace(chunk, observation_stamp_ns=0), now_ns=0)
        played, value = [], np.zeros(len(chunk.joint_names))
        while alone.sample(len(played) * self._period_ns, out=value):
            played.append(value.copy())
        largest: np.ndarray = np.abs(np.diff(played, axis=0)).max(axis=0)
        return largest

    def _judge(self) -> Episode:
        commands = np.array(self._commands)
        steps = np.abs(np.diff(commands, axis=0))
        inside = np.max([self._largest_inside(chunk) for chunk in self._chunks], axis=0)
        begins = np.flatnonzero(np.diff(self._taken))
        begins = begins[begins * self._period_ns / 1e9 >= 2.0 * self._setting.blend_in_s]
        tail = 1 + round(BLEND_TAIL * self._setting.blend_s * 1e9 / self._period_ns)
        seams = [steps[begin : begin + tail].max(axis=0) for begin in begins]
        period_s = self._period_ns / 1e9
        return Episode(
            success=self._task.success,
            elapsed_s=round(self._task.elapsed_s, 3),
            ratios=tuple(float((step / inside).max()) for step in seams),
            largest_step=float(np.max(seams, initial=0.0)),
            told_ratio=self.core.seams.largest_ratio,
            acceleration=float(np.abs(np.diff(commands, n=2, axis=0)).max() / period_s**2),
            interventions=self.core.interventions,
            underruns=self.core.underruns,
        )


def measure(
    policy: Policy, contract: RobotContract, setting: Setting, seeds: Sequence[int]
) -> dict[str, Any]:
    """All seeds of one setting."""
    robot = Robot(policy, contract, setting)
    episodes = []
    for seed in seeds:
        episodes.append(robot.run(seed))
        print('.', end='', file=sys.stderr, flush=True)
    ratios = [ratio for episode in episodes for ratio in episode.ratios]
    solved = [episode.elapsed_s for episode in episodes if episode.success]
    return {
        **asdict(setting),
        'episodes': len(episodes),
        'success': len(solved),
        'mean_s': statistics.fmean(solved) if solved else float('nan'),
        'seams': len(ratios),
        'ratio_max': max(ratios, default=0.0),
        'ratio_p50': statistics.median(ratios) if ratios else 0.0,
        'told_ratio_max': max(episode.told_ratio for episode in episodes),
        'largest_step': max(episode.largest_step for episode in episodes),
        'acceleration': max(episode.acceleration for episode in episodes),
        'underruns': sum(episode.underruns for episode in episodes),
        'limited': {
            kind: sum(episode.interventions[kind] for episode in episodes)
            for kind in episodes[0].interventions
        },
        'failed_seeds': [
            seed for seed, episode in zip(seeds, episodes, strict=True) if not episode.success
        ],
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    header = (
        f'{"mode":<17} {"latency":>8} {"blend":>7} {"success":>9} {"mean":>7} {"seams":>6} '
        f'{"seam/inside":>11} {"median":>7} {"step":>9} {"accel.":>7}'
    )
    rows = [
        f'{r["mode"]:<17} {1e3 * r["latency_s"]:>5.0f} ms {1e3 * r["blend_s"]:>4.0f} ms '
        f'{r["success"]:>3} of {r["episodes"]:>2} {r["mean_s"]:>5.2f} s {r["seams"]:>6} '
        f'{r["ratio_max"]:>11.2f} {r["ratio_p50"]:>7.2f} {r["largest_step"]:>9.4f} '
        f'{r["acceleration"]:>7.1f}'
        for r in results
    ]
    return '\n'.join(
        [
            header,
            *rows,
            'seam/inside: largest step at a seam against the largest inside chunks, per joint;',
            'median: of the seams; step: the largest at a seam [rad per command]; accel.: the',
            'largest of any command [rad/s^2]',
        ]
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--folder', type=Path, default=CHECKPOINT, help='the policy')
    parser.add_argument('--seeds', type=int, default=3, help='episodes of each row')
    parser.add_argument('--first-seed', type=int, default=2000)
    parser.add_argument('--modes', nargs='+', default=list(MODES), choices=MODES)
    parser.add_argument('--latencies', type=float, nargs='+', default=[0.0, 0.2], metavar='S')
    parser.add_argument('--blends', type=float, nargs='+', default=[0.2], metavar='S')
    parser.add_argument('--interpolation', default='linear', choices=INTERPOLATIONS)
    parser.add_argument('--blend-in', type=float, default=0.5, metavar='S')
    parser.add_argument(
        '--inference-rate', type=float, default=10.0, metavar='HZ', help='of averages'
    )
    parser.add_argument('--threads', type=int, default=1, help='of torch')
    parser.add_argument('--json', type=Path, help='also write the results here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    contract = load_contract('embedded')
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    settings = [
        Setting(
            mode=mode,
            latency_s=latency_s,
            blend_s=blend_s,
            interpolation=options.interpolation,
            blend_in_s=options.blend_in,
            inference_rate_hz=options.inference_rate,
        )
        for mode in options.modes
        for latency_s in options.latencies
        for blend_s in options.blends
    ]
    config = RuntimeConfig(mode='queue', device='cpu', num_threads=options.threads)
    with load_policy(options.folder, config=config) as policy:
        policy.warm_up()
        results = [measure(policy, contract, setting, seeds) for setting in settings]
    facts = machine_facts(torch.device('cpu'))
    print(file=sys.stderr)
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    print(table(results))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {'machine': facts, 'results': results}
        options.json.write_text(json.dumps(content, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Swaps of the policy while the embedded robot moves: what the robot and the user notice of them.

python bench/hot_swap.py --swaps 50

Processes, as in the demo: the simulated robot, the streamer, the policy node; this one sets
parameters and listens. Precision, backend and checkpoint change in turn, several at once. Before
that some time without swaps, since a busy machine misses periods by itself.

missed: control periods without a command, by the streamer's own count and by the time stamps of
the commands. repeated: times the actions had run out and the last command was held. held_for_pose:
times it was held because the robot's joint states came too late, which is not the policy's doing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / 'bench'))

from ros_bench import machine, status_value  # noqa: E402

from sparkrt.msg import ActionChunk, PolicyStatus, StreamerStatus  # noqa: E402
from sparkrt_ros.demo.processes import ProcessGroup  # noqa: E402
from sparkrt_ros.demo.run import demo_environment, ros_arguments  # noqa: E402
from sparkrt_ros.nodes import qos  # noqa: E402
from sparkrt_ros.runtime.share import shared_path  # noqa: E402

RATE_HZ = 100.0
LIMIT_S = 60.0
BETWEEN_CHUNKS = 2
EVERY = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)


@dataclass(kw_only=True)
class Recording:
    """What was heard during one phase. Times in ns of the system clock, latencies in s."""

    seconds: float = 0.0
    command_ns: list[int] = field(default_factory=list)
    commands: list[tuple[float, ...]] = field(default_factory=list)
    chunk_ns: list[int] = field(default_factory=list)
    changeover_s: list[float] = field(default_factory=list)
    first_chunk_s: list[float] = field(default_factory=list)
    held_for_pose: int = 0
    holding: bool = False
    received: tuple[list[int], list[int]] = ((), ())  # type: ignore[assignment]
    before: StreamerStatus | None = None
    after: StreamerStatus | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One phase. Periods and gaps in ms. See the module for missed and repeated."""

    phase: str
    seconds: float
    swaps: int
    commands: int
    missed_by_streamer: int
    missed_by_stamps: int
    repeated: int
    held_for_pose: int
    identical_commands: int
    chunks_dropped: int
    commands_refused: int
    frames_per_s: float
    period_p50_ms: float
    period_p99_ms: float
    period_max_ms: float
    largest_step_rad: float
    chunk_gap_p50_ms: float
    chunk_gap_max_ms: float


class Bench:
    """A node of its own that hears and steers the others."""

    def __init__(self) -> None:
        self.node = rclpy.create_node('hot_swap_bench')
        self.policy: PolicyStatus | None = None
        self.streamer: StreamerStatus | None = None
        self.recording = Recording()
        self.last_chunk_id = 0
        self._episodes = 0
        self._changed = threading.Condition()
        self._set = self.node.create_client(
            SetParametersAtomically, 'sparkrt/set_parameters_atomically'
        )
        self._reset = self.node.create_client(Trigger, 'sim_robot/reset')
        listen = self.node.create_subscription
        listen(Float64MultiArray, 'forward_position_controller/commands', self._command, EVERY)
        listen(Float64MultiArray, 'gripper_controller/commands', lambda _: None, EVERY)
        listen(ActionChunk, 'sparkrt/action_chunk', self._chunk, EVERY)
        listen(PolicyStatus, 'sparkrt/status', self._policy_told, EVERY)
        listen(StreamerStatus, 'action_streamer/status', self._streamer_told, EVERY)
        listen(String, 'sim_robot/episode', self._episode, qos.LATCHED)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._executor.spin)
        self._thread.start()

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, LIMIT_S):
                raise SystemExit(f'no {what} in {LIMIT_S} s; {self.policy}; {self.streamer}')

    def begin_phase(self) -> None:
        with self._changed:
            self.recording = Recording(before=self.streamer)
            self.recording.received = (list(self.policy.stream_received), [])  # type: ignore[union-attr]

    def end_phase(self, seconds: float) -> Recording:
        with self._changed:
            recording, self.recording = self.recording, Recording()
            recording.after, recording.seconds = self.streamer, seconds
            recording.received[1].extend(self.policy.stream_received)  # type: ignore[union-attr]
            return recording

    def swap(self, changes: Mapping[str, Any]) -> None:
        """One swap, up to the first chunk of the new policy. SystemExit where it fails."""
        assert self.policy is not None
        done, begin_s = self.policy.swaps, time.monotonic()
        parameters = [Parameter(n, value=v).to_parameter_msg() for n, v in changes.items()]
        future = self._set.call_async(SetParametersAtomically.Request(parameters=parameters))
        answered = threading.Event()
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(LIMIT_S) or not future.result().result.successful:
            raise SystemExit(f'{changes} refused: {future.result()}')
        self.wait_for(lambda: self._is_over(done), f'end of the swap to {changes}')
        if self.policy.swaps == done:
            raise SystemExit(f'swap to {changes} failed: {self.policy.swap_text}')
        self.recording.changeover_s.append(self.policy.swap_time)
        before = self.policy.chunks
        self.wait_for(lambda: self.last_chunk_id > before, 'chunk of the new policy')
        self.recording.first_chunk_s.append(time.monotonic() - begin_s)
        self.wait_for(lambda: self.last_chunk_id > before + BETWEEN_CHUNKS, 'further chunks')

    def _is_over(self, done: int) -> bool:
        status = self.policy
        return status is not None and (status.swaps > done or status.swap_state == 'failed')

    def _command(self, message: Float64MultiArray, info: Any) -> None:
        with self._changed:
            self.recording.command_ns.append(int(info['source_timestamp']))
            self.recording.commands.append(tuple(message.data))

    def _chunk(self, message: ActionChunk, info: Any) -> None:
        with self._changed:
            self.recording.chunk_ns.append(int(info['source_timestamp']))
            self.last_chunk_id = message.chunk_id
            self._changed.notify_all()

    def _policy_told(self, message: PolicyStatus) -> None:
        with self._changed:
            self.policy = message
            self._changed.notify_all()

    def _streamer_told(self, message: StreamerStatus) -> None:
        with self._changed:
            self.streamer = message
            recording, holding = self.recording, message.state != 'streaming'
            if holding and not recording.holding and 'joint' in message.reason:
                recording.held_for_pose += 1
            recording.holding = holding
            self._changed.notify_all()

    def _episode(self, message: String) -> None:
        """Put the cube somewhere else whenever it is in the tray, so that the robot moves on."""
        if json.loads(message.data).get('done'):
            self._reset.call_async(Trigger.Request())


def cycle(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """What is asked for, in turn."""
    one, other = (str(folder) for folder in folders)
    return [
        {'precision': 'bf16'},
        {'backend': 'eager'},
        {'checkpoint': other, 'precision': 'fp32'},
        {'backend': 'auto'},
        {'checkpoint': one, 'precision': 'bf16'},
        {'precision': 'fp32', 'backend': 'eager'},
        {'checkpoint': other, 'backend': 'auto'},
        {'checkpoint': one},
    ]


def summarise(phase: str, recording: Recording) -> Figures:
    before, after = recording.before, recording.after
    assert before is not None
    assert after is not None
    at_first, received = recording.received
    stamps_ns = np.array(recording.command_ns)
    periods_ms = np.diff(stamps_ns) / 1e6
    p50, p99 = np.percentile(periods_ms, (50.0, 99.0), method='higher')
    gaps_ms = np.diff(recording.chunk_ns) / 1e6
    steps = np.abs(np.diff(np.array(recording.commands), axis=0))
    return Figures(
        phase=phase,
        seconds=recording.seconds,
        swaps=len(recording.changeover_s),
        commands=int(stamps_ns.size),
        missed_by_streamer=after.overruns - before.overruns,
        missed_by_stamps=int(np.maximum(np.rint(periods_ms * RATE_HZ / 1e3) - 1, 0).sum()),
        repeated=after.underruns - before.underruns,
        held_for_pose=recording.held_for_pose,
        identical_commands=int((steps.max(axis=1) == 0.0).sum()),
        chunks_dropped=after.chunks_dropped - before.chunks_dropped,
        commands_refused=after.refused - before.refused,
        frames_per_s=min(np.subtract(received, at_first)[:2]) / recording.seconds,
        period_p50_ms=float(p50),
        period_p99_ms=float(p99),
        period_max_ms=float(periods_ms.max()),
        largest_step_rad=float(steps.max()),
        chunk_gap_p50_ms=float(np.median(gaps_ms)),
        chunk_gap_max_ms=float(gaps_ms.max()),
    )


def start_processes(processes: ProcessGroup, options: argparse.Namespace, folder: Path) -> None:
    processes.start(
        'sim_robot', 'sparkrt_ros.sim.sim_robot', ros_arguments({'time_limit_s': '600.0'})
    )
    processes.start(
        'action_streamer',
        'sparkrt_ros.nodes.action_streamer',
        ros_arguments(
            {
                'autostart': 'true',
                'control.rate_hz': str(RATE_HZ),
                'control.realtime_priority': str(options.priority),
            }
        ),
    )
    processes.start(
        'policy_node',
        'sparkrt_ros.nodes.policy_node',
        ros_arguments({'checkpoint': str(folder), 'device': options.device, 'autostart': 'true'}),
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Both phases; the figures."""
    environ = demo_environment()
    with tempfile.TemporaryDirectory(prefix='hot_swap_') as scratch:
        one = shared_path('checkpoints/embedded_pick_place')
        other = Path(scratch) / 'other'
        retrain(one, other)
        rclpy.init(domain_id=int(environ['ROS_DOMAIN_ID']))
        with ProcessGroup(logs=options.logs, environ=environ) as processes:
            start_processes(processes, options, one)
            bench = Bench()
            try:
                return measure(bench, processes, options, cycle((one, other)))
            finally:
                bench.close()
                rclpy.try_shutdown()


def measure(
    bench: Bench, processes: ProcessGroup, options: argparse.Namespace, wishes: Sequence[Any]
) -> dict[str, Any]:
    bench.wait_for(lambda: bench.policy is not None, 'policy')
    bench.wait_for(lambda: bench.streamer is not None, 'streamer')
    bench.wait_for(lambda: bench.streamer.state == 'streaming', 'commands')  # type: ignore[union-attr]
    bench.wait_for(lambda: bench.last_chunk_id > 5, 'chunks')
    pid = processes.pid('policy_node')
    bench.begin_phase()
    time.sleep(options.baseline)
    baseline = bench.end_phase(options.baseline)
    memory, threads = [], []
    bench.begin_phase()
    begin_s = time.monotonic()
    for number in range(options.swaps):
        bench.swap(wishes[number % len(wishes)])
        processes.check()
        memory.append(status_value(pid, 'RssAnon') / 1e3)
        threads.append(len(list(Path(f'/proc/{pid}/task').iterdir())))
        print(f'\r{number + 1} of {options.swaps}', end='', file=sys.stderr, flush=True)
    swapping = bench.end_phase(time.monotonic() - begin_s)
    print(file=sys.stderr)
    return {
        'figures': [asdict(summarise('no swaps', baseline)), asdict(summarise('swaps', swapping))],
        'changeover_s': swapping.changeover_s,
        'first_chunk_s': swapping.first_chunk_s,
        'memory_mb': memory,
        'threads': threads,
    }


def retrain(folder: Path, other: Path) -> None:
    """Another policy: the same, but for one weight in the last bits."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(folder, other)
    weights = other / 'model.safetensors'
    tensors = load_file(weights)
    name = sorted(name for name, value in tensors.items() if value.ndim == 2)[-1]
    tensors[name] = tensors[name] * np.float32(1.0001)
    weights.unlink()
    save_file(tensors, weights)


def table(result: Mapping[str, Any]) -> str:
    """For people."""
    lines = []
    names = [name for name in result['figures'][0] if name != 'phase']
    head = ''.join(f'{figures["phase"]:>16}' for figures in result['figures'])
    lines.append(f'{"":<22}{head}')
    for name in names:
        cells = ''.join(f'{_cell(figures[name]):>16}' for figures in result['figures'])
        lines.append(f'{name:<22}{cells}')
    for name in ('changeover_s', 'first_chunk_s'):
        p50, p99 = np.percentile(result[name], (50.0, 99.0), method='higher')
        worst = max(result[name])
        lines.append(f'{name:<22} p50 {p50:.2f}  p99 {p99:.2f}  max {worst:.2f}')
    memory, threads = result['memory_mb'], result['threads']
    middle = len(memory) // 2
    lines.append(
        f'memory of the policy node {memory[0]:.0f} MB after the first swap, '
        f'{memory[middle]:.0f} MB half-way, {memory[-1]:.0f} MB at the end; '
        f'threads {threads[0]}, {threads[middle]}, {threads[-1]}'
    )
    return '\n'.join(lines)


def _cell(value: Any) -> str:
    return f'{value:.3g}' if isinstance(value, float) else str(value)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--swaps', type=int, default=50)
    parser.add_argument('--baseline', type=float, default=30.0, help='seconds without swaps')
    parser.add_argument('--device', default='', help='cpu, cuda, cuda:N or auto')
    parser.add_argument('--priority', type=int, default=0, help='SCHED_FIFO of the control loop')
    parser.add_argument('--logs', type=Path, default=Path('log/hot_swap'))
    parser.add_argument('--json', type=Path, help='also write everything here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    result = run(options)
    facts = machine()
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps({'machine': facts, **result}, indent=1))
    swaps = result['figures'][1]
    return int(swaps['repeated'] + swaps['chunks_dropped'] + swaps['commands_refused'] > 0)


if __name__ == '__main__':
    sys.exit(main())

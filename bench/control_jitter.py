"""Command period of the real action streamer while cameras, joints and inference load the machine.

python bench/control_jitter.py --duration 600

Processes, as on a robot: the streamer under test; the policy node, which receives three 640x480
rgb8 cameras at 30 Hz and joint states at 500 Hz and infers without a break on one thread (an ACT
network of random weights on whole pictures, so that a core is busy all the time); the process
that publishes them; and this one, which receives the commands. A period is the time between the
source time stamps of two commands, set by the middleware within the streamer's publish call, so
that delays on the way here and in this process do not count.

Last comes what both nodes cost without inference: the policy node is paused, receives everything,
and this process publishes two chunks a second in its place.
"""

from __future__ import annotations

import argparse
import array
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from camera_load import CAMERAS
from node_latency import COMMANDS, HEIGHT, JOINTS, WIDTH, write_contract, write_policy
from ros_bench import (
    CAMERA_LOAD,
    POLICY_NODE,
    STREAMER_NODE,
    Listener,
    Processes,
    cpu_seconds,
    machine,
    prepare_environment,
    resident_mb,
    ros_arguments,
    scheduling,
    status_value,
)
from std_msgs.msg import Float64MultiArray

from sparkrt.msg import ActionChunk, PolicyStatus

WARM_UP_S = 3.0
START_LIMIT_S = 120.0
CHUNK_HZ = 2.0
CHUNK_ROWS = 50
DT_S = 1.0 / 30.0
IDLE_RATE_HZ = 50.0

# (rate, scheduling) -> p99 and p99.9 of the period that are good enough, and that are wanted [ms].
BARS = {
    (50.0, 'normal'): ((20.5, 22.0), (20.3, 21.0)),
    (200.0, 'normal'): ((6.5, 8.0), (5.6, 6.5)),
    (200.0, 'SCHED_FIFO'): ((5.3, 5.8), (5.1, 5.4)),
}
FRAMES_BAR = 29.0
POLICY_CPU_BAR, STREAMER_CPU_BAR = 35.0, 8.0
RESIDENT_BAR_MB = 120.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. Periods in ms; CPU in percent of one core; missed: periods without a command.

    frames_per_s: received by the policy node, by camera. resident_mb: of the streamer, without
    the shared memory of the middleware, which shared_mb gives.
    """

    rate_hz: float
    scheduling: str
    inference: bool
    commands: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    missed: int
    frames_per_s: dict[str, float]
    policy_cpu_percent: float
    cpu_percent: float
    resident_mb: float
    shared_mb: float


class Recorder(Listener):
    """Source time stamps of the commands, and the policy's statuses; chunks on request."""

    def __init__(self) -> None:
        super().__init__('recorder')
        self.stamps_ns: list[int] = []
        self.policy: PolicyStatus | None = None
        self._number = 0
        self._timer: Any = None
        self.listen(Float64MultiArray, COMMANDS, self._command)
        self.listen(PolicyStatus, 'sparkrt/status', self._policy)
        self._chunks = self.node.create_publisher(ActionChunk, 'sparkrt/action_chunk', 10)
        self.begin()

    def forget(self) -> None:
        with self.changed:
            self.stamps_ns.clear()

    def taken(self) -> np.ndarray:
        with self.changed:
            return np.array(self.stamps_ns, dtype=np.int64)

    def play(self) -> None:
        """Publish chunks from now on."""
        self._timer = self.node.create_timer(1.0 / CHUNK_HZ, self._publish)

    def _publish(self) -> None:
        self._number += 1
        times_s = self._number / CHUNK_HZ + np.arange(CHUNK_ROWS) * DT_S
        rows = 0.1 + 0.1 * np.sin(times_s)[:, None] * np.ones(len(JOINTS))
        chunk = ActionChunk(
            observation_stamp=self.node.get_clock().now().to_msg(),
            dt=DT_S,
            chunk_id=self._number,
            session_id=1,
            joint_names=list(JOINTS),
            rows=CHUNK_ROWS,
            data=array.array('d', rows.tobytes()),
        )
        chunk.header.stamp = chunk.observation_stamp
        self._chunks.publish(chunk)

    def _command(self, _: Float64MultiArray, info: Any) -> None:
        with self.changed:
            self.stamps_ns.append(int(info['source_timestamp']))
            self.changed.notify_all()

    def _policy(self, message: PolicyStatus) -> None:
        with self.changed:
            self.policy = message
            self.changed.notify_all()


def measure(
    recorder: Recorder, processes: Processes, robot: Path, *, rate_hz: float, priority: int,
    duration_s: float, inference: bool, cpus: str,
) -> Result:  # fmt: skip
    """Run a streamer of its own; only what comes after WARM_UP_S counts."""
    values = {
        'robot': robot,
        'autostart': True,
        'chunking.mode': 'queue',
        'control.rate_hz': rate_hz,
        'control.realtime_priority': priority,
        **({'cpus': cpus} if cpus else {}),
    }
    recorder.forget()
    streamer = processes.start('streamer', STREAMER_NODE, ros_arguments(values))
    policy = processes.pids['policy']
    enough = WARM_UP_S * rate_hz
    recorder.wait_for(lambda: len(recorder.stamps_ns) > enough, 'commands', limit_s=START_LIMIT_S)
    recorder.forget()
    before, status = (cpu_seconds(policy), cpu_seconds(streamer)), recorder.policy
    begin_s = time.monotonic()
    time.sleep(duration_s)
    stamps_ns, taken_s = recorder.taken(), time.monotonic() - begin_s
    after = (cpu_seconds(policy), cpu_seconds(streamer))
    policy_share, share = (100.0 * (b - a) / taken_s for a, b in zip(before, after, strict=True))
    processes.check()
    result = summarise(
        stamps_ns,
        rate_hz=rate_hz,
        scheduling=scheduling(streamer),
        inference=inference,
        frames_per_s=frames_per_s(status, recorder.policy),
        policy_cpu_percent=policy_share,
        cpu_percent=share,
        resident_mb=resident_mb(streamer),
        shared_mb=status_value(streamer, 'RssShmem') / 1e3,
    )
    processes.stop('streamer')
    return result


def summarise(stamps_ns: np.ndarray, *, rate_hz: float, **facts: Any) -> Result:
    periods_ms = np.diff(stamps_ns) / 1e6
    p50, p99, p999 = np.percentile(periods_ms, (50.0, 99.0, 99.9), method='higher')
    return Result(
        rate_hz=rate_hz,
        commands=int(stamps_ns.size),
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        max_ms=float(periods_ms.max()),
        missed=int(np.maximum(np.rint(periods_ms * rate_hz / 1e3) - 1, 0).sum()),
        **facts,
    )


def frames_per_s(first: PolicyStatus, last: PolicyStatus) -> dict[str, float]:
    """Pictures that the policy node received between two statuses, by camera."""
    stamps_s = [m.header.stamp.sec + m.header.stamp.nanosec / 1e9 for m in (first, last)]
    before = dict(zip(first.stream_names, first.stream_received, strict=True))
    received = dict(zip(last.stream_names, last.stream_received, strict=True))
    return {n: (received[n] - before[n]) / (stamps_s[1] - stamps_s[0]) for n in CAMERAS}


def run(options: argparse.Namespace, scratch: Path) -> list[Result]:
    robot = write_contract(scratch / 'robot.yaml', size=(HEIGHT, WIDTH))
    values = {
        'robot': robot,
        'autostart': True,
        'checkpoint': write_policy(scratch, size=(HEIGHT, WIDTH), small=True),
        'device': 'cpu',
        'threads': 1,
        'chunking.mode': 'ensemble',
        'chunking.inference_rate_hz': 200.0,
        **({'cpus': options.policy_cpus} if options.policy_cpus else {}),
    }
    recorder = Recorder()
    try:
        with Processes() as processes:
            processes.start('load', CAMERA_LOAD, ['--joints', *JOINTS])
            processes.start('policy', POLICY_NODE, ros_arguments(values), nice=options.policy_nice)
            recorder.wait_for(
                lambda: recorder.policy is not None and recorder.policy.chunks > 1,
                'chunks of the policy node',
                limit_s=START_LIMIT_S,
            )
            common = {'recorder': recorder, 'processes': processes, 'robot': robot}
            common['cpus'] = options.streamer_cpus
            results = [
                measure(
                    **common, rate_hz=rate_hz, priority=priority,
                    duration_s=options.duration, inference=True,
                )
                for rate_hz in options.rates
                for priority in options.priorities
            ]  # fmt: skip
            if options.without_inference:
                if not recorder.call('sparkrt/pause'):
                    raise SystemExit('the policy node did not pause')
                recorder.play()
                results.append(
                    measure(
                        **common, rate_hz=IDLE_RATE_HZ, priority=0,
                        duration_s=min(options.duration, 60.0), inference=False,
                    )
                )  # fmt: skip
            return results
    finally:
        recorder.close()


def verdicts(results: Sequence[Result]) -> list[tuple[str, bool]]:
    """Every figure that has a bar, and whether it clears it."""
    lines = []
    for r in results:
        name = f'{r.rate_hz:g} Hz, {r.scheduling}'
        if not r.inference:
            lines += [
                (f'policy node {r.policy_cpu_percent:.1f} % of a core, bar {POLICY_CPU_BAR:g}',
                 r.policy_cpu_percent <= POLICY_CPU_BAR),
                (f'streamer {r.cpu_percent:.1f} % of a core, bar {STREAMER_CPU_BAR:g}',
                 r.cpu_percent <= STREAMER_CPU_BAR),
            ]  # fmt: skip
        elif (r.rate_hz, r.scheduling) in BARS:
            good, wanted = BARS[r.rate_hz, r.scheduling]
            text = f'{name}: p99 {r.p99_ms:.2f}, p99.9 {r.p999_ms:.2f} ms'
            bars = f'bar {good[0]:g} / {good[1]:g}, wanted {wanted[0]:g} / {wanted[1]:g}'
            lines.append((f'{text}; {bars}', r.p99_ms <= good[0] and r.p999_ms <= good[1]))
        least = min(r.frames_per_s.values())
        lines.append((f'{name}: {least:.1f} frames/s, bar {FRAMES_BAR:g}', least >= FRAMES_BAR))
        lines.append(
            (f'{name}: streamer {r.resident_mb:.0f} MB, bar {RESIDENT_BAR_MB:g}',
             r.resident_mb <= RESIDENT_BAR_MB)
        )  # fmt: skip
    return lines


def table(results: Sequence[Result]) -> str:
    header = (
        f'{"rate":>7} {"scheduling":>11} {"inference":>9} {"commands":>9} {"p50":>7} {"p99":>7} '
        f'{"p99.9":>7} {"max":>7} {"missed":>7} {"frames/s":>9} {"policy":>7} {"streamer":>8} '
        f'{"RSS":>7}'
    )
    rows = [
        f'{r.rate_hz:>4g} Hz {r.scheduling:>11} {"yes" if r.inference else "no":>9} '
        f'{r.commands:>9} {r.p50_ms:>7.2f} {r.p99_ms:>7.2f} {r.p999_ms:>7.2f} {r.max_ms:>7.2f} '
        f'{r.missed:>7} {min(r.frames_per_s.values()):>9.1f} {r.policy_cpu_percent:>6.1f}% '
        f'{r.cpu_percent:>7.1f}% {r.resident_mb:>4.0f} MB'
        for r in results
    ]
    return '\n'.join([header, *rows, 'periods in ms; CPU in percent of one core'])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--duration', type=float, default=20.0, help='seconds of each run')
    parser.add_argument('--rates', type=float, nargs='*', default=[50.0, 200.0], metavar='HZ')
    parser.add_argument(
        '--priorities', type=int, nargs='+', default=[0, 50], help='of SCHED_FIFO; 0: none'
    )
    parser.add_argument(
        '--without-inference',
        action=argparse.BooleanOptionalAction,
        default=True,
        help='also measure what both nodes cost while nothing is inferred (60 s at most)',
    )
    parser.add_argument('--streamer-cpus', default='', help='its parameter cpus')
    parser.add_argument('--policy-cpus', default='', help='its parameter cpus')
    parser.add_argument('--policy-nice', type=int, default=0, help='how far it stands back')
    parser.add_argument('--json', type=Path, help='also write the results here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    prepare_environment('control_jitter')
    facts = {}
    rclpy.init()
    try:
        facts = machine()
        with tempfile.TemporaryDirectory() as scratch:
            results = run(options, Path(scratch))
    finally:
        rclpy.try_shutdown()
    judged = verdicts(results)
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    print(table(results))
    print('\n'.join(f'{"pass" if passed else "FAIL"}  {text}' for text, passed in judged))
    if options.json:
        content = {
            'machine': facts,
            'results': [asdict(result) for result in results],
            'verdicts': [{'figure': text, 'pass': passed} for text, passed in judged],
        }
        options.json.write_text(json.dumps(content, indent=2))
    return 0


if __name__ == '__main__':
    sys.exit(main())

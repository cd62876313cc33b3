"""Whether the nodes grow while cameras, joints and inference go on for half an hour.

python bench/soak.py --minutes 30 --json soak.json

Real processes: three 640x480 cameras at 30 Hz and joints at 500 Hz; the policy node, which infers
ten times a second with an ACT network of random weights; the action streamer at 100 Hz. Both nodes
are reset every 20 s. Every 5 s memory, threads and open handles of both are read from /proc, and
what they have mapped of /dev/shm.

After the first minute memory may grow by less than 1 MB a minute, by a straight line through all
samples; threads, handles and files in /dev/shm not at all, by the medians of the first and the
last fifth. The exit code is 1 where something grows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rclpy
from node_latency import JOINTS, write_contract, write_policy
from ros_bench import (
    CAMERA_LOAD,
    POLICY_NODE,
    STREAMER_NODE,
    Listener,
    Processes,
    handles,
    machine,
    prepare_environment,
    resident_mb,
    ros_arguments,
    status_value,
)

from sparkrt.msg import StreamerStatus

START_LIMIT_S = 120.0
SAMPLE_S = 5.0
SETTLE_S = 60.0
SLOPE_BAR_MB_PER_MIN = 1.0
CONTROL_HZ = 100.0
INFERENCE_HZ = 10.0
SIZE = (96, 128)
RESETS = ('sparkrt/reset', 'action_streamer/reset')
SHARED_MEMORY = '/dev/shm/'


class Sample(NamedTuple):
    """One process at one time. Memory in MB.

    resident: in RAM, without what is shared through /dev/shm; unique: what its end would free.
    shm, shm_files: of the files in /dev/shm that it has mapped.
    """

    at_s: float
    resident: float
    unique: float
    shm: float
    threads: int
    handles: int
    shm_files: int

    @classmethod
    def of(cls, pid: int, *, at_s: float) -> Sample:
        files = mapped_shared_memory(pid)
        return cls(
            at_s=at_s,
            resident=resident_mb(pid),
            unique=unique_mb(pid),
            shm=sum(files.values()) / 1e6,
            threads=status_value(pid, 'Threads'),
            handles=handles(pid),
            shm_files=len(files),
        )


MEMORY = ('resident', 'unique', 'shm')


def unique_mb(pid: int) -> float:
    lines = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
    private = ('Private_Clean:', 'Private_Dirty:')
    return sum(int(line.split()[1]) for line in lines if line.startswith(private)) / 1e3


def mapped_shared_memory(pid: int) -> dict[str, int]:
    """File in /dev/shm -> bytes that it takes there."""
    lines = Path(f'/proc/{pid}/maps').read_text().splitlines()
    names = {line.split()[5] for line in lines if SHARED_MEMORY in line}
    return {name: Path(name).stat().st_blocks * 512 for name in names if Path(name).exists()}


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Of one figure of one process. unit: MB for memory, with its slope; '' for counts."""

    process: str
    figure: str
    unit: str
    first: float
    last: float
    slope_per_min: float
    largest: float

    @property
    def passed(self) -> bool:
        if self.unit:
            return self.slope_per_min < SLOPE_BAR_MB_PER_MIN
        return self.last <= self.first

    def line(self) -> str:
        digits = 1 if self.unit else 0
        slope = f'{self.slope_per_min:+9.3f}' if self.unit else f'{"":>9}'
        return (
            f'{self.process:<9} {self.figure:<10} {self.first:>9.{digits}f} '
            f'{self.last:>9.{digits}f} {self.largest:>9.{digits}f} {slope}  '
            f'{"pass" if self.passed else "FAIL"}'
        )


def growth(process: str, samples: Sequence[Sample]) -> list[Growth]:
    """Every figure of one process."""
    table = np.array(samples, dtype=np.float64)
    fifth = max(len(samples) // 5, 1)
    rows = []
    for index, figure in enumerate(Sample._fields[1:], start=1):
        column = table[:, index]
        slope = np.polyfit(table[:, 0] / 60.0, column, 1)[0] if len(samples) > 1 else 0.0
        rows.append(
            Growth(
                process=process,
                figure=figure,
                unit='MB' if figure in MEMORY else '',
                first=float(np.median(column[:fifth])),
                last=float(np.median(column[-fifth:])),
                slope_per_min=float(slope),
                largest=float(column.max()),
            )
        )
    return rows


class Watcher(Listener):
    """The newest status of the streamer."""

    def __init__(self) -> None:
        super().__init__('soak')
        self.status: StreamerStatus | None = None
        self.listen(StreamerStatus, 'action_streamer/status', self._take)
        self.begin()

    def _take(self, message: StreamerStatus) -> None:
        with self.changed:
            self.status = message
            self.changed.notify_all()

    def streams(self) -> bool:
        return self.status is not None and self.status.state == 'streaming'


def start(processes: Processes, scratch: Path) -> dict[str, int]:
    """The load and both nodes; process ids of the nodes."""
    common = {
        'robot': write_contract(scratch / 'robot.yaml', size=SIZE),
        'autostart': True,
        'chunking.mode': 'ensemble',
    }
    policy = {
        'checkpoint': write_policy(scratch, size=SIZE, small=True),
        'device': 'cpu',
        'threads': 1,
        'chunking.inference_rate_hz': INFERENCE_HZ,
    }
    processes.start('load', CAMERA_LOAD, ['--joints', *JOINTS])
    return {
        'policy': processes.start('policy', POLICY_NODE, ros_arguments(common | policy)),
        'streamer': processes.start(
            'streamer', STREAMER_NODE, ros_arguments(common | {'control.rate_hz': CONTROL_HZ})
        ),
    }


def soak(
    watcher: Watcher, processes: Processes, pids: Mapping[str, int], options: argparse.Namespace
) -> dict[str, list[Sample]]:
    """Sample and reset until the time is over."""
    samples: dict[str, list[Sample]] = {name: [] for name in pids}
    begin_s = time.monotonic()
    end_s = begin_s + max(60.0 * options.minutes - SETTLE_S, 2 * SAMPLE_S)
    reset_s = begin_s + options.reset
    while (now_s := time.monotonic()) < end_s:
        processes.check()
        for name, pid in pids.items():
            samples[name].append(Sample.of(pid, at_s=now_s - begin_s))
        if now_s >= reset_s:
            reset_s += options.reset
            for service in RESETS:
                if not watcher.call(service):
                    raise SystemExit(f'{service} failed; logs in {os.environ["ROS_LOG_DIR"]}')
        time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - now_s)))
    return samples


def run(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    watcher = Watcher()
    try:
        with Processes() as processes:
            pids = start(processes, scratch)
            watcher.wait_for(watcher.streams, 'motion', limit_s=START_LIMIT_S)
            print(f'the robot moves; {SETTLE_S:.0f} s to settle', flush=True)
            time.sleep(SETTLE_S)
            first = watcher.status
            samples = soak(watcher, processes, pids, options)
            last = watcher.status
    finally:
        watcher.close()
    return {
        'samples': samples,
        'growth': [row for name, taken in samples.items() for row in growth(name, taken)],
        'commands': commands(first, last),
    }


def commands(first: StreamerStatus, last: StreamerStatus) -> dict[str, float]:
    """What the streamer sent between two of its statuses."""
    stamps_s = [m.header.stamp.sec + m.header.stamp.nanosec / 1e9 for m in (first, last)]
    return {
        'seconds': stamps_s[1] - stamps_s[0],
        'rate_hz': CONTROL_HZ,
        'sent': last.commands - first.commands,
        'missed_periods': last.overruns - first.overruns,
        'underruns': last.underruns - first.underruns,
        'chunks': last.chunks_taken - first.chunks_taken,
    }


def table(result: Mapping[str, Any]) -> str:
    sent = result['commands']
    header = (
        f'{"process":<9} {"figure":<10} {"first":>9} {"last":>9} {"largest":>9} {"per min":>9}'
    )
    return '\n'.join(
        [
            header,
            *(row.line() for row in result['growth']),
            f'memory in MB; {sent["sent"]} commands in {sent["seconds"]:.0f} s at '
            f'{sent["rate_hz"]:g} Hz, {sent["missed_periods"]} periods missed, '
            f'{sent["chunks"]} chunks, {sent["underruns"]} underruns',
        ]
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=30.0, help='in all (default 30)')
    parser.add_argument(
        '--reset', type=float, default=20.0, metavar='S', help='seconds from reset to reset'
    )
    parser.add_argument('--json', type=Path, help='also write the result and all samples here')
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    prepare_environment('soak')
    rclpy.init()
    try:
        facts = machine()
        with tempfile.TemporaryDirectory() as scratch:
            result = run(options, Path(scratch))
    finally:
        rclpy.try_shutdown()
    passed = all(row.passed for row in result['growth'])
    print('\n'.join(f'{name}: {value}' for name, value in facts.items()))
    print(table(result))
    print('pass' if passed else 'FAIL')
    if options.json:
        content = {
            'machine': facts,
            'pass': passed,
            'growth': [{**asdict(row), 'pass': row.passed} for row in result['growth']],
            'commands': result['commands'],
            'samples': {
                name: [sample._asdict() for sample in taken]
                for name, taken in result['samples'].items()
            },
        }
        options.json.write_text(json.dumps(content, indent=2))
    return 0 if passed else 1


if __name__ == '__main__':
    sys.exit(main())

"""A replay in a process of its own: the same as here, and it never leaves anybody waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_factory import write_db3, write_mcap
from parity_bags import command, drive, write_robot
from parity_fakes import ToyLoader, ToyPolicy, loaded_toy, make_replay

from sparkrt_ros.nodes.policy_parameters import pacing_config
from sparkrt_ros.replay.apart import ReplayApart, ReplayFailed, ReplayJob
from sparkrt_ros.replay.arms import ArmSpec, node_values
from sparkrt_ros.replay.bag import open_bag
from sparkrt_ros.replay.bag_errors import BagError
from sparkrt_ros.replay.offline import ReplayOptions
from sparkrt_ros.replay.receipt import receipt
from sparkrt_ros.replay.run import ParityOptions, run_parity
from sparkrt_ros.runtime.errors import ConfigError


class Rig:
    def __init__(self, folder: Path) -> None:
        self.robot = write_robot(folder)
        self.bag = folder / 'bag.mcap'
        commands = [command(m.log_ns + 1, [0.1] * 5) for m in drive(seconds=3.0)[::10]]
        messages = sorted([*drive(seconds=3.0), *commands], key=lambda m: m.log_ns)
        write_mcap(self.bag, messages)

    def job(self, *, bag: Path | None = None, **options: Any) -> ReplayJob:
        loaded = loaded_toy(self.robot)
        return ReplayJob.of(
            bag or self.bag,
            loaded,
            ReplayOptions(**options),
            pacing=pacing_config(node_values({}), loaded),
            task='',
            max_skew_s=0.0,
        )


@contextmanager
def started(job: ReplayJob) -> Iterator[ReplayApart]:
    with ReplayApart() as apart:
        apart.begin(job)
        yield apart


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_observations_and_outcome_are_those_of_a_replay_here(rig: Rig) -> None:
    with open_bag(rig.bag) as bag:
        replay = make_replay(bag, rig.robot, with_commands=True)
        here, told = list(replay), replay.outcome()
    with started(rig.job(with_commands=True)) as apart:
        there, retold = list(apart), apart.outcome()
    assert len(here) == len(there) == 8
    for a, b in zip(here, there, strict=True):
        assert a.record == b.record
        assert a.observation.images.keys() == b.observation.images.keys()
        for key, image in a.observation.images.items():
            assert np.array_equal(image, b.observation.images[key])
        assert np.array_equal(a.observation.state, b.observation.state)
    assert told.events.events == retold.events.events
    assert told.events.counts == retold.events.counts
    for name in ('ticks_ns', 'poses', 'pose_ticks', 'chunk_ticks'):
        assert np.array_equal(
            getattr(told.script, name), getattr(retold.script, name), equal_nan=name == 'poses'
        )
    assert told.recording is not None
    assert retold.recording is not None
    assert np.array_equal(told.recording.track.commands, retold.recording.track.commands)


@pytest.mark.parametrize('few', [None, 2])
def test_a_database_is_read_there_too(rig: Rig, tmp_path: Path, few: int | None) -> None:
    write_db3(tmp_path / 'bag.db3', drive(seconds=3.0))
    with started(rig.job(bag=tmp_path / 'bag.db3', max_chunks=few)) as apart:
        assert len(list(apart)) == (few or 8)
        assert apart.outcome().bag_complete


def test_a_run_gives_the_same_either_way(rig: Rig) -> None:
    receipts = []
    for apart in (False, True):
        result = run_parity(
            ParityOptions(
                bag=rig.bag,
                robot=str(rig.robot),
                checkpoint=Path('/toy'),
                candidates=(ArmSpec(backend='fused'),),
                against_recorded=True,
                apart=apart,
            ),
            load=ToyLoader(ToyPolicy(), ToyPolicy()),
        )
        content = receipt(result)
        for name in ('measured', 'environment'):
            content['provenance'].pop(name)
        receipts.append(json.dumps(content))
    assert receipts[0] == receipts[1]


def test_its_errors_arrive_as_they_are(rig: Rig, tmp_path: Path) -> None:
    with started(rig.job(namespace='/elsewhere')) as apart:
        with pytest.raises(ConfigError, match='add --namespace /') as error:
            list(apart)
        assert error.value.where == 'topics of the bag'
        assert error.value.remedy is not None
    with (
        started(rig.job(bag=tmp_path / 'nothing')) as apart,
        pytest.raises(BagError, match='nothing'),
    ):
        list(apart)


def test_a_defect_there_is_told_with_its_traceback(rig: Rig) -> None:
    job = rig.job()
    object.__setattr__(job, 'pacing', None)
    with (
        started(job) as apart,
        pytest.raises(ReplayFailed, match=r'(?s)Traceback.*AttributeError'),
    ):
        list(apart)


def test_the_death_of_the_process_is_an_error_and_no_wait(rig: Rig) -> None:
    with started(rig.job()) as apart:
        os.kill(apart._process.pid, signal.SIGKILL)
        with pytest.raises(ReplayFailed, match='exit code -9'):
            list(apart)


def test_without_a_job_it_ends_as_well() -> None:
    with ReplayApart() as apart:
        pass
    assert apart._process.poll() is not None


def test_leaving_early_ends_the_process(rig: Rig) -> None:
    with started(rig.job()) as apart:
        assert next(iter(apart)).record.index == 0
    assert apart._process.poll() is not None


def test_it_works_for_a_script_without_a_guard_around_its_main_part(
    rig: Rig, tmp_path: Path
) -> None:
    """Which processes made by multiprocessing would not."""
    test_folder = Path(__file__).resolve().parents[1]
    script = tmp_path / 'script.py'
    script.write_text(
        'import sys\n'
        f'sys.path[:0] = [{str(test_folder)!r}, {str(test_folder.parent)!r}]\n'
        'from pathlib import Path\n'
        'from parity_fakes import ToyLoader, ToyPolicy\n'
        'from sparkrt_ros.replay.run import ParityOptions, run_parity\n'
        'print("started")\n'
        f'options = ParityOptions(bag=Path({str(rig.bag)!r}), robot={str(rig.robot)!r},\n'
        '    checkpoint=Path("/toy"), apart=True)\n'
        'print(run_parity(options, load=ToyLoader(ToyPolicy(), ToyPolicy())).band)\n'
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout.split() == ['started', 'pass'], done.stderr

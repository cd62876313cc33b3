"""Captures beside threads that allocate, copy and wait; and a process forked too late."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sparkrt_ros.runtime.backends.base import Region
from sparkrt_ros.runtime.backends.cudagraph import CudaGraphBackend
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import SparkRTError
from sparkrt_ros.runtime.parity import probe_observations
from sparkrt_ros.runtime.policy import load_policy

STARTS = 100
POLICY_STARTS = 8
TOLERANCE = 1e-5
LIMIT_S = 30.0

pytestmark = pytest.mark.gpu


class Disturber:
    """A thread that does to the device what a capture must survive; keeps every error."""

    def __init__(self) -> None:
        self.rounds = 0
        self.errors: list[str] = []
        self._began = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._began.wait(LIMIT_S)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._disturb()
            except Exception as error:
                self.errors.append(f'{type(error).__name__}: {error}')
            self._began.set()

    def _disturb(self) -> None:
        self.rounds += 1
        # Another size each time, so that it is not found in a cache.
        pinned = torch.full((1000 + self.rounds * 997 % 250_000,), 3.0, pin_memory=True)
        there = pinned.to('cuda', non_blocking=True)
        torch.cuda.synchronize()
        assert (there + 1).cpu()[-1] == 4.0


@pytest.fixture
def disturber() -> Iterator[Disturber]:
    disturber = Disturber()
    yield disturber
    disturber.stop()


def network(seed: int) -> Region:
    generator = torch.Generator('cuda').manual_seed(seed)
    weights = [torch.randn(64, 64, device='cuda', generator=generator) / 8 for _ in range(20)]

    def compute(x: Tensor) -> Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    return Region(name='network', fn=compute, capturable=True)


def start_once(seed: int) -> str:
    """A fresh start of a region; returns the form it took. Its results are checked."""
    region = network(seed)
    backend = CudaGraphBackend(device=torch.device('cuda', 0))
    run = backend.compile(region)
    for index in range(3):
        generator = torch.Generator('cuda').manual_seed(1000 * seed + index)
        x = torch.randn(8, 64, device='cuda', generator=generator)
        assert (run(x) - region.fn(x)).abs().max().item() <= TOLERANCE
    return str(backend.report()['network']['form'])


def test_a_hundred_starts_work_beside_a_thread_that_disturbs(
    disturber: Disturber, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        forms = [start_once(seed) for seed in range(STARTS)]
    disturber.stop()
    assert disturber.errors == []
    assert disturber.rounds > STARTS / 10
    assert set(forms) <= {'cudagraph', 'eager'}
    warnings = [record for record in caplog.records if 'runs eagerly' in record.getMessage()]
    assert len(warnings) == forms.count('eager')
    assert forms.count('cudagraph') >= STARTS / 2


def test_whole_policies_start_beside_a_thread_that_disturbs(
    disturber: Disturber, act_folder: Path
) -> None:
    reference = load_policy(act_folder, config=RuntimeConfig(device='cuda', backend='eager'))
    seen = probe_observations(reference.capabilities, count=2, seed=5)
    wanted = [reference.predict_chunk(observation) for observation in seen]
    for _ in range(POLICY_STARTS):
        with load_policy(act_folder, config=RuntimeConfig(device='cuda')) as policy:
            policy.warm_up()
            for observation, chunk in zip(seen, wanted, strict=True):
                difference = np.abs(policy.predict_chunk(observation) - chunk).max()
                assert difference <= TOLERANCE * max(1.0, float(np.abs(chunk).max()))
    disturber.stop()
    assert disturber.errors == []


@pytest.mark.slow
def test_a_policy_compiled_by_one_thread_serves_another(act_folder: Path) -> None:
    eager = load_policy(act_folder, config=RuntimeConfig(device='cuda', backend='eager'))
    policy = load_policy(act_folder, config=RuntimeConfig(device='cuda', backend='torchcompile'))
    policy.warm_up()
    assert policy.receipt['backend'] == 'torchcompile'
    seen = probe_observations(policy.capabilities, count=3, seed=9)
    with ThreadPoolExecutor(max_workers=1) as worker:
        chunks = [worker.submit(policy.predict_chunk, item).result(LIMIT_S) for item in seen]
    for observation, chunk in zip(seen, chunks, strict=True):
        wanted = eager.predict_chunk(observation)
        difference = np.abs(chunk - wanted).max()
        assert difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))


def test_a_worker_records_and_replays_while_the_main_thread_works() -> None:
    problems: list[BaseException] = []
    counts: list[int] = []

    def work() -> None:
        try:
            region = network(0)
            backend = CudaGraphBackend(device=torch.device('cuda', 0))
            run = backend.compile(region)
            for index in range(200):
                x = torch.full((8, 64), index / 200, device='cuda')
                assert (run(x) - region.fn(x)).abs().max().item() <= TOLERANCE
            counts.append(backend.report()['network']['replays'])
        except BaseException as error:
            problems.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    deadline = time.monotonic() + LIMIT_S
    rounds = 0
    while worker.is_alive() and time.monotonic() < deadline:
        assert torch.ones(1000, pin_memory=True).to('cuda', non_blocking=True).sum() == 1000
        torch.cuda.synchronize()
        rounds += 1
    worker.join(1.0)
    assert not worker.is_alive()
    assert problems == []
    assert counts == [200]
    assert rounds > 0


def load_in_child(folder: Path, connection: Connection) -> None:
    try:
        load_policy(folder, config=RuntimeConfig(device='cuda'))
        connection.send('loaded')
    except SparkRTError as error:
        connection.send(str(error))
    except BaseException as error:
        connection.send(f'not deliberate: {type(error).__name__}: {error}')
    connection.close()
    # A forked child must not run what the parent registered for its own end.
    os._exit(0)


def test_a_forked_child_is_told_to_spawn(act_folder: Path) -> None:
    torch.zeros(1, device='cuda')
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context('fork').Process(
        target=load_in_child, args=(act_folder, there)
    )
    child.start()
    try:
        assert here.poll(LIMIT_S), 'the child said nothing'
        text = here.recv()
    finally:
        child.kill()
        child.join()
    assert text.startswith('device: ')
    assert 'forked after CUDA had started' in text
    assert "'spawn'" in text

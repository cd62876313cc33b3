"""A device without memory, without a future, or not there at all."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError, ConfigError
from sparkrt_ros.runtime.policy import load_policy

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
ON_CUDA = RuntimeConfig(device='cuda')

TAKE_MEMORY = """
import sys, torch
torch.zeros(1, device='cuda')
free, total = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device='cuda')
print('ready', flush=True)
sys.stdin.read()
"""

LOAD = """
import sys
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.policy import load_policy
try:
    load_policy(sys.argv[1], config=RuntimeConfig(device='cuda'))
except BackendError as error:
    print(error)
"""

BREAK = """
import json, os, sys, torch
from sparkrt_ros.nodes.inference_thread import is_sticky
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.errors import SparkRTError
from sparkrt_ros.runtime.parity import probe_observations
from sparkrt_ros.runtime.policy import load_policy

policy = load_policy(sys.argv[1], config=RuntimeConfig(device='cuda', backend=sys.argv[2]))
policy.warm_up()
observation = probe_observations(policy.capabilities, count=1)[0]
good = [policy.predict_chunk(observation) for _ in range(3)]
values, outside = torch.zeros(4, device='cuda'), torch.tensor([10], device='cuda')
values[outside]
errors = []
for _ in range(2):
    try:
        policy.predict_chunk(observation)
    except Exception as error:
        errors.append([str(error), is_sticky(error), isinstance(error, SparkRTError)])
print(json.dumps({'good': len(good), 'errors': errors}), flush=True)
os._exit(0)
"""

pytestmark = pytest.mark.gpu


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, '-c', code, *map(str, arguments)]


def run_python(code: str, *arguments: object) -> str:
    environment = {**os.environ, 'PYTHONPATH': f'{ROOT}:{os.environ.get("PYTHONPATH", "")}'}
    result = subprocess.run(
        python(code, *arguments),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture
def other_process() -> Iterator[None]:
    """Another process leaves 200 MB of the device."""
    torch.cuda.empty_cache()
    command = python(TAKE_MEMORY, 200_000_000)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == 'ready\n'
        yield
        holder.kill()


def bytes_in(message: str) -> tuple[int, int]:
    """The bytes needed and free that a message names."""
    needed = re.search(r'more than [\d.]+ MB \((\d+) bytes\) for the weights', message)
    free = re.search(r'found [\d.]+ MB \((\d+) bytes\) free of', message)
    assert needed is not None, message
    assert free is not None, message
    return int(needed.group(1)), int(free.group(1))


def test_too_little_memory_names_what_is_needed_and_free(act_folder: Path) -> None:
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info()
    held = torch.empty(free_bytes - 40_000_000, dtype=torch.uint8, device='cuda')
    with pytest.raises(BackendError) as caught:
        load_policy(act_folder, config=ON_CUDA)
    needed, free = bytes_in(str(caught.value))
    # A resnet18 has 11 million weights.
    assert 40_000_000 < needed < 200_000_000
    assert free < 45_000_000
    assert 'end other programs' in str(caught.value)
    del caught, held
    gc.collect()
    torch.cuda.empty_cache()
    with load_policy(act_folder, config=ON_CUDA) as policy:
        assert policy.receipt['backend'] == 'cudagraph'


@pytest.mark.usefixtures('other_process')
def test_memory_taken_by_another_process_is_named(act_folder: Path) -> None:
    """200 MB hold not even CUDA itself."""
    needed, free = bytes_in(run_python(LOAD, act_folder))
    assert needed > 40_000_000
    assert free < 250_000_000


@pytest.mark.parametrize('backend', ['cudagraph', 'eager'])
def test_a_broken_device_is_told_as_such_and_for_ever(act_folder: Path, backend: str) -> None:
    found = json.loads(run_python(BREAK, act_folder, backend))
    assert found['good'] == 3
    assert len(found['errors']) == 2
    for text, sticky, deliberate in found['errors']:
        assert 'device-side assert' in text
        assert sticky
        assert not deliberate


def test_a_device_that_is_not_there_names_those_that_are(act_folder: Path) -> None:
    count = torch.cuda.device_count()
    with pytest.raises(ConfigError) as caught:
        load_policy(act_folder, config=RuntimeConfig(device=f'cuda:{count + 2}'))
    text = str(caught.value)
    assert f"'cuda:{count + 2}'" in text
    assert f'cuda:0 ({torch.cuda.get_device_name(0)})' in text
    assert 'cpu' in text

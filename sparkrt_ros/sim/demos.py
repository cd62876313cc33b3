"""Demonstrations: the expert at work under disturbances, as the policy will see it.

What is recorded is the expert's own command for every visited state; what the arm receives is that
command late, with noise and now and then a kick, and some episodes begin in the middle. The policy
so learns to recover from states that its own errors lead to.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sparkrt_ros.sim.arm import ARM_JOINTS, JOINT_NAMES, ArmDynamics, TipPose, inverse
from sparkrt_ros.sim.expert import Expert
from sparkrt_ros.sim.task import CAMERAS, PickPlace

FloatArray = npt.NDArray[np.float64]
ImageArray = npt.NDArray[np.uint8]

FIRST_TRAINING_SEED = 1_000_000
"""Seeds below are never trained on."""


@dataclass(frozen=True, kw_only=True)
class DemoSpec:
    """How images are kept and how the expert is disturbed."""

    width: int = 128
    height: int = 96
    after_success_s: float = 1.5
    limit_s: float = 14.0
    noise_rad: float = 0.022
    noise_memory_s: float = 0.3
    kick_rate_hz: float = 0.25
    kick_rad: float = 0.12
    kick_s: tuple[float, float] = (0.15, 0.5)
    most_delay_s: float = 0.15
    displaced_share: float = 0.5
    holding_share: float = 0.15


@dataclass(frozen=True, kw_only=True)
class Episode:
    """images: by camera (T, H, W, 3) uint8; states and actions: (T, 5) float32 [rad]."""

    images: Mapping[str, ImageArray]
    states: npt.NDArray[np.float32]
    actions: npt.NDArray[np.float32]
    success: bool


def shrink(image: ImageArray, width: int, height: int) -> ImageArray:
    """The camera picture as the policy sees it; the robot's contract declares the same."""
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


class Disturbance:
    """Delay, coloured noise and kicks between the expert and the arm, one command a period."""

    def __init__(self, spec: DemoSpec, random: np.random.Generator, period_s: float) -> None:
        self._spec = spec
        self._random = random
        self._period_s = period_s
        self._noise = np.zeros(len(JOINT_NAMES))
        self._scale = random.uniform(0.0, spec.noise_rad) * np.array([1, 1, 1, 1, 2.0])
        self._keep = np.exp(-period_s / spec.noise_memory_s)
        self._kick = np.zeros(len(JOINT_NAMES))
        self._kick_left_s = 0.0
        delay_s = random.uniform(0.0, spec.most_delay_s)
        self._line: deque[FloatArray] = deque(maxlen=1 + round(delay_s / period_s))

    def apply(self, command: FloatArray) -> FloatArray:
        """What the arm is told when the expert says ``command`` (5,) [rad]."""
        self._line.append(command)
        fresh = self._random.normal(size=command.shape) * self._scale
        self._noise = self._keep * self._noise + np.sqrt(1 - self._keep**2) * fresh
        self._kick_left_s -= self._period_s
        if self._random.random() < self._spec.kick_rate_hz * self._period_s:
            self._kick_left_s = self._random.uniform(*self._spec.kick_s)
            self._kick = self._random.normal(size=command.shape) * self._spec.kick_rad
            self._kick[ARM_JOINTS] = self._random.choice((0.0, 0.0, 0.8, -0.8))
        kick = self._kick if self._kick_left_s > 0 else 0.0
        return self._line[0] + self._noise + kick


def displace(task: PickPlace, random: np.random.Generator, *, holding: bool) -> None:
    """Put the arm anywhere in the workspace, with the cube in its fingers if ``holding``."""
    pose = TipPose(
        pan_rad=random.uniform(-1.1, 1.1),
        reach_m=random.uniform(0.15, 0.30),
        height_m=random.uniform(0.03, 0.19),
    )
    arm = task.spec.arm
    closed = task.cube.spec.side_m / arm.opening_m_per_rad
    gripper = closed if holding else random.uniform(0.0, 1.0)
    task.arm = ArmDynamics(arm, np.append(inverse(arm, pose), gripper))
    if holding:
        tip = task.arm.tip
        task.cube.position_m = tip.position_m + np.array([0.0, 0.0, random.uniform(0, 0.008)])
        task.cube.yaw_rad = tip.pan_rad
        task.cube.take(tip)


def record(seed: int, spec: DemoSpec) -> Episode:
    """One disturbed episode of the expert."""
    cv2.setNumThreads(1)
    random = np.random.default_rng((seed, 1))
    task, expert = PickPlace(seed=seed), Expert()
    period_s = 1.0 / task.spec.policy_rate_hz
    draw = random.random()
    if draw < spec.displaced_share:
        displace(task, random, holding=draw < spec.holding_share)
    disturbance = Disturbance(spec, random, period_s)
    images: dict[str, list[ImageArray]] = {camera: [] for camera in CAMERAS}
    states, actions = [], []
    left_s = spec.after_success_s
    while left_s > 0 and task.elapsed_s < spec.limit_s:
        for camera, image in task.render().items():
            images[camera].append(shrink(image, spec.width, spec.height))
        command = expert.command(task)
        states.append(task.arm.positions_rad)
        actions.append(command)
        task.step(disturbance.apply(command))
        left_s = left_s - period_s if task.success else spec.after_success_s
    return Episode(
        images={camera: np.stack(frames) for camera, frames in images.items()},
        states=np.array(states, dtype=np.float32),
        actions=np.array(actions, dtype=np.float32),
        success=task.success,
    )


def record_many(
    seeds: Sequence[int], spec: DemoSpec, *, processes: int | None = None
) -> Iterator[Episode]:
    """Episodes in the order of ``seeds``, recorded by ``processes`` (all cores by default)."""
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        yield from (record(seed, spec) for seed in seeds)
        return
    context = multiprocessing.get_context('forkserver')
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(record, seeds, [spec] * len(seeds), chunksize=4)

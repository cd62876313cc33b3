"""A small robot with a policy, and bags of it in every form, for tests of parity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bag_factory import (
    IMAGE,
    JOINT_STATE,
    MULTI_ARRAY,
    SECOND,
    START_NS,
    Recorded,
    cdr,
    header,
    message,
)

JOINTS = ('a', 'b', 'c', 'd', 'e')
PI_JOINTS = tuple(f'joint_{number}' for number in range(7))
CAMERA_HZ, JOINT_HZ, COMMAND_HZ = 10, 50, 50
CLOCK = 'rosgraph_msgs/msg/Clock'
CAMERAS = ('/front/image_raw', '/wrist/image_raw')


def contract(**changes: Any) -> dict[str, Any]:
    """The robot of ``tiny_config`` of the test policies: two 64x64 cameras, five joints."""
    content: dict[str, Any] = {
        'name': 'little',
        'policy_rate_hz': 10,
        'control_rate_hz': 50,
        'hold_s': 0.5,
        'max_skew_s': 0.12,
        'cameras': [
            {
                'name': name,
                'key': f'observation.images.{name}',
                'topic': f'{name}/image_raw',
                'source_size': [64, 64],
                'max_age_s': 0.3,
            }
            for name in ('front', 'wrist')
        ],
        'joints': [
            {'name': name, 'unit': 'rad', 'limits': [-3, 3], 'max_velocity': 50} for name in JOINTS
        ],
        'state': {
            'streams': [{'name': 'arm', 'topic': 'joint_states', 'max_age_s': 0.2}],
            'vector': list(JOINTS),
        },
        'action': {
            'vector': list(JOINTS),
            'outputs': [
                {
                    'name': 'arm',
                    'type': 'float64_multi_array',
                    'topic': 'commands',
                    'joints': list(JOINTS),
                }
            ],
        },
    }
    return {**content, **changes}


def write_robot(folder: Path, **changes: Any) -> Path:
    path = folder / 'little.yaml'
    path.write_text(yaml.safe_dump(contract(**changes)))
    return path


def write_pi_robot(folder: Path) -> Path:
    """The robot of the tiny Pi0.5 of the tests: seven joints, pictures in its sizes."""
    plan, sizes = contract(), {'front': [64, 48], 'wrist': [33, 61]}
    joint = {'unit': 'rad', 'limits': [-3, 3], 'max_velocity': 50}
    output = {**plan['action']['outputs'][0], 'joints': list(PI_JOINTS)}
    return write_robot(
        folder,
        cameras=[{**camera, 'resize': sizes[camera['name']]} for camera in plan['cameras']],
        joints=[{'name': name, **joint} for name in PI_JOINTS],
        state={**plan['state'], 'vector': list(PI_JOINTS)},
        action={'vector': list(PI_JOINTS), 'outputs': [output]},
    )


def positions(time_s: float, *, count: int = len(JOINTS)) -> np.ndarray:
    """(count,) where the arm is: smooth, never twice the same."""
    return np.array([math.sin((0.7 + 0.1 * i) * time_s + i) for i in range(count)])


def camera(topic: str, log_ns: int, *, stamp_ns: int | None = None, time_s: float) -> Recorded:
    """A bright square that moves over a gradient."""
    row = np.linspace(20, 120, 64, dtype=np.float64)
    picture = np.repeat((row[:, None] + row[None, :])[..., None] / 2, 3, axis=2)
    shift = 12 if topic == CAMERAS[0] else 30
    at = int(24 + 20 * math.sin(time_s + shift)), int(24 + 20 * math.cos(1.3 * time_s + shift))
    picture[at[0] : at[0] + 14, at[1] : at[1] + 14] = (250, 60, 90)
    stamp = header(log_ns if stamp_ns is None else stamp_ns)
    pixels = picture.astype(np.uint8).ravel()
    content = message(IMAGE, stamp, 64, 64, 'rgb8', 0, 192, pixels)
    return Recorded(topic=topic, kind=IMAGE, log_ns=log_ns, data=cdr(content))


def joint_states(
    log_ns: int,
    *,
    stamp_ns: int | None = None,
    time_s: float,
    names: Sequence[str] = JOINTS,
) -> Recorded:
    stamp = header(log_ns if stamp_ns is None else stamp_ns)
    none = np.array([])
    values = positions(time_s, count=len(names))
    content = message(JOINT_STATE, stamp, list(names), values, none, none)
    return Recorded(topic='/joint_states', kind=JOINT_STATE, log_ns=log_ns, data=cdr(content))


def command(log_ns: int, values: Iterable[float], *, topic: str = '/commands') -> Recorded:
    layout = message('std_msgs/msg/MultiArrayLayout', [], 0)
    content = message(MULTI_ARRAY, layout, np.array(list(values), dtype=np.float64))
    return Recorded(topic=topic, kind=MULTI_ARRAY, log_ns=log_ns, data=cdr(content))


def clock(log_ns: int, time_ns: int) -> Recorded:
    stamp = message('builtin_interfaces/msg/Time', *divmod(time_ns, SECOND))
    return Recorded(topic='/clock', kind=CLOCK, log_ns=log_ns, data=cdr(message(CLOCK, stamp)))


def drive(
    *,
    seconds: float = 3.0,
    start_ns: int = START_NS,
    stamp_offset_ns: int = 0,
    zero_stamps: bool = False,
    moving: bool = True,
    commands: bool = False,
    names: Sequence[str] = JOINTS,
) -> list[Recorded]:
    """What two cameras and the joints say, by log time; each a little after it was taken.

    stamp_offset_ns: header stamps minus log times, delays apart.
    """
    made: list[Recorded] = []

    def stamp(taken_ns: int) -> int:
        return 0 if zero_stamps else taken_ns + stamp_offset_ns

    for topic, delay_ns in zip(CAMERAS, (9_000_000, 14_000_000), strict=True):
        for k in range(round(seconds * CAMERA_HZ)):
            taken_ns = start_ns + k * SECOND // CAMERA_HZ
            time_s = k / CAMERA_HZ if moving else 0.0
            log_ns = taken_ns + delay_ns
            made.append(camera(topic, log_ns, stamp_ns=stamp(taken_ns), time_s=time_s))
    for k in range(round(seconds * JOINT_HZ)):
        taken_ns = start_ns + k * SECOND // JOINT_HZ
        time_s = k / JOINT_HZ if moving else 0.0
        log_ns = taken_ns + 1_000_000
        made.append(joint_states(log_ns, stamp_ns=stamp(taken_ns), time_s=time_s, names=names))
        if commands:
            made.append(command(log_ns + 500_000, positions(time_s + 0.02)))
    return sorted(made, key=lambda recorded: recorded.log_ns)


def in_namespace(messages: Iterable[Recorded], namespace: str) -> list[Recorded]:
    return [
        Recorded(topic=f'{namespace}{m.topic}', kind=m.kind, log_ns=m.log_ns, data=m.data)
        for m in messages
    ]

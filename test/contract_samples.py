"""One contract that uses every key, for tests that change a thing and look what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

GOOD_CONTRACT: dict[str, Any] = {
    'name': 'test',
    'description': 'an arm on a base',
    'policy_rate_hz': 10,
    'control_rate_hz': 50,
    'hold_s': 0,
    'max_skew_s': 0.05,
    'cameras': [
        {
            'name': 'front',
            'key': 'observation.images.front',
            'topic': 'front/image_raw',
            'max_age_s': 0.2,
            'source_size': [64, 48],
            'crop': [8, 0, 48, 48],
            'resize': [24, 24],
            'interpolation': 'linear',
        },
        {
            'name': 'depth',
            'key': 'observation.images.depth',
            'topic': '/depth/image_raw',
            'type': 'compressed_image',
            'max_age_s': 1,
            'encoding': '16UC1',
            'depth_range_m': [0, 2],
            'align': 'latest',
            'clock': 'header',
            'zero_stamp': 'receive',
        },
    ],
    'joints': [
        {'name': 'a', 'unit': 'deg', 'limits': [-1, 1], 'max_velocity': 2, 'sign': -1},
        {
            'name': 'b',
            'unit': 'range_0_100',
            'range': [0.5, -0.5],
            'limits': [-0.4, 0.4],
            'max_velocity': 1.0,
            'max_acceleration': 3.0,
            'offset': 0.1,
        },
        {'name': 'x', 'unit': 'm/s', 'limits': [-0.5, 0.5], 'max_acceleration': 2},
    ],
    'state': {
        'streams': [
            {'name': 'arm', 'topic': 'joint_states', 'max_age_s': 0.1, 'joints': {'a': 'a_joint'}},
            {
                'name': 'tool',
                'topic': 'tool',
                'type': 'float64_multi_array',
                'max_age_s': 0.2,
                'joints': ['b'],
                'align': 'hold',
            },
        ],
        'vector': ['b', {'joint': 'a', 'field': 'velocity'}, 'a'],
    },
    'action': {
        'vector': ['x', 'b', 'a'],
        'outputs': [
            {'name': 'arm', 'type': 'joint_trajectory', 'topic': 'arm', 'joints': ['a', 'b'],
             'time_from_start_s': 0.2},
            {'name': 'base', 'type': 'twist', 'topic': 'cmd_vel', 'joints': {'x': 'linear.x'}},
        ],
    },
}  # fmt: skip


def write_contract(folder: Path, content: Any) -> Path:
    path = folder / 'robot.yaml'
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path

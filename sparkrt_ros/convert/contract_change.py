"""What of a contract may be exchanged while its robot moves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sparkrt_ros.convert.contract_types import JointSpec, RobotContract
from sparkrt_ros.runtime.errors import ContractError

_FREE = ('name', 'description', 'source', 'control_rate_hz', 'hold_s')
# What stays of a joint; everything else about it is a limit.
_FIXED_OF_JOINT = ('name', 'unit', 'sign', 'offset', 'range', 'urdf_joint')


def check_only_limits_differ(now: RobotContract, new: RobotContract) -> None:
    """Raise ContractError, naming the parts, unless ``new`` differs by limits and rates only.

    Limits of joints, the control rate, ``hold_s``, name and description are free; units, topics,
    order and timing of inputs are not.
    """
    differing = [
        item.name
        for item in fields(RobotContract)
        if item.name not in (*_FREE, 'joints')
        and getattr(now, item.name) != getattr(new, item.name)
    ]
    if [_fixed(joint) for joint in now.joints] != [_fixed(joint) for joint in new.joints]:
        differing.append('joints')
    if differing:
        raise ContractError(
            f'contract {new.name} ({new.source or "in memory"})',
            found=f'another {", ".join(differing)} than {now.name} has',
            expected='the same robot with other limits, control_rate_hz or hold_s',
            remedy='deactivate the node and clean it up, set it, then configure again',
        )


def _fixed(joint: JointSpec) -> tuple[Any, ...]:
    return tuple(getattr(joint, name, None) for name in _FIXED_OF_JOINT)

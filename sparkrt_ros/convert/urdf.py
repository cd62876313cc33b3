"""Joint limits from a robot's URDF: the tighter of these and the contract's hold.

Read with the standard library's XML parser. Document types are refused, since entities can expand
without bound and name other files. https://wiki.ros.org/urdf/XML/joint describes the elements.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from sparkrt_ros.convert.contract_types import JointSpec, RobotContract
from sparkrt_ros.convert.yaml_reader import YamlValue
from sparkrt_ros.runtime.errors import ContractError

MAX_CHARACTERS = 16 * 1024 * 1024
_LIMITED = ('revolute', 'prismatic')
_MOVABLE = (*_LIMITED, 'continuous')


@dataclass(frozen=True, kw_only=True)
class UrdfJoint:
    """One joint: kind as in the URDF; lower, upper [rad or m], velocity [rad/s or m/s].

    Infinite where the kind has no such limit. mimics: the joint it follows, '' for none.
    """

    name: str
    kind: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    mimics: str = ''


def narrow_contract(contract: RobotContract, text: str) -> RobotContract:
    """The contract with the limits of ``robot_description``, a URDF, wherever they are tighter.

    Raises ContractError for a text that is no URDF, and for a joint it cannot limit.
    """
    where = f'robot_description for the contract {contract.name!r}'
    urdf = read_urdf(text, where=where)
    joints = narrow_joints(contract.joints, contract.action, urdf, where=where)
    return replace(contract, joints=joints)


def narrowed_by_file(
    value: YamlValue | None, joints: tuple[JointSpec, ...], action: Collection[str], folder: Path
) -> tuple[JointSpec, ...]:
    """The joints with the limits of the URDF that a contract names, relative to its ``folder``."""
    if value is None:
        return joints
    path = folder / Path(value.text()).expanduser()
    if not path.is_file():
        raise value.fail(
            found=f'{path}, which is no file', expected='the URDF of the robot (not a xacro)'
        )
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise value.fail(
            found=f'{path}, which cannot be read: {error}', expected='a URDF in UTF-8'
        ) from error
    return narrow_joints(joints, action, read_urdf(text, where=str(path)), where=str(path))


def read_urdf(text: str, *, where: str) -> dict[str, ElementTree.Element]:
    """The joints of a URDF by name, unread: only those that are commanded need to be sound.

    Raises ContractError for a text that is no URDF, and for two joints of one name.
    """
    joints: dict[str, ElementTree.Element] = {}
    for element in _parse(text, where=where).findall('joint'):
        name = element.get('name', '')
        if name in joints:
            raise ContractError(where, found=f'joint {name!r} twice', expected='each joint once')
        joints[name] = element
    return joints


def narrow_joints(
    joints: Iterable[JointSpec],
    action: Collection[str],
    urdf: Mapping[str, ElementTree.Element],
    *,
    where: str,
) -> tuple[JointSpec, ...]:
    """Those joints that are in ``action`` with the tighter of both limits, the others unchanged.

    Raises ContractError naming the joint that the URDF lacks, or with which no command agrees.
    """
    return tuple(
        _narrowed(joint, urdf, where=where) if joint.name in action else joint for joint in joints
    )


def _narrowed(
    joint: JointSpec, urdf: Mapping[str, ElementTree.Element], *, where: str
) -> JointSpec:
    name = joint.name if joint.urdf_joint is None else joint.urdf_joint
    if not name or (joint.is_velocity and joint.urdf_joint is None and name not in urdf):
        return joint  # a base's speed is no joint
    if name not in urdf:
        known = ', '.join(sorted(n for n, j in urdf.items() if j.get('type') in _MOVABLE))
        raise ContractError(
            where,
            found=f'no joint {name!r}, for the joint {joint.name!r} of the contract',
            expected=f'one of its joints: {known or "none"}',
            remedy='name it with `urdf_joint` in the contract; `urdf_joint: null` where the robot '
            'has it and the URDF does not',
        )
    limits = read_joint(urdf[name], where=where)
    _check_commandable(limits, where=where)
    if joint.is_velocity:
        narrow = replace(
            joint, min=max(joint.min, -limits.velocity), max=min(joint.max, limits.velocity)
        )
    else:
        most = math.inf if joint.max_velocity is None else joint.max_velocity
        narrow = replace(
            joint,
            min=max(joint.min, limits.lower),
            max=min(joint.max, limits.upper),
            max_velocity=min(most, limits.velocity),
        )
    if narrow.min >= narrow.max:
        raise ContractError(
            where,
            found=f'joint {name!r} from {limits.lower:g} to {limits.upper:g}',
            expected=f'limits that meet those of the contract, {joint.min:g} to {joint.max:g}',
            remedy='check zero and direction of the joint: both are SI, as in joint_states',
        )
    return narrow


def _check_commandable(joint: UrdfJoint, *, where: str) -> None:
    if joint.kind not in _MOVABLE:
        raise ContractError(
            where,
            found=f'joint {joint.name!r} of type {joint.kind}',
            expected=f'a joint that takes one value: {", ".join(_MOVABLE)}',
        )
    if joint.mimics:
        raise ContractError(
            where,
            found=f'joint {joint.name!r}, which mimics {joint.mimics!r}',
            expected='a joint that moves by itself',
            remedy=f'command {joint.mimics!r} instead',
        )


def _parse(text: str, *, where: str) -> ElementTree.Element:
    if len(text) > MAX_CHARACTERS:
        raise ContractError(
            where,
            found=f'{len(text)} characters',
            expected=f'a URDF of at most {MAX_CHARACTERS}',
        )
    for declaration in ('<!DOCTYPE', '<!ENTITY'):
        if declaration in text:
            raise ContractError(
                where, found=f'a declaration {declaration}', expected='a URDF without any'
            )
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ContractError(
            where, found=f'no XML: {error}', expected='a URDF, whose root is <robot>'
        ) from error
    if root.tag != 'robot':
        raise ContractError(where, found=f'<{root.tag}>', expected='a URDF, whose root is <robot>')
    return root


def read_joint(element: ElementTree.Element, *, where: str) -> UrdfJoint:
    """Read a ``<joint>``. Raises ContractError for limits that are missing or no numbers."""
    name, kind = element.get('name', ''), element.get('type', '')
    mimic = element.find('mimic')
    mimics = '' if mimic is None else mimic.get('joint', '')
    limit = element.find('limit')
    if kind not in _MOVABLE or (limit is None and kind == 'continuous'):
        return UrdfJoint(name=name, kind=kind, mimics=mimics)
    if limit is None:
        raise ContractError(
            where, found=f'no <limit> of joint {name!r}', expected=f'one, since it is {kind}'
        )
    at = f'{where}: joint {name!r}'
    velocity = _number(limit, 'velocity', where=at)
    if velocity <= 0.0:
        raise ContractError(
            at,
            found=f'velocity {velocity:g}',
            expected='the largest velocity, above 0',
            remedy='take it from the data sheet; `urdf_joint: null` leaves this joint out',
        )
    if kind == 'continuous':
        return UrdfJoint(name=name, kind=kind, velocity=velocity, mimics=mimics)
    return UrdfJoint(
        name=name,
        kind=kind,
        lower=_number(limit, 'lower', where=at, default=0.0),
        upper=_number(limit, 'upper', where=at, default=0.0),
        velocity=velocity,
        mimics=mimics,
    )


def _number(
    element: ElementTree.Element, key: str, *, where: str, default: float | None = None
) -> float:
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(text if text is not None else '')
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ContractError(
            where,
            found=f'{key}={text!r}',
            expected='a finite number',
            remedy='run xacro first' if text and '${' in text else None,
        )
    return value

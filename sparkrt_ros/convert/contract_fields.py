"""Pieces that several sections of a robot contract share."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkrt_ros.convert.contract_types import JointSpec
from sparkrt_ros.convert.yaml_reader import YamlValue

_TOPIC = re.compile(r'^(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$')


def read_aliases(
    value: YamlValue, known: dict[str, JointSpec]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read ``[joint, …]`` or ``{joint: its name in the message, …}``."""
    if isinstance(value.value, dict):
        pairs = value.names()
        for joint, item in pairs.items():
            check_joint(item, joint, known)
        joints = tuple(pairs)
        message_names = tuple(item.text() for item in pairs.values())
    else:
        joints = tuple(read_joint(item, known) for item in value.items())
        message_names = joints
    refuse_duplicates(value, joints, what='joint')
    refuse_duplicates(value, message_names, what='name')
    return joints, message_names


def read_joint(value: YamlValue, known: dict[str, JointSpec]) -> str:
    return check_joint(value, value.text(), known)


def check_joint(value: YamlValue, name: str, known: dict[str, JointSpec]) -> str:
    if name not in known:
        raise value.fail(
            found=f'joint {name!r}',
            expected=f'a joint of this contract: {", ".join(known)}',
            remedy='describe it under `joints`, or correct the name',
        )
    return name


def read_topic(value: YamlValue) -> str:
    name = value.text()
    if not _TOPIC.match(name):
        raise value.fail(
            found=repr(name),
            expected='a ROS topic name (letters, digits, _ and /), relative to the namespace',
        )
    return name


def refuse_duplicates(value: YamlValue, names: Iterable[str], *, what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise value.fail(found=f'{what} {name!r} twice', expected=f'each {what} once')
        seen.add(name)


def optional_positive(value: YamlValue | None) -> float | None:
    return None if value is None else value.number(above=0)

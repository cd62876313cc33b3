"""From a contract's YAML to :class:`RobotContract`, refusing whatever is not fully understood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparkrt_ros.convert.contract_fields import (
    optional_positive,
    read_aliases,
    read_joint,
    read_topic,
    refuse_duplicates,
)
from sparkrt_ros.convert.contract_streams import read_cameras, read_state
from sparkrt_ros.convert.contract_types import (
    OUTPUT_TYPES,
    TWIST_COMPONENTS,
    JointSpec,
    OutputGroup,
    RobotContract,
)
from sparkrt_ros.convert.units import RANGE_UNITS, UNITS, VELOCITY_UNITS
from sparkrt_ros.convert.urdf import narrowed_by_file
from sparkrt_ros.convert.yaml_reader import YamlValue, read_yaml


def read_contract(path: Path) -> RobotContract:
    """Read and check one contract file. Raises ContractError naming file and key path."""
    root = read_yaml(path)
    keys = root.mapping(
        required=('name', 'policy_rate_hz', 'control_rate_hz', 'hold_s', 'joints', 'action'),
        optional=('description', 'max_skew_s', 'cameras', 'state', 'urdf'),
    )
    joints = _joints(keys['joints'])
    known = {joint.name: joint for joint in joints}
    action = keys['action'].mapping(required=('vector', 'outputs'))
    vector = _action_vector(action['vector'], known)
    state, streams = read_state(keys['state'], known) if 'state' in keys else ((), ())
    contract = RobotContract(
        name=keys['name'].text(),
        description=keys['description'].text() if 'description' in keys else '',
        policy_rate_hz=keys['policy_rate_hz'].number(above=0),
        control_rate_hz=keys['control_rate_hz'].number(above=0),
        hold_s=keys['hold_s'].number(at_least=0),
        max_skew_s=keys['max_skew_s'].number(above=0) if 'max_skew_s' in keys else 0.1,
        joints=narrowed_by_file(keys.get('urdf'), joints, vector, path.parent),
        action=vector,
        outputs=_outputs(action['outputs'], vector, known),
        cameras=read_cameras(keys['cameras']) if 'cameras' in keys else (),
        state=state,
        state_streams=streams,
        source=str(path),
    )
    _check_rates(keys['control_rate_hz'], contract)
    _check_all_joints_used(keys['joints'], contract)
    if 'cameras' in keys:
        _check_stream_names(keys['cameras'], contract)
    return contract


def _check_rates(value: YamlValue, contract: RobotContract) -> None:
    if contract.control_rate_hz < contract.policy_rate_hz:
        raise value.fail(
            found=f'{contract.control_rate_hz:g} Hz, below policy_rate_hz',
            expected=f'at least {contract.policy_rate_hz:g} Hz, so that no action is skipped',
        )


def _check_stream_names(value: YamlValue, contract: RobotContract) -> None:
    """Cameras and joint topics are told of by their names, side by side."""
    taken = {'state', *(stream.name for stream in contract.state_streams)}
    for item, camera in zip(value.items(), contract.cameras, strict=True):
        if camera.name in taken:
            raise item.fail(
                found=f'a camera called {camera.name!r}, like a part of the state',
                expected=f'a name other than {", ".join(sorted(taken))}',
            )


def _check_all_joints_used(value: YamlValue, contract: RobotContract) -> None:
    used = {*contract.action, *(entry.joint for entry in contract.state)}
    for item, joint in zip(value.items(), contract.joints, strict=True):
        if joint.name not in used:
            raise item.fail(
                found=f'joint {joint.name!r}, in neither state.vector nor action.vector',
                expected='only joints the policy reads or moves',
                remedy='remove it, or add it to a vector',
            )


def _joints(value: YamlValue) -> tuple[JointSpec, ...]:
    joints = tuple(_joint(item) for item in value.items())
    if not joints:
        raise value.fail(found='an empty list', expected='at least one joint')
    refuse_duplicates(value, [joint.name for joint in joints], what='joint')
    return joints


def _joint(value: YamlValue) -> JointSpec:
    keys = value.mapping(
        required=('name', 'unit', 'limits'),
        optional=(
            *('sign', 'offset', 'range', 'max_velocity', 'max_acceleration'),
            *('max_step', 'urdf_joint'),
        ),
    )
    unit = keys['unit'].choice(UNITS)
    low, high = (item.number() for item in keys['limits'].items(length=2))
    if low >= high:
        raise keys['limits'].fail(found=f'[{low:g}, {high:g}]', expected='[min, max], min < max')
    if 'sign' in keys and keys['sign'].number() not in (1.0, -1.0):
        raise keys['sign'].fail(found=keys['sign'].described(), expected='1 or -1')
    return JointSpec(
        name=keys['name'].text(),
        unit=unit,
        min=low,
        max=high,
        sign=int(keys['sign'].number()) if 'sign' in keys else 1,
        offset=keys['offset'].number() if 'offset' in keys else 0.0,
        range=_range(value, keys.get('range'), unit),
        max_velocity=_max_velocity(value, keys.get('max_velocity'), unit),
        max_acceleration=optional_positive(keys.get('max_acceleration')),
        max_step=optional_positive(keys.get('max_step')),
        urdf_joint=_urdf_joint(keys.get('urdf_joint')),
    )


def _urdf_joint(value: YamlValue | None) -> str | None:
    if value is None:
        return None
    return '' if value.value is None else value.text()


def _range(joint: YamlValue, value: YamlValue | None, unit: str) -> tuple[float, float] | None:
    if unit not in RANGE_UNITS:
        if value is not None:
            raise value.fail(
                found=f'a range, with unit {unit}',
                expected=f'a range only with the units {", ".join(RANGE_UNITS)}',
                remedy='remove it; limits are given by `limits`',
            )
        return None
    low_unit, high_unit = RANGE_UNITS[unit]
    if value is None:
        raise joint.fail(
            found=f'unit {unit} and no range',
            expected=f'range: [SI value at {low_unit:g}, SI value at {high_unit:g}]',
        )
    first, last = (item.number() for item in value.items(length=2))
    if first == last:
        raise value.fail(found=f'[{first:g}, {last:g}]', expected='two different SI values')
    return first, last


def _max_velocity(joint: YamlValue, value: YamlValue | None, unit: str) -> float | None:
    if unit in VELOCITY_UNITS:
        if value is not None:
            raise value.fail(
                found=f'max_velocity, with unit {unit}',
                expected='no max_velocity: `limits` are the velocity limits of this joint',
                remedy='remove it; max_acceleration limits how fast the velocity changes',
            )
        return None
    if value is None:
        raise joint.fail(
            found='no max_velocity',
            expected='max_velocity [rad/s or m/s], so that no command can jump',
            remedy="take the value from the robot's URDF or data sheet",
        )
    return value.number(above=0)


def _action_vector(value: YamlValue, known: dict[str, JointSpec]) -> tuple[str, ...]:
    vector = tuple(read_joint(item, known) for item in value.items())
    if not vector:
        raise value.fail(found='an empty list', expected='the joints of the action, in order')
    refuse_duplicates(value, vector, what='joint')
    return vector


def _outputs(
    value: YamlValue, vector: Sequence[str], known: dict[str, JointSpec]
) -> tuple[OutputGroup, ...]:
    groups = tuple(_output(item, vector, known) for item in value.items())
    refuse_duplicates(value, [group.name for group in groups], what='output')
    refuse_duplicates(value, [group.topic for group in groups], what='topic')
    sent = [joint for group in groups for joint in group.joints]
    refuse_duplicates(value, sent, what='joint')
    unsent = [joint for joint in vector if joint not in sent]
    if unsent:
        raise value.fail(
            found=f'outputs for {", ".join(sent)}; none for {", ".join(unsent)}',
            expected=f'every joint of action.vector in one output: {", ".join(vector)}',
        )
    return groups


def _output(value: YamlValue, vector: Sequence[str], known: dict[str, JointSpec]) -> OutputGroup:
    keys = value.mapping(
        required=('name', 'topic', 'type', 'joints'),
        optional=('time_from_start_s', 'frame_id'),
    )
    kind = keys['type'].choice(OUTPUT_TYPES)
    joints, message_names = read_aliases(keys['joints'], known)
    if not joints:
        raise keys['joints'].fail(found='no joints', expected='the joints of this output')
    absent = [joint for joint in joints if joint not in vector]
    if absent:
        raise keys['joints'].fail(
            found=f'{", ".join(absent)}, not in action.vector',
            expected=f'joints of the action: {", ".join(vector)}',
        )
    for key, owner in (('time_from_start_s', 'joint_trajectory'), ('frame_id', 'twist_stamped')):
        if key in keys and kind != owner:
            raise keys[key].fail(found=f'{key}, with type {kind}', expected=f'type {owner}')
    _check_output_units(keys['joints'], kind, [known[joint] for joint in joints], message_names)
    return OutputGroup(
        name=keys['name'].text(),
        topic=read_topic(keys['topic']),
        type=kind,
        joints=joints,
        message_names=message_names,
        time_from_start_s=optional_positive(keys.get('time_from_start_s')),
        frame_id=keys['frame_id'].text() if 'frame_id' in keys else '',
    )


def _check_output_units(
    value: YamlValue, kind: str, joints: Sequence[JointSpec], message_names: Sequence[str]
) -> None:
    if kind.startswith('twist'):
        for joint, component in zip(joints, message_names, strict=True):
            units = ('m/s',) if component.startswith('linear') else ('rad/s', 'deg/s')
            if component not in TWIST_COMPONENTS:
                raise value.fail(
                    found=f'{joint.name}: {component}',
                    expected=f'joint: component, one of {", ".join(TWIST_COMPONENTS)}',
                )
            if joint.unit not in units:
                raise value.fail(
                    found=f'{joint.name} in {joint.unit} as {component}',
                    expected=f'unit {" or ".join(units)}',
                )
    elif len({joint.is_velocity for joint in joints}) > 1:
        raise value.fail(
            found='positions and velocities in one output', expected='one kind in each output'
        )
    elif kind == 'joint_trajectory' and joints[0].is_velocity:
        raise value.fail(
            found='velocities in a joint_trajectory',
            expected='positions',
            remedy='use float64_multi_array or joint_state for velocity commands',
        )

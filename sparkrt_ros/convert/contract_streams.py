"""The input side of a robot contract: cameras and state streams, read from YAML."""

from __future__ import annotations

from sparkrt_ros.convert.contract_fields import (
    read_aliases,
    read_joint,
    read_topic,
    refuse_duplicates,
)
from sparkrt_ros.convert.contract_types import (
    ALIGNMENTS,
    CAMERA_TYPES,
    CLOCKS,
    INTERPOLATIONS,
    STATE_FIELDS,
    STATE_TYPES,
    ZERO_STAMPS,
    CameraSpec,
    JointSpec,
    StateEntry,
    StateStream,
    StreamTiming,
)
from sparkrt_ros.convert.yaml_reader import YamlValue

_TIMING_KEYS = ('align', 'clock', 'zero_stamp')


def read_cameras(value: YamlValue) -> tuple[CameraSpec, ...]:
    cameras = tuple(_camera(item) for item in value.items())
    refuse_duplicates(value, [camera.name for camera in cameras], what='camera')
    refuse_duplicates(value, [camera.key for camera in cameras], what='policy key')
    return cameras


def _camera(value: YamlValue) -> CameraSpec:
    sizes = ('source_size', 'crop', 'resize', 'interpolation')
    keys = value.mapping(
        required=('name', 'key', 'topic', 'max_age_s'),
        optional=('type', 'encoding', 'depth_range_m', 'max_frozen_s', *sizes, *_TIMING_KEYS),
    )
    source = _whole_numbers(keys.get('source_size'), 'width', 'height')
    crop = _whole_numbers(keys.get('crop'), 'x', 'y', 'width', 'height')
    resize = _whole_numbers(keys.get('resize'), 'width', 'height')
    if crop and source and (crop[0] + crop[2] > source[0] or crop[1] + crop[3] > source[1]):
        raise keys['crop'].fail(
            found=f'x, y, width, height = {list(crop)}',
            expected=f'a part of the {source[0]}x{source[1]} source picture',
        )
    if 'interpolation' in keys and resize is None:
        raise keys['interpolation'].fail(
            found='an interpolation without resize', expected='resize: [width, height] with it'
        )
    return CameraSpec(
        name=keys['name'].text(),
        key=keys['key'].text(),
        topic=read_topic(keys['topic']),
        type=keys['type'].choice(CAMERA_TYPES) if 'type' in keys else 'image',
        timing=_timing(keys),
        encoding=keys['encoding'].text() if 'encoding' in keys else None,
        source_size=None if source is None else (source[0], source[1]),
        crop=None if crop is None else (crop[0], crop[1], crop[2], crop[3]),
        resize=None if resize is None else (resize[0], resize[1]),
        interpolation=(
            keys['interpolation'].choice(INTERPOLATIONS) if 'interpolation' in keys else 'area'
        ),
        depth_range_m=_depth_range(keys.get('depth_range_m')),
        max_frozen_s=keys['max_frozen_s'].number(above=0) if 'max_frozen_s' in keys else None,
    )


def _whole_numbers(value: YamlValue | None, *names: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    items = value.items(length=len(names))
    return tuple(
        item.integer(at_least=0 if name in 'xy' else 1)
        for name, item in zip(names, items, strict=True)
    )


def _depth_range(value: YamlValue | None) -> tuple[float, float] | None:
    if value is None:
        return None
    near, far = (item.number(at_least=0) for item in value.items(length=2))
    if near >= far:
        raise value.fail(
            found=f'[{near:g}, {far:g}]', expected='[near, far] in metres, near < far'
        )
    return near, far


def _timing(keys: dict[str, YamlValue], **defaults: str) -> StreamTiming:
    """Read the timing of one stream; ``defaults`` replaces those of StreamTiming."""
    options = {'align': ALIGNMENTS, 'clock': CLOCKS, 'zero_stamp': ZERO_STAMPS}
    chosen = {key: keys[key].choice(options[key]) for key in _TIMING_KEYS if key in keys}
    return StreamTiming(max_age_s=keys['max_age_s'].number(above=0), **{**defaults, **chosen})


def read_state(
    value: YamlValue, known: dict[str, JointSpec]
) -> tuple[tuple[StateEntry, ...], tuple[StateStream, ...]]:
    keys = value.mapping(required=('streams', 'vector'))
    streams = tuple(_stream(item, known) for item in keys['streams'].items())
    refuse_duplicates(keys['streams'], [s.name for s in streams], what='stream')
    refuse_duplicates(keys['streams'], [s.topic for s in streams], what='topic')
    entries = []
    for item in keys['vector'].items():
        entry = _state_entry(item, known)
        if not any(_reports(stream, entry) for stream in streams):
            raise item.fail(
                found=f'{entry}, which no state stream reports',
                expected=f'a stream with it; streams: {", ".join(s.name for s in streams)}',
                remedy='add the joint to the `joints` of the stream that carries it',
            )
        entries.append(entry)
    refuse_duplicates(keys['vector'], [str(entry) for entry in entries], what='entry')
    return tuple(entries), streams


def _reports(stream: StateStream, entry: StateEntry) -> bool:
    if stream.joints and entry.joint not in stream.joints:
        return False
    return stream.type == 'joint_state' or stream.field == entry.field


def _state_entry(value: YamlValue, known: dict[str, JointSpec]) -> StateEntry:
    if isinstance(value.value, str):
        entry = StateEntry(joint=read_joint(value, known))
    else:
        keys = value.mapping(required=('joint', 'field'))
        joint = read_joint(keys['joint'], known)
        entry = StateEntry(joint=joint, field=keys['field'].choice(STATE_FIELDS))
    if known[entry.joint].is_velocity and entry.field == 'position':
        raise value.fail(
            found=f'the position of {entry.joint}, whose unit is {known[entry.joint].unit}',
            expected='a velocity',
            remedy=f'write {{joint: {entry.joint}, field: velocity}}',
        )
    return entry


def _stream(value: YamlValue, known: dict[str, JointSpec]) -> StateStream:
    keys = value.mapping(
        required=('name', 'topic', 'max_age_s'),
        optional=('type', 'joints', 'field', *_TIMING_KEYS),
    )
    kind = keys['type'].choice(STATE_TYPES) if 'type' in keys else 'joint_state'
    stamped = kind == 'joint_state'
    if not stamped and 'joints' not in keys:
        raise value.fail(
            found=f'type {kind} without joints',
            expected='joints: the layout of its data, in order',
        )
    if stamped and 'field' in keys:
        raise keys['field'].fail(
            found=f'field, with type {kind}', expected='field only with type float64_multi_array'
        )
    timing = _timing(keys) if stamped else _timing(keys, clock='receive')
    if not stamped and timing.clock != 'receive':
        raise keys['clock'].fail(
            found='header', expected='receive: a Float64MultiArray carries no stamp'
        )
    joints, message_names = read_aliases(keys['joints'], known) if 'joints' in keys else ((), ())
    return StateStream(
        name=keys['name'].text(),
        topic=read_topic(keys['topic']),
        type=kind,
        timing=timing,
        joints=joints,
        message_names=message_names,
        field=keys['field'].choice(STATE_FIELDS) if 'field' in keys else 'position',
    )

"""Joint messages, partial and in any order -> one vector in the contract's order, SI units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract_types import RobotContract, StateEntry, StateStream
from sparkrt_ros.convert.time import NS_PER_S, age_s, sample_time_ns
from sparkrt_ros.convert.units import Float64Array
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

Int64Array = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).min
# names kept for error messages; a stream of ever new names must not grow this without end
_MOST_NAMES = 200
_MOST_LAYOUTS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class JointSnapshot:
    """The newest value of every entry.

    values: (N,) float64 SI, in the order of ``entries``. stamps_ns: (N,) int64, when each was
    taken. ages_s: (N,) float64 against the time the snapshot was asked for. sources: (N,) which
    of ``streams`` each came from.
    """

    entries: tuple[StateEntry, ...]
    values: Float64Array
    stamps_ns: Int64Array
    ages_s: Float64Array
    streams: tuple[str, ...]
    sources: npt.NDArray[np.intp]

    @property
    def oldest_age_s(self) -> float:
        return float(self.ages_s.max(initial=0.0))

    @property
    def stream_stamps_ns(self) -> dict[str, int]:
        """The newest stamp that each stream with a value in here gave."""
        stamps: dict[str, int] = {}
        for source, stamp_ns in zip(self.sources.tolist(), self.stamps_ns.tolist(), strict=True):
            name = self.streams[source]
            stamps[name] = max(stamps.get(name, stamp_ns), stamp_ns)
        return stamps

    @property
    def skew_s(self) -> float:
        """Time between the oldest and the newest entry."""
        return float(np.ptp(self.stamps_ns)) / NS_PER_S if self.stamps_ns.size else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Layout:
    """Where one kind of message keeps what is needed: field -> (targets, sources)."""

    by_field: dict[str, tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]


class JointMerger:
    """Keeps the newest value of each needed joint from any number of partial publishers.

    Joints are found by name only, through the names a stream declares; joints that are not needed
    are ignored. A message is taken whole or not at all. An older sample never replaces a newer
    one: after time jumped backwards, call :meth:`reset`. Not thread-safe.
    """

    def __init__(self, entries: Iterable[StateEntry], streams: Iterable[StateStream]) -> None:
        self.entries = tuple(entries)
        self.accepted = 0
        self.rejected = 0
        self.out_of_order = 0
        self._streams = {stream.name: stream for stream in streams}
        self._stream_names = tuple(self._streams)
        self._refusals: dict[str, str] = {}
        self._layouts: dict[tuple[str, tuple[str, ...]], _Layout] = {}
        self.reset()

    @classmethod
    def for_state(cls, contract: RobotContract) -> JointMerger:
        """Merge what the policy's state vector needs."""
        return cls(contract.state, contract.state_streams)

    @classmethod
    def for_measured_action(cls, contract: RobotContract) -> JointMerger:
        """Merge the measured positions of the joints that are commanded by position.

        Leaves out joints that no stream reports: their commands have nothing to be compared with.
        """
        position_streams = [
            stream
            for stream in contract.state_streams
            if stream.type == 'joint_state' or stream.field == 'position'
        ]
        reported = {name for s in position_streams for name in contract.stream_joints(s)}
        measured = [j.name for j in contract.action_joints if not j.is_velocity]
        entries = [StateEntry(joint=name) for name in measured if name in reported]
        return cls(entries, contract.state_streams)

    def reset(self) -> None:
        """Forget all values; counters stay."""
        self._values = np.zeros(len(self.entries), dtype=np.float64)
        self._stamps = np.full(len(self.entries), _NEVER, dtype=np.int64)
        self._sources = np.zeros(len(self.entries), dtype=np.intp)
        self._limits_s = np.zeros(len(self.entries), dtype=np.float64)
        self._received_names: dict[str, None] = {}

    def update(self, msg: Any, *, received_ns: int, stream: str | None = None) -> bool:
        """Take one message of ``stream`` (its name; may be left out where there is only one).

        Returns whether it changed anything. Raises MessageError, with nothing changed, for
        duplicate names, arrays whose length is not that of the names, and needed values that are
        not finite. Arrays of fields that nobody needs may be empty or NaN.
        """
        spec = self._stream(stream)
        try:
            values, targets, stamp_ns = self._read(spec, msg, received_ns)
        except MessageError as error:
            self.rejected += 1
            self._refusals[spec.name] = error.found
            raise
        self.accepted += 1
        self._refusals.pop(spec.name, None)
        newer = stamp_ns >= self._stamps[targets]
        if not newer.all():
            self.out_of_order += 1
        targets = targets[newer]
        self._values[targets] = values[newer]
        self._stamps[targets] = stamp_ns
        self._sources[targets] = self._stream_names.index(spec.name)
        self._limits_s[targets] = np.inf if spec.timing.align == 'hold' else spec.max_age_s
        return bool(targets.size)

    def latest(self, now_ns: int) -> JointSnapshot | None:
        """Return the newest values whatever their age; None until every entry came once."""
        if (self._stamps == _NEVER).any():
            return None
        return self._snapshot(now_ns)

    def snapshot(self, now_ns: int, max_age_s: float | None = None) -> JointSnapshot:
        """Return the newest values, none older than its stream allows, nor than ``max_age_s``.

        Raises StaleObservation naming the joints that are missing or too old.
        """
        missing = [str(e) for e, t in zip(self.entries, self._stamps, strict=True) if t == _NEVER]
        if missing:
            raise StaleObservation(
                f'joints {", ".join(missing)}',
                found=f'no value yet; received: {", ".join(self._received_names) or "nothing"}'
                + self._last_refusals(),
                expected=f'values from {self._topics()}',
                remedy='check that the robot publishes; where it uses other names, map them in '
                'state.streams[].joints of the robot contract',
            )
        result = self._snapshot(now_ns)
        limits = self._limits_s if max_age_s is None else np.minimum(self._limits_s, max_age_s)
        late = np.flatnonzero(result.ages_s > limits)
        if late.size:
            ages = ', '.join(f'{self.entries[i]} {result.ages_s[i]:.3f} s' for i in late)
            raise StaleObservation(
                f'joints {", ".join(str(self.entries[i]) for i in late)}',
                found=f'ages {ages}{self._last_refusals()}',
                expected=f'at most {limits[late].min():.3f} s',
                remedy=f'check the rate of {self._topics()}, or raise max_age_s',
            )
        return result

    def _snapshot(self, now_ns: int) -> JointSnapshot:
        ages = np.array([age_s(int(t), now_ns) for t in self._stamps], dtype=np.float64)
        return JointSnapshot(
            entries=self.entries,
            values=self._values.copy(),
            stamps_ns=self._stamps.copy(),
            ages_s=ages,
            streams=self._stream_names,
            sources=self._sources.copy(),
        )

    def _stream(self, name: str | None) -> StateStream:
        if name is None and len(self._streams) == 1:
            return next(iter(self._streams.values()))
        if name is None or name not in self._streams:
            raise ValueError(f'stream {name!r} is none of {list(self._streams)}')
        return self._streams[name]

    def _last_refusals(self) -> str:
        """What was wrong with the newest message of each stream, where it was refused."""
        texts = [f'{self._streams[n].topic} {text}' for n, text in self._refusals.items()]
        return f'; the last message was refused: {", ".join(texts)}' if texts else ''

    def _topics(self) -> str:
        return ', '.join(stream.topic for stream in self._streams.values()) or 'no stream'

    def _read(
        self, stream: StateStream, msg: Any, received_ns: int
    ) -> tuple[Float64Array, npt.NDArray[np.intp], int]:
        """Return values, their places in the vector and their time."""
        stamp_ns = sample_time_ns(
            msg, received_ns=received_ns, timing=stream.timing, topic=stream.topic
        )
        if stream.type == 'float64_multi_array':
            names: Sequence[str] = stream.message_names
            arrays = {stream.field: msg.data}
        else:
            names = msg.name
            arrays = {'position': msg.position, 'velocity': msg.velocity, 'effort': msg.effort}
        layout = self._layout(stream, tuple(names))
        values = [np.empty(0)]
        targets = [np.empty(0, dtype=np.intp)]
        for field, (places, sources) in layout.by_field.items():
            values.append(_take(stream, field, arrays[field], names, sources))
            targets.append(places)
        return np.concatenate(values), np.concatenate(targets), stamp_ns

    def _layout(self, stream: StateStream, names: tuple[str, ...]) -> _Layout:
        """Find the needed joints among ``names``; publishers repeat few layouts, so keep them."""
        key = (stream.name, names)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._make_layout(stream, names)
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        if len(self._received_names) < _MOST_NAMES:
            self._received_names.update(dict.fromkeys(names))
        return layout

    def _make_layout(self, stream: StateStream, names: tuple[str, ...]) -> _Layout:
        index = {name: i for i, name in enumerate(names)}
        if len(index) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise MessageError(
                stream.topic,
                found=f'joint names twice in one message: {", ".join(twice)}',
                expected='each joint once',
                remedy='let each publisher name each joint once',
            )
        aliases = dict(zip(stream.joints, stream.message_names, strict=True))
        found: dict[str, tuple[list[int], list[int]]] = {}
        for place, entry in enumerate(self.entries):
            if stream.type == 'float64_multi_array' and entry.field != stream.field:
                continue
            name = aliases.get(entry.joint) if aliases else entry.joint
            if name in index:
                places, sources = found.setdefault(entry.field, ([], []))
                places.append(place)
                sources.append(index[name])
        return _Layout(
            by_field={
                field: (np.array(places, dtype=np.intp), np.array(sources, dtype=np.intp))
                for field, (places, sources) in found.items()
            }
        )


def _take(
    stream: StateStream,
    field: str,
    array: Sequence[float],
    names: Sequence[str],
    sources: npt.NDArray[np.intp],
) -> Float64Array:
    """Pick the needed values of one field, or refuse the message."""
    if len(array) != len(names):
        raise MessageError(
            stream.topic,
            found=f'{len(array)} values of {field} for {len(names)} joints ({", ".join(names)})',
            expected='one value for each joint',
            remedy='the message is dropped; correct its publisher',
        )
    values = np.asarray(array, dtype=np.float64)[sources]
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        shown = ', '.join(f'{names[sources[i]]} {values[i]}' for i in bad)
        raise MessageError(
            stream.topic,
            found=f'{field} not finite: {shown}',
            expected='finite values',
            remedy='the message is dropped; correct its publisher',
        )
    return values

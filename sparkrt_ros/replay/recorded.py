"""The commands that a bag holds, brought into the robot's action vector, SI.

What is taken as the command of a message: a ``Float64MultiArray``'s values in the contract's
order of that output; a ``JointState``'s positions, or velocities for velocity joints, by name; a
``JointTrajectory``'s first point, by name, from its arrival on; the components of a ``Twist``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import OutputGroup, RobotContract
from sparkrt_ros.replay.bag import BagMessage
from sparkrt_ros.replay.result import CommandTrack
from sparkrt_ros.runtime.errors import MessageError

RECORDED = 'recorded'
# The outputs of one tick are published one after the other.
SAME_TICK_NS = 1_000_000

_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """M recorded commands, those of one tick together.

    track: times and (M, A) values, NaN in the columns of outputs that said nothing then.
    ticks, chunks: (M,) how many ticks and chunks of the replay came before each.
    """

    track: CommandTrack
    ticks: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]


class RecordedCommands:
    """Collects while a replay goes on. ``ticks`` and ``chunks`` are set by the player.

    malformed: output -> messages that were left out, and why the first was.
    """

    def __init__(self, contract: RobotContract) -> None:
        self.ticks = 0
        self.chunks = 0
        self.malformed: dict[str, tuple[int, str]] = {}
        self._size = len(contract.action)
        self._columns = {g.name: contract.output_columns(g) for g in contract.outputs}
        self._readers = {g.name: _reader(contract, g) for g in contract.outputs}
        self._row = np.full(self._size, np.nan)
        self._row_ns: int | None = None
        self._times = array('q')
        self._rows = array('d')
        self._at_ticks = array('q')
        self._at_chunks = array('q')

    def take(self, output: str, message: BagMessage, now_ns: int) -> None:
        """Take a message of that output."""
        try:
            values = self._readers[output](message.message)
        except MessageError as error:
            count, text = self.malformed.get(output, (0, str(error)))
            self.malformed[output] = (count + 1, text)
            return
        if values is None:
            return
        columns = self._columns[output]
        if not self._belongs(columns, now_ns):
            self._finish_row()
            self._row_ns = now_ns
            self._at_ticks.append(self.ticks)
            self._at_chunks.append(self.chunks)
        self._row[columns] = values

    def recording(self) -> Recording:
        """Everything so far."""
        self._finish_row()
        track = CommandTrack(
            label=RECORDED,
            times_ns=np.array(self._times, dtype=np.int64),
            commands=np.array(self._rows, dtype=np.float64).reshape(-1, self._size),
        )
        return Recording(
            track=track,
            ticks=np.array(self._at_ticks, dtype=np.int64),
            chunks=np.array(self._at_chunks, dtype=np.int64),
        )

    def _belongs(self, columns: npt.NDArray[np.intp], now_ns: int) -> bool:
        if self._row_ns is None or not 0 <= now_ns - self._row_ns < SAME_TICK_NS:
            return False
        return bool(np.isnan(self._row[columns]).all())

    def _finish_row(self) -> None:
        if self._row_ns is not None:
            self._times.append(self._row_ns)
            self._rows.frombytes(self._row.tobytes())
        self._row.fill(np.nan)
        self._row_ns = None


def at_recorded_times(track: CommandTrack, recording: Recording) -> _Float64:
    """The commands of ``track``, one row for each tick, at the recorded times: (M, A).

    Linear between the tick before and the tick after; NaN where one of them sent nothing.
    """
    count = len(track.times_ns)
    found = np.full(recording.track.commands.shape, np.nan)
    inside = np.flatnonzero((recording.ticks > 0) & (recording.ticks < count))
    after = recording.ticks[inside]
    start_ns, end_ns = track.times_ns[after - 1], track.times_ns[after]
    passed_ns = recording.track.times_ns[inside] - start_ns
    share = np.clip(passed_ns / np.maximum(end_ns - start_ns, 1), 0.0, 1.0)[:, None]
    before = track.commands[after - 1]
    found[inside] = before + share * (track.commands[after] - before)
    return found


Reader = Callable[[Any], _Float64 | None]


def _reader(contract: RobotContract, group: OutputGroup) -> Reader:
    """From a message of an output to its values in the order of ``group.joints``."""
    velocity = contract.joints_by_name[group.joints[0]].is_velocity
    readers: Mapping[str, Reader] = {
        'float64_multi_array': lambda m: _checked(group, m.data),
        'joint_state': lambda m: _by_name(group, m.name, m.velocity if velocity else m.position),
        'joint_trajectory': lambda m: _first_point(group, m),
        'twist': lambda m: _components(group, m),
        'twist_stamped': lambda m: _components(group, m.twist),
    }
    return readers[group.type]


def _first_point(group: OutputGroup, message: Any) -> _Float64 | None:
    """None for a trajectory without points, which means: stop."""
    if not len(message.points):
        return None
    return _by_name(group, message.joint_names, message.points[0].positions)


def _by_name(group: OutputGroup, names: Sequence[str], values: Sequence[float]) -> _Float64:
    index = {name: i for i, name in enumerate(names)}
    missing = [name for name in group.message_names if name not in index]
    if missing or len(values) != len(names):
        raise MessageError(
            group.topic,
            found=f'{len(values)} values for joints {", ".join(names)}',
            expected=f'a value for each of {", ".join(group.message_names)}',
        )
    return _checked(group, [values[index[name]] for name in group.message_names])


def _components(group: OutputGroup, twist: Any) -> _Float64:
    parts = (name.split('.') for name in group.message_names)
    return _checked(group, [getattr(getattr(twist, part), axis) for part, axis in parts])


def _checked(group: OutputGroup, values: Sequence[float]) -> _Float64:
    result: _Float64 = np.asarray(values, dtype=np.float64)
    if result.shape != (len(group.joints),) or not np.isfinite(result).all():
        raise MessageError(
            group.topic,
            found=f'{result.size} values, {int(np.isfinite(result).sum())} of them finite',
            expected=f'{len(group.joints)} finite values',
        )
    return result

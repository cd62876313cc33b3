"""From chunks to the commands that the action streamer would have sent, offline.

The streamer of the live node (StreamerCore with its timeline and guard) is ticked at given times.
What it goes through, apart from the values of the chunks, is a :class:`CommandScript`; so the
chunks of any number of arms can be played under exactly the same conditions.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkrt_ros.convert.contract import RobotContract
from sparkrt_ros.nodes.guard_limits import Float64Array
from sparkrt_ros.nodes.pacing import Progress
from sparkrt_ros.nodes.streamer_core import Options, Pose, StreamerCore
from sparkrt_ros.nodes.streamer_parameters import STREAMER_PARAMETERS
from sparkrt_ros.nodes.streamer_values import MadeUpTimeOutlet
from sparkrt_ros.replay.result import CommandTrack
from sparkrt_ros.runtime.chunking.timeline import DEFAULT_COEFF, MAX_COEFF
from sparkrt_ros.runtime.types import ActionChunk

SESSION = 1
_DEFAULTS = {spec.name: spec.default for spec in STREAMER_PARAMETERS}


@dataclass(frozen=True, kw_only=True)
class Playing:
    """How chunks are played: one of MODES, the coefficient of ``ensemble``, and both blends."""

    mode: str = 'queue'
    temporal_ensemble_coeff: float | None = None
    blend_s: float = float(_DEFAULTS['chunking.blend_s'])  # type: ignore[arg-type]
    blend_in_s: float = float(_DEFAULTS['guard.blend_in_s'])  # type: ignore[arg-type]

    def options(self, contract: RobotContract) -> Options:
        """The options of a streamer that follows the policy node and is left at its defaults."""
        coefficient = self.temporal_ensemble_coeff
        if coefficient is None or abs(coefficient) > MAX_COEFF:
            coefficient = DEFAULT_COEFF
        return Options(
            mode=self.mode,
            temporal_ensemble_coeff=coefficient,
            hold_s=contract.hold_s,
            velocity_scale=float(_DEFAULTS['guard.velocity_scale']),  # type: ignore[arg-type]
            start_max_error=float(_DEFAULTS['guard.start_max_error']),  # type: ignore[arg-type]
            interpolation=str(_DEFAULTS['chunking.interpolation']),
            blend_s=self.blend_s,
            blend_in_s=self.blend_in_s,
        )


class OfflineStreamer(MadeUpTimeOutlet):
    """One robot's streamer in made-up time. One thread.

    command: (A,) what was sent since ``forget``, NaN for what was not.
    news: whether a chunk was taken or the state changed since it was last set False.
    """

    def __init__(self, contract: RobotContract, playing: Playing) -> None:
        self.news = False
        self.command = np.full(len(contract.action), np.nan)
        self._velocity = contract.velocity_mask
        self.core = StreamerCore.for_robot(
            contract,
            period_s=1.0 / contract.control_rate_hz,
            outlet=self,
            notify=self._notice,
        )
        self.core.set_options(playing.options(contract))

    def forget(self) -> None:
        """Before a tick: nothing was sent yet."""
        self.command.fill(np.nan)

    def send(self, command: Float64Array, *, now_ns: int) -> None:
        """See MadeUpTimeOutlet."""
        np.copyto(self.command, command)

    def stop_velocities(self, command: Float64Array, *, now_ns: int) -> None:
        """See Outlet."""
        np.copyto(self.command, command, where=self._velocity)

    def progress(self, *, at_s: float) -> Progress:
        """What it would tell the policy node, arriving at ``at_s``."""
        snapshot = self.core.snapshot
        return Progress(
            at_s=at_s,
            session_id=snapshot.session_id,
            epoch=snapshot.epoch,
            chunk_id=snapshot.chunk_id,
            played_s=snapshot.played_ns / 1e9,
            remaining_s=snapshot.remaining_s,
            state=snapshot.state,
            tick_ns=snapshot.now_ns,
            row=snapshot.row,
        )

    def _notice(self) -> None:
        self.news = True


@dataclass(frozen=True, kw_only=True, eq=False)
class CommandScript:
    """What a streamer goes through, for K ticks, P poses and N chunks.

    ticks_ns: (K,) time of each tick. poses: (P, A) SI, NaN where nothing measures, each valid
    until fresh_until_ns (P,); pose_ticks: (P,) index of the first tick that saw it.
    chunk_ticks: (N,) index of the first tick after the chunk arrived; K or more: none did.
    """

    ticks_ns: npt.NDArray[np.int64]
    poses: npt.NDArray[np.float64]
    fresh_until_ns: npt.NDArray[np.int64]
    pose_ticks: npt.NDArray[np.int64]
    chunk_ticks: npt.NDArray[np.int64]


class ScriptWriter:
    """Collects a script while a replay goes on; compact, since a bag may be long."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ticks = array('q')
        self._poses = array('d')
        self._fresh = array('q')
        self._pose_ticks = array('q')
        self._chunk_ticks = array('q')

    def pose(self, pose: Pose) -> None:
        """A pose that the next tick sees."""
        self._poses.frombytes(pose.values.tobytes())
        self._fresh.append(pose.fresh_until_ns)
        self._pose_ticks.append(len(self._ticks))

    def chunk(self) -> None:
        """A chunk that the next tick can take."""
        self._chunk_ticks.append(len(self._ticks))

    def tick(self, now_ns: int) -> None:
        self._ticks.append(now_ns)

    def script(self) -> CommandScript:
        return CommandScript(
            ticks_ns=np.array(self._ticks, dtype=np.int64),
            poses=np.array(self._poses, dtype=np.float64).reshape(-1, self._size),
            fresh_until_ns=np.array(self._fresh, dtype=np.int64),
            pose_ticks=np.array(self._pose_ticks, dtype=np.int64),
            chunk_ticks=np.array(self._chunk_ticks, dtype=np.int64),
        )


def offline_commands(
    contract: RobotContract,
    script: CommandScript,
    chunks: Sequence[ActionChunk],
    *,
    playing: Playing,
    label: str = 'commands',
) -> CommandTrack:
    """The commands that the streamer sends for these chunks, one chunk for each of the script's.

    Each chunk carries its own stamp, epoch and id; the guard limits what is sent as on the robot.
    The track has one row for each tick, NaN where nothing was sent.
    """
    streamer = OfflineStreamer(contract, playing)
    core = streamer.core
    due = zip(
        script.pose_ticks.tolist(), script.poses, script.fresh_until_ns.tolist(), strict=True
    )
    poses = deque(due)
    arrivals = deque(zip(script.chunk_ticks.tolist(), chunks, strict=True))
    commands = np.empty((len(script.ticks_ns), len(contract.action)))
    for number, now_ns in enumerate(script.ticks_ns.tolist()):
        if number == 0:
            core.activate(now_ns)
        while poses and poses[0][0] <= number:
            _, values, fresh_until_ns = poses.popleft()
            core.pose = Pose(values=values, fresh_until_ns=fresh_until_ns)
        while arrivals and arrivals[0][0] <= number:
            core.offer(arrivals.popleft()[1], session_id=SESSION)
        streamer.forget()
        core.tick(now_ns)
        commands[number] = streamer.command
    return CommandTrack(label=label, times_ns=script.ticks_ns, commands=commands)

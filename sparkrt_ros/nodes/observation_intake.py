"""What happens to a message when it arrives: dated, checked cheaply, stored. ROS-free.

Pictures are stored as they came and decoded only when a snapshot uses them. Joint messages are
merged by name at once, which is cheap, and stored as the whole state after each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from sparkrt_ros.convert.contract import CameraSpec, RobotContract, StateStream, StreamTiming
from sparkrt_ros.convert.joints import JointMerger
from sparkrt_ros.convert.time import sample_time_ns, stamp_to_ns
from sparkrt_ros.nodes.observation_buffer import AHEAD_NS, ObservationBuffer, StreamSpec
from sparkrt_ros.runtime.errors import MessageError, StaleObservation

Warn = Callable[[Hashable, str], None]

STATE = 'state'
# Joint messages come at up to 1 kHz and a picture may be half a second on its way.
STATE_DEPTH = 512


class ObservationIntake:
    """The streams of one contract that one policy needs, filled by the ROS thread.

    cameras: those the policy looks at. with_state: whether it reads the state vector.
    warn: called with a key and a line for the log, at the rate of the messages.
    on_jump: see ObservationBuffer.
    refused: stream -> what was wrong with its newest message, where that could not be used.
    """

    def __init__(
        self,
        contract: RobotContract,
        *,
        cameras: tuple[CameraSpec, ...],
        with_state: bool,
        max_skew_s: float,
        warn: Warn,
        on_jump: Callable[[int, int], None] | None = None,
    ) -> None:
        self.cameras = {camera.name: camera for camera in cameras}
        self.state_streams = {s.name: s for s in contract.state_streams} if with_state else {}
        self.bad_messages = 0
        self.refused: dict[str, str] = {}
        self._warn = warn
        self._merger = JointMerger.for_state(contract)
        self._merger_jumps = 0
        self._state_fault: StaleObservation | None = None
        specs = [_camera_stream(camera) for camera in cameras]
        if self.state_streams:
            specs.append(_state_stream(contract))
        self.buffer = ObservationBuffer(specs, max_skew_s=max_skew_s, on_jump=on_jump)

    @property
    def state_fault(self) -> StaleObservation | None:
        """Which joints are missing or too old, where that is why no state is stored."""
        return self._state_fault

    def image(self, name: str, message: Any, *, now_ns: int) -> bool:
        """Take a message of camera ``name``; whether it was stored."""
        camera = self.cameras[name]
        stamp_ns = self._date(name, message, camera.timing, camera.topic, now_ns=now_ns)
        if stamp_ns is None:
            return False
        if self.buffer.put(name, message, stamp_ns=stamp_ns, now_ns=now_ns):
            self.refused.pop(name, None)
            return True
        self._warn_ahead(name, camera.topic, stamp_ns - now_ns)
        return False

    def joints(self, name: str, message: Any, *, now_ns: int) -> bool:
        """Take a message of state stream ``name``; whether the state is complete and stored."""
        stream = self.state_streams[name]
        stamp_ns = self._date(STATE, message, stream.timing, stream.topic, now_ns=now_ns)
        if stamp_ns is None:
            return False
        if stamp_ns > now_ns + AHEAD_NS:
            self.buffer.refuse(STATE)
            self._warn_ahead(STATE, stream.topic, stamp_ns - now_ns)
            return False
        self.buffer.advance(now_ns)
        if self.buffer.jumps != self._merger_jumps:
            # The merger takes no value older than it has, so it must forget the later times.
            self._merger_jumps = self.buffer.jumps
            self._merger.reset()
        return self._merge(stream, message, now_ns=now_ns)

    def _merge(self, stream: StateStream, message: Any, *, now_ns: int) -> bool:
        try:
            self._merger.update(message, received_ns=now_ns, stream=stream.name)
        except MessageError as error:
            self._refuse(STATE, error)
            return False
        try:
            state = self._merger.snapshot(now_ns)
        except StaleObservation as error:
            self._state_fault = error
            self.buffer.refuse(STATE)
            self._warn('state', str(error))
            return False
        self._state_fault = None
        self.refused.pop(STATE, None)
        newest_ns = int(state.stamps_ns.max())
        return self.buffer.put(STATE, state, stamp_ns=newest_ns, now_ns=now_ns)

    def _date(
        self, name: str, message: Any, timing: StreamTiming, topic: str, *, now_ns: int
    ) -> int | None:
        try:
            stamp_ns = sample_time_ns(message, received_ns=now_ns, timing=timing, topic=topic)
        except MessageError as error:
            self._refuse(name, error)
            return None
        if timing.clock == 'header' and stamp_to_ns(message.header.stamp) == 0:
            self._warn(('zero', topic), f'{topic}: header stamps are zero; dated by arrival')
        return stamp_ns

    def _refuse(self, name: str, error: MessageError) -> None:
        self.bad_messages += 1
        self.refused[name] = error.found
        self.buffer.refuse(name)
        self._warn(('bad', error.where), f'message dropped: {error}')

    def _warn_ahead(self, name: str, topic: str, ahead_ns: int) -> None:
        self.refused[name] = f'its stamp lay {ahead_ns / 1e9:.3f} s ahead of the clock'
        self._warn(
            ('ahead', topic),
            f'{topic}: message dropped: its stamp lies {ahead_ns / 1e9:.3f} s ahead of the clock '
            'of this node; synchronise the machines, or set clock: receive in the contract',
        )


def with_zero_stamps(contract: RobotContract, choice: str) -> RobotContract:
    """The contract with ``zero_stamp`` of every stream replaced; ``contract`` changes nothing."""
    if choice == 'contract':
        return contract

    def changed(timing: StreamTiming) -> StreamTiming:
        return replace(timing, zero_stamp=choice)

    return replace(
        contract,
        cameras=tuple(replace(c, timing=changed(c.timing)) for c in contract.cameras),
        state_streams=tuple(replace(s, timing=changed(s.timing)) for s in contract.state_streams),
    )


def _camera_stream(camera: CameraSpec) -> StreamSpec:
    return StreamSpec(
        name=camera.name,
        topic=camera.topic,
        max_age_s=camera.timing.max_age_s,
        align=camera.timing.align,
    )


def _state_stream(contract: RobotContract) -> StreamSpec:
    """One stream for all of them: the merged state is as current as its newest message."""
    timings = [stream.timing for stream in contract.state_streams]
    moving = [timing for timing in timings if timing.align != 'hold']
    return StreamSpec(
        name=STATE,
        topic=', '.join(stream.topic for stream in contract.state_streams),
        max_age_s=max((timing.max_age_s for timing in moving), default=float('inf')),
        align='hold' if not moving else 'asof' if 'asof' in _aligns(moving) else 'latest',
        depth=STATE_DEPTH,
        awaited=False,
    )


def _aligns(timings: list[StreamTiming]) -> set[str]:
    return {timing.align for timing in timings}
